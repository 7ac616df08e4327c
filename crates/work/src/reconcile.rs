//! The periodic reconciler: idempotent functions without input, run by signal
//! and by period.
//!
//! Each reconciler has a task of its own, so one never runs twice at the same
//! time and none waits for another. Signals that come while it runs lead to
//! one more run, however many they were. A run that fails or panics is
//! remembered, and tried again sooner than the period.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kit::tasks::{Backoff, Tasks};
use selvage_kit::telemetry::panic_message;
use selvage_store::clock::{Clock, Millis};
use tokio::sync::Notify;

use crate::engine::millis;
use crate::{Failure, KeyQueue, QueueKey};

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Number of things it changed.
    pub changes: u64,
    /// A sentence for people, or empty.
    pub note: String,
    /// Run again so soon, because there is more to do.
    pub again: Option<Duration>,
}

/// A function that makes what is more like what is wanted. It may be run at
/// any time, by several processes at once, and when there is nothing to do.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// A name for status pages, different from all others.
    fn name(&self) -> &str;

    /// Looks, and makes a difference smaller.
    async fn run(&self) -> Result<Summary, Failure>;
}

/// Interval of a reconciler. The first run is immediate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Maximum time from the end of a run to the start of the next.
    pub period: Duration,
    /// Share of the interval that is random, so that many processes do not run
    /// in step: 0 for none, 1 for all of it.
    pub jitter: f64,
    /// Delay after a failure; never longer than the period.
    pub backoff: Backoff,
}

impl Schedule {
    /// Exactly every `period`; after a failure, after `retry` if that is less.
    pub fn fixed(period: Duration, retry: Duration) -> Self {
        let backoff = Backoff { first: retry, longest: retry, ..Backoff::default() };
        Self { period, jitter: 0.0, backoff }
    }

    /// About every `period`.
    pub fn every(period: Duration) -> Self {
        Self { period, jitter: 0.1, backoff: Backoff::default() }
    }

    /// Delay after a run; `chance` lies in 0..1.
    fn pause(&self, failures: u32, again: Option<Duration>, chance: f64) -> Duration {
        if failures > 0 {
            return self.backoff.delay(failures, chance).min(self.period);
        }
        let cut = self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
        again.unwrap_or(self.period).min(self.period.mul_f64(1.0 - cut))
    }
}

/// Status of a reconciler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReconcilerStatus {
    /// Its name.
    pub name: String,
    /// Number of runs that came to their end.
    pub runs: u64,
    /// Number of those that failed.
    pub failures: u64,
    /// Number of failures in a row, up to now.
    pub failing: u32,
    /// True while it runs.
    pub running: bool,
    /// Start of the last run, in milliseconds since 1970.
    pub last_start: Option<Millis>,
    /// End of the last run.
    pub last_finish: Option<Millis>,
    /// Error of its last failure.
    pub last_error: Option<String>,
    /// Result of its last success.
    pub last_summary: Option<Summary>,
    /// Keys that wait for a run or are in one, of a keyed reconciler.
    pub queue: u64,
}

/// Tells a reconciler to run.
#[derive(Debug, Clone)]
pub struct Trigger(Arc<Notify>);

impl Trigger {
    /// Runs it now, or once more if it runs already.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

struct Entry {
    status: ReconcilerStatus,
    trigger: Trigger,
    /// Asks a keyed reconciler how it is doing.
    keyed: Option<Box<dyn Fn() -> ReconcilerStatus + Send>>,
}

/// A reconciler made of a function.
struct Function<F> {
    name: String,
    run: F,
}

#[async_trait]
impl<F, R> Reconcile for Function<F>
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = Result<Summary, Failure>> + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&self) -> Result<Summary, Failure> {
        (self.run)().await
    }
}

/// Runs reconcilers. Clones are handles of the same runner.
#[derive(Clone)]
pub struct Reconcilers {
    tasks: Tasks,
    clock: Arc<dyn Clock>,
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

impl fmt::Debug for Reconcilers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Reconcilers {
    /// A runner whose reconcilers end with the token of `tasks`, each at the
    /// end of the run it is in.
    pub fn new(tasks: Tasks, clock: Arc<dyn Clock>) -> Self {
        Self { tasks, clock, entries: Arc::default() }
    }

