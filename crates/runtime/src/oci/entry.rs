//! One container as we hold it in memory.

use std::{path::PathBuf, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    driver::Driver,
    record::{self, Phase, Record, State},
};
use crate::{
    Container, Error, Exit, Network, RestartPolicy, Result, Status,
    identity::{self, Names},
};

pub(super) struct Entry {
    pub(super) namespace: String,
    pub(super) record: Record,
    pub(super) directory: PathBuf,
    pub(super) state: Mutex<State>,
    /// Why it was last not started.
    problem: Mutex<Option<String>>,
    changed: watch::Sender<()>,
    /// One step at a time.
    pub(super) step: tokio::sync::Mutex<()>,
}

impl Entry {
    pub(super) fn new(
        namespace: String,
        directory: PathBuf,
        record: Record,
        state: State,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            directory,
            record,
            state: Mutex::new(state),
            problem: Mutex::default(),
            changed: watch::Sender::new(()),
            step: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.record.spec.id
    }

    /// Name that the program has for it. `+` is in no namespace and in no id.
    pub(super) fn runtime_name(&self) -> String {
        format!("{}+{}", self.namespace, self.id())
    }

    /// Writes the new state down before anybody sees it.
    pub(super) fn update(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.lock();
        let mut new = state.clone();
        change(&mut new);
        record::write(&self.directory.join("state.json"), &new)?;
        *state = new;
        self.changed.send_replace(());
        Ok(())
    }

    /// Driver of the program that started it.
    pub(super) fn driver(&self, ours: &Driver) -> Driver {
        ours.by(self.state.lock().program.as_deref())
    }

    pub(super) fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    pub(super) fn pid(&self) -> Option<u32> {
        let state = self.state.lock();
        let process = state.process.as_ref().filter(|_| state.phase == Phase::Running);
        process.map(|process| process.pid)
    }

    pub(super) fn should_restart(&self) -> bool {
        let state = self.state.lock();
        let by_policy = match self.record.spec.restart {
            RestartPolicy::Never => false,
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure { most } => {
                state.exit_code != Some(0) && most.is_none_or(|most| state.restarts < most)
            }
        };
        state.wanted && (state.restarting || by_policy)
    }

    pub(super) fn has_problem(&self, problem: Option<&Error>) {
        *self.problem.lock() = problem.map(ToString::to_string);
    }

    pub(super) fn describe(&self) -> Container {
        let state = self.state.lock();
        let labels = self.record.spec.labels.clone();
        let Names { id, name, pod_id, kind } = Names::new(self.id(), &labels);
        let running = state.phase == Phase::Running;
        Container {
            namespace: self.namespace.clone(),
            id,
            name,
            pod_id,
            runtime_id: self.id().to_owned(),
            kind,
            image: self.record.spec.image.clone(),
            pid: state.process.as_ref().filter(|_| running).map(|process| process.pid),
            status: match state.phase {
                Phase::Created => Status::Created,
                Phase::Running => Status::Running,
                Phase::Stopped => Status::Stopped,
            },
            exit: state.exit(),
            last_exit: state.last_exit(),
            created: Timestamp::from_millisecond(self.record.created).ok(),
            restarts: state.restarts,
            supervised: self.record.spec.restart != RestartPolicy::Never,
            uid: labels.get(identity::POD_UID).cloned().unwrap_or_default(),
            network_namespace: match &self.record.spec.network {
                Network::Path(path) => Some(path.clone()),
                Network::None | Network::Host => None,
            },
            labels,
            problem: self.problem.lock().clone().filter(|_| !running),
        }
    }

    /// Waits until it does not run.
    pub(super) async fn ended(&self) -> Option<Exit> {
        let mut changes = self.changed.subscribe();
        loop {
            if self.phase() != Phase::Running {
                return self.state.lock().exit();
            }
            if changes.changed().await.is_err() {
                return None;
            }
        }
    }
}
