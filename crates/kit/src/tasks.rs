//! Supervised background tasks, and the signals that end them.
//!
//! Everything a daemon does besides answering calls runs under a [`Tasks`]:
//! under a name, so that somebody who asks sees it, and with a rule for its
//! failure, because a task that died unseen is the worst kind of outage. A
//! panic counts as a failure like an error does.
//!
//! * [`Tasks::spawn`]: a failure is logged and counted, the rest goes on.
//! * [`Tasks::spawn_critical`]: a failure cancels the whole process, and
//!   [`Tasks::failure`] says why. A critical task that returns is done.
//! * [`Tasks::spawn_restarting`]: after a failure it is started again, sooner
//!   at first and later after each further failure, never in step with others.
//!
//! Nobody is aborted when the token is cancelled: tasks hold the token and end
//! by themselves. [`Tasks::shutdown`] waits for them, and at its deadline
//! aborts and names those that did not.
//!
//! Bookkeeping is kept per name, and a name is forgotten when its tasks are
//! gone and none failed, so that a task per connection costs no memory.
//!
//! [`Signals`] turns signals into events and leaves what to do, exit included,
//! to `main`.

use std::{
    borrow::Cow, collections::BTreeMap, fmt, future::Future, io, panic::AssertUnwindSafe,
    sync::Arc, time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::AbortHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, error, error_span, warn};

use crate::telemetry::panic_message;

/// Result of a task's future: nothing, or a `Result`.
pub trait Outcome {
    /// Text of the failure, if there was one.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| selvage_api::chain(error.into().as_ref()))
    }
}

/// Delays between attempts: they double up to a bound, and are spread by chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure, on average three quarters of this.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
    /// After running for so long without failure it starts afresh.
    pub healthy_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(30),
            healthy_after: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// The wait after so many failures in a row; `chance` in 0..1 spreads it
    /// over the upper half of its range.
    pub fn delay(&self, failures: u32, chance: f64) -> Duration {
        self.bound(failures).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// The same spread over the whole range, for many who lost the same server and
    /// must not come back as one.
    pub fn spread(&self, failures: u32, chance: f64) -> Duration {
        self.bound(failures).mul_f64(chance.clamp(0.0, 1.0))
    }

    fn bound(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

/// State of the tasks of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// At least one runs.
    Running,
    /// Failed, and waits to be started again.
    Waiting,
    /// Failed, and is not started again.
    Failed,
    /// Ended well, after failures that are worth remembering.
    Ended,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Ended => "ended",
        })
    }
}

/// One line of [`Tasks::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The name given at the start.
    pub name: String,
    /// State of them.
    pub state: State,
    /// Number that run now.
    pub running: usize,
    /// Number of restarts.
    pub restarts: u64,
    /// Number of failures.
    pub failures: u64,
    /// Text of the last failure.
    pub last_error: Option<String>,
}

/// Why a critical task took the process down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {task:?} failed: {reason}")]
pub struct Failure {
    /// Its name.
    pub task: String,
    /// Text of the failure.
    pub reason: String,
}

/// Tasks that did not end in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tasks did not end in time: {}", .tasks.join(", "))]
pub struct Stragglers {
    /// Their names, each once.
    pub tasks: Vec<String>,
}

impl Failure {
    /// Code for the caller.
    pub fn code(&self) -> selvage_api::Code {
        selvage_api::Code::Internal
    }
}

impl Stragglers {
    /// Code for the caller.
    pub fn code(&self) -> selvage_api::Code {
        selvage_api::Code::DeadlineExceeded
    }
}

#[derive(Default)]
struct Entry {
    running: usize,
    waiting: usize,
    restarts: u64,
    failures: u64,
    last_error: Option<String>,
    /// True if the latest run failed.
    failed: bool,
}

#[derive(Default)]
struct Book {
    entries: BTreeMap<Cow<'static, str>, Entry>,
    /// No handle yet while a task is being started.
    aborts: BTreeMap<u64, (Cow<'static, str>, Option<AbortHandle>)>,
    next: u64,
    failure: Option<Failure>,
}

/// The supervisor. Clones are handles of the same one.
#[derive(Clone)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
    book: Arc<Mutex<Book>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

enum Ending {
    Fine,
    Failed(String),
}

impl Tasks {
    /// A supervisor that cancels this token when a critical task fails.
    pub fn new(token: CancellationToken) -> Self {
        Self { token, tracker: TaskTracker::new(), book: Arc::default() }
    }

    /// The token that ends everything.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Runs a task whose failure is logged and counted, no more.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, future: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let (name, tasks) = (name.into(), self.clone());
        self.start(name.clone(), async move {
            tasks.attempt(&name, future).await;
        });
    }

    /// Runs a task whose failure ends the process.
    pub fn spawn_critical<F>(&self, name: impl Into<Cow<'static, str>>, future: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let (name, tasks) = (name.into(), self.clone());
        self.start(name.clone(), async move {
            if let Ending::Failed(reason) = tasks.attempt(&name, future).await {
                let failure = Failure { task: name.into_owned(), reason };
                error!("critical task failed, shutting down");
                tasks.book.lock().failure.get_or_insert(failure);
                tasks.token.cancel();
            }
        });
    }