    /// Starts a reconciler. One of the same name that is there already is
    /// kept and told to run.
    pub fn add(&self, reconciler: impl Reconcile, schedule: Schedule) -> Trigger {
        let name = reconciler.name().to_owned();
        let trigger = Trigger(Arc::new(Notify::new()));
        {
            let mut entries = self.entries.lock();
            if let Some(entry) = entries.get(&name) {
                tracing::error!(name, "a reconciler of this name runs already");
                entry.trigger.wake();
                return entry.trigger.clone();
            }
            let status = ReconcilerStatus { name: name.clone(), ..ReconcilerStatus::default() };
            entries.insert(name.clone(), Entry { status, trigger: trigger.clone(), keyed: None });
        }
        let (runner, woken) = (self.clone(), trigger.clone());
        self.tasks.spawn(format!("reconciler {name}"), async move {
            runner.keep_running(&name, &reconciler, schedule, &woken).await;
        });
        trigger
    }

    /// Starts a reconciler that is a function, and has nothing to tell of a run
    /// but whether it failed.
    pub fn add_fn<F, R, E>(&self, name: impl Into<String>, schedule: Schedule, run: F) -> Trigger
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure> + 'static,
    {
        let run = move || {
            let running = run();
            async move {
                let done: Result<(), E> = running.await;
                done.map(|()| Summary::default()).map_err(|error| -> Failure { error.into() })
            }
        };
        self.add(Function { name: name.into(), run }, schedule)
    }

    /// Shows the reconciler of a queue of keys among the others.
    pub fn show<K: QueueKey>(&self, name: &str, queue: &KeyQueue<K>) {
        let (queue, named) = (queue.clone(), name.to_owned());
        let entry = Entry {
            trigger: Trigger(Arc::new(Notify::new())),
            keyed: Some(Box::new(move || queue.status(&named))),
            status: ReconcilerStatus::default(),
        };
        self.entries.lock().insert(name.to_owned(), entry);
    }

    /// Returns the tasks that run the reconcilers.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Runs the reconciler of that name now. False if there is none.
    pub fn wake(&self, name: &str) -> bool {
        let entries = self.entries.lock();
        let entry = entries.get(name);
        entry.inspect(|entry| entry.trigger.wake()).is_some()
    }

    /// Returns the status of all, by name.
    pub fn list(&self) -> Vec<ReconcilerStatus> {
        let entries = self.entries.lock();
        let status = |entry: &Entry| match &entry.keyed {
            Some(ask) => ask(),
            None => entry.status.clone(),
        };
        entries.values().map(status).collect()
    }

    async fn keep_running(
        &self,
        name: &str,
        reconciler: &impl Reconcile,
        schedule: Schedule,
        woken: &Trigger,
    ) {
        let token = self.tasks.token();
        while !token.is_cancelled() {
            let pause = self.run_once(name, reconciler, &schedule).await;
            let until = self.clock.now().saturating_add(millis(pause));
            tokio::select! {
                () = token.cancelled() => return,
                () = woken.0.notified() => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// One run, and how long to wait after it.
    async fn run_once(
        &self,
        name: &str,
        reconciler: &impl Reconcile,
        schedule: &Schedule,
    ) -> Duration {
        let now = self.clock.now();
        self.note(name, |status| {
            status.running = true;
            status.last_start = Some(now);
        });
        let result = AssertUnwindSafe(reconciler.run()).catch_unwind().await;
        let result = result.unwrap_or_else(|payload| {
            let text = format!("panicked: {}", panic_message(payload.as_ref()));
            Err(Failure::new(Code::Internal, text))
        });
        let again = result.as_ref().ok().and_then(|summary| summary.again);
        let was_failing = self.note(name, |status| status.failing).unwrap_or_default() > 0;
        // That something is away is one event, not one at every run.
        match &result {
            Err(error) if was_failing => tracing::debug!(name, %error, "reconciler fails again"),
            Err(error) => tracing::warn!(name, %error, "reconciler failed"),
            Ok(_) if was_failing => tracing::info!(name, "reconciler works again"),
            Ok(_) => {}
        }
        let now = self.clock.now();
        let failing = self.note(name, |status| {
            status.running = false;
            status.runs += 1;
            status.last_finish = Some(now);
            match result {
                Ok(summary) => {
                    status.failing = 0;
                    status.last_summary = Some(summary);
                }
                Err(error) => {
                    status.failures += 1;
                    status.failing += 1;
                    status.last_error = Some(error.to_string());
                }
            }
            status.failing
        });
        schedule.pause(failing.unwrap_or_default(), again, rand::random())
    }

    fn note<T>(&self, name: &str, change: impl FnOnce(&mut ReconcilerStatus) -> T) -> Option<T> {
        self.entries.lock().get_mut(name).map(|entry| change(&mut entry.status))
    }
}
