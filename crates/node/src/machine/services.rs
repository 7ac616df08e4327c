//! The services of a machine: what the agent's own process runs, told as it
//! is. Whoever has services that callers may steer brings its own
//! [`Supervisor`].

use std::{
    collections::{BTreeMap, VecDeque},
    time::SystemTime,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::machine::{ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo};
use selvage_kit::tasks::{State, Status as TaskStatus, Tasks};

use super::Error;

/// Number of events of a service that are remembered.
const EVENTS: usize = 64;

/// Action on a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Start it; fine when it runs already.
    Start,
    /// Stop it; fine when it is stopped already.
    Stop,
    /// Stop it if it runs, and start it.
    Restart,
}

impl Operation {
    /// The word for it in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }

    /// The word for it when it is done.
    pub fn done(self) -> &'static str {
        match self {
            Self::Start => "started",
            Self::Stop => "stopped",
            Self::Restart => "restarted",
        }
    }
}

/// Knows services, and steers those that can be steered.
#[async_trait]
pub trait Supervisor: Send + Sync + 'static {
    /// All services, in any order.
    fn services(&self) -> Vec<ServiceInfo>;

    /// Operates a service. Fails with [`Error::NoService`],
    /// [`Error::NotSteered`] or [`Error::Service`].
    async fn operate(&self, id: &str, operation: Operation) -> Result<(), Error>;
}

/// The tasks of this process as services. None of them can be steered: a part
/// that is to run is told so in the configuration.
pub struct TaskServices {
    tasks: Tasks,
    seen: Mutex<BTreeMap<String, ServiceRecord>>,
}

struct ServiceRecord {
    state: State,
    failures: u64,
    events: VecDeque<ServiceEvent>,
}

impl TaskServices {
    /// The tasks of this supervisor.
    pub fn new(tasks: Tasks) -> Self {
        Self { tasks, seen: Mutex::default() }
    }

    /// Records changes of the tasks as events. Returns the tasks.
    pub(crate) fn refresh(&self) -> Vec<TaskStatus> {
        let tasks = self.tasks.list();
        let now = prost_types::Timestamp::from(SystemTime::now());
        let mut seen = self.seen.lock();
        seen.retain(|name, _| tasks.iter().any(|task| task.name == *name));
        for task in &tasks {
            let known = seen.get(&task.name);
            if known.is_some_and(|k| k.state == task.state && k.failures == task.failures) {
                continue;
            }
            let entry = seen.entry(task.name.clone()).or_insert_with(|| ServiceRecord {
                state: task.state,
                failures: task.failures,
                events: VecDeque::new(),
            });
            (entry.state, entry.failures) = (task.state, task.failures);
            if entry.events.len() == EVENTS {
                entry.events.pop_front();
            }
            let (msg, state) = (message(task), state(task.state).to_owned());
            entry.events.push_back(ServiceEvent { msg, state, ts: Some(now) });
        }
        tasks
    }
}

fn message(task: &TaskStatus) -> String {
    match (task.state, &task.last_error) {
        (State::Running, None) => "Runs".into(),
        (State::Running, Some(error)) => format!("Runs again after: {error}"),
        (State::Ended, _) => "Has ended".into(),
        (State::Waiting, error) => {
            format!("Waits to be started again after: {}", error.as_deref().unwrap_or("?"))
        }
        (State::Failed, error) => format!("Failed: {}", error.as_deref().unwrap_or("?")),
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Running => "Running",
        State::Waiting => "Waiting",
        State::Failed => "Failed",
        State::Ended => "Finished",
    }
}

#[async_trait]
impl Supervisor for TaskServices {
    fn services(&self) -> Vec<ServiceInfo> {
        let tasks = self.refresh();
        let seen = self.seen.lock();
        let info = |task: TaskStatus| {
            let events = seen.get(&task.name).map(|seen| seen.events.iter().cloned().collect());
            let health = ServiceHealth {
                unknown: true,
                last_message: task.last_error.unwrap_or_default(),
                ..ServiceHealth::default()
            };
            ServiceInfo {
                id: task.name,
                state: state(task.state).into(),
                events: Some(ServiceEvents { events: events.unwrap_or_default() }),
                health: Some(health),
            }
        };
        tasks.into_iter().map(info).collect()
    }

    async fn operate(&self, id: &str, operation: Operation) -> Result<(), Error> {
        let id = id.to_owned();
        if self.tasks.list().iter().any(|task| task.name == id) {
            Err(Error::NotSteered { id, operation: operation.name() })
        } else {
            Err(Error::NoService { id })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn tasks_are_reported_with_their_state() {
        let stop = CancellationToken::new();
        let tasks = Tasks::new(stop.clone());
        let services = TaskServices::new(tasks.clone());
        tasks.spawn("quiet", stop.clone().cancelled_owned());
        tasks.spawn("broken", async { Err::<(), _>("no disk") });
        let info = loop {
            let all = services.services();
            let broken = all.iter().find(|info| info.id == "broken").cloned();
            if let Some(broken) = broken.filter(|info| info.state == "Failed") {
                break [broken, all.into_iter().find(|info| info.id == "quiet").unwrap()];
            }
            tokio::task::yield_now().await;
        };
        let last =
            |info: &ServiceInfo| info.events.as_ref().unwrap().events.last().unwrap().clone();
        assert_eq!(last(&info[0]).msg, "Failed: no disk");
        assert_eq!((info[1].state.as_str(), last(&info[1]).msg.as_str()), ("Running", "Runs"));
        let refused = services.operate("quiet", Operation::Stop).await.unwrap_err();
        assert_eq!(refused.to_string(), "service \"quiet\" doesn't support stop operation via API");
        let unknown = services.operate("none", Operation::Start).await.unwrap_err();
        assert_eq!(unknown.code(), selvage_api::Code::NotFound);
        stop.cancel();
    }
}