    /// Runs a task that is started again after a failure, until it returns or
    /// everything is cancelled.
    pub fn spawn_restarting<M, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        backoff: Backoff,
        make: M,
    ) where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output: Outcome> + Send + 'static,
    {
        let (name, tasks) = (name.into(), self.clone());
        self.start(name.clone(), async move { tasks.keep_alive(&name, backoff, make).await });
    }

    async fn keep_alive<M, F>(&self, name: &str, backoff: Backoff, mut make: M)
    where
        M: FnMut() -> F,
        F: Future<Output: Outcome> + Send,
    {
        let mut in_a_row: u32 = 0;
        loop {
            let started = Instant::now();
            if let Ending::Fine = self.attempt(name, async { make().await }).await {
                return;
            }
            in_a_row = if started.elapsed() >= backoff.healthy_after { 1 } else { in_a_row + 1 };
            let delay = backoff.delay(in_a_row, rand::random());
            self.note(name, |entry| {
                (entry.running, entry.waiting) = (entry.running - 1, entry.waiting + 1)
            });
            let waited = self.token.run_until_cancelled(tokio::time::sleep(delay)).await;
            self.note(name, |entry| {
                (entry.running, entry.waiting) = (entry.running + 1, entry.waiting - 1);
                entry.restarts += u64::from(waited.is_some());
            });
            if waited.is_none() {
                return;
            }
            warn!(failures = in_a_row, "task restarted");
        }
    }

    /// One run to its end, however it ends.
    async fn attempt<F: Future<Output: Outcome>>(&self, name: &str, future: F) -> Ending {
        let reason = match AssertUnwindSafe(future).catch_unwind().await {
            Ok(outcome) => outcome.failure(),
            Err(payload) => Some(format!("panicked: {}", panic_message(payload.as_ref()))),
        };
        let Some(reason) = reason else {
            self.note(name, |entry| entry.failed = false);
            return Ending::Fine;
        };
        error!(error = %reason, "task failed");
        self.note(name, |entry| {
            entry.failed = true;
            entry.failures += 1;
            entry.last_error = Some(reason.clone());
        });
        Ending::Failed(reason)
    }

    fn note(&self, name: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.book.lock().entries.get_mut(name) {
            change(entry);
        }
    }

    fn start(&self, name: Cow<'static, str>, run: impl Future<Output = ()> + Send + 'static) {
        let id = {
            let mut book = self.book.lock();
            book.entries.entry(name.clone()).or_default().running += 1;
            book.next += 1;
            let id = book.next;
            book.aborts.insert(id, (name.clone(), None));
            id
        };
        let span = error_span!("task", name = %name);
        let ended = Ended { book: Arc::clone(&self.book), name, id };
        // Not under the lock: a runtime that is going down drops the future,
        // and with it `ended`, right here.
        let handle = self.tracker.spawn(
            async move {
                let _ended = ended;
                run.await;
            }
            .instrument(span),
        );
        if let Some((_, abort)) = self.book.lock().aborts.get_mut(&id) {
            *abort = Some(handle.abort_handle());
        }
    }

    /// All names with what is known of them, for a status page.
    pub fn list(&self) -> Vec<Status> {
        let status = |(name, entry): (&Cow<'static, str>, &Entry)| Status {
            name: name.to_string(),
            state: match entry {
                Entry { running: 1.., .. } => State::Running,
                Entry { waiting: 1.., .. } => State::Waiting,
                Entry { failed: true, .. } => State::Failed,
                _ => State::Ended,
            },
            running: entry.running,
            restarts: entry.restarts,
            failures: entry.failures,
            last_error: entry.last_error.clone(),
        };
        self.book.lock().entries.iter().map(status).collect()
    }

    /// Why the process is going down, if a critical task is the reason.
    pub fn failure(&self) -> Option<Failure> {
        self.book.lock().failure.clone()
    }

    /// Cancels the token and waits for all tasks; aborts and names those that
    /// have not ended by the deadline.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), Stragglers> {
        self.token.cancel();
        self.tracker.close();
        if tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok() {
            return Ok(());
        }
        let left: Vec<_> = self.book.lock().aborts.values().cloned().collect();
        let mut tasks = Vec::new();
        for (name, abort) in left {
            if let Some(abort) = abort {
                abort.abort();
            }
            tasks.push(name.into_owned());
        }
        tasks.sort();
        tasks.dedup();
        if tasks.is_empty() { Ok(()) } else { Err(Stragglers { tasks }) }
    }
}

/// Takes a task out of the book, also when it is aborted.
struct Ended {
    book: Arc<Mutex<Book>>,
    name: Cow<'static, str>,
    id: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut book = self.book.lock();
        book.aborts.remove(&self.id);
        if let Some(entry) = book.entries.get_mut(&self.name) {
            // An abort while waiting for a restart leaves it counted as waiting.
            match entry.running {
                0 => entry.waiting = entry.waiting.saturating_sub(1),
                _ => entry.running -= 1,
            }
            if entry.running == 0 && entry.waiting == 0 && entry.failures == 0 {
                book.entries.remove(&self.name);
            }
        }
    }
}

/// Request to the process by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEvent {
    /// Finish what is under way and stop.
    Shutdown {
        /// The signal, for the log.
        signal: &'static str,
    },
    /// Asked again: stop now, with this exit code.
    Immediate {
        /// 130 after SIGINT, 143 after SIGTERM.
        exit_code: u8,
    },
    /// Read configuration and certificates again.
    Reload,
}

/// SIGINT, SIGTERM and SIGHUP as events, from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    asked: bool,
}

impl Signals {
    /// Takes the three signals away from their default action. Needs a runtime.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            asked: false,
        })
    }

    /// Waits for the next event. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> SignalEvent {
        let (signal, exit_code) = tokio::select! {
            Some(()) = self.interrupt.recv() => ("SIGINT", 130),
            Some(()) = self.terminate.recv() => ("SIGTERM", 143),
            Some(()) = self.hangup.recv() => return SignalEvent::Reload,
            else => std::future::pending().await,
        };
        if std::mem::replace(&mut self.asked, true) {
            SignalEvent::Immediate { exit_code }
        } else {
            SignalEvent::Shutdown { signal }
        }
    }
}
