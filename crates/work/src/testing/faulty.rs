//! An operation with something going wrong in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::Code;
use tokio::sync::Notify;

use crate::{Failure, Next, Operation, Scope};

/// Fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Runs twice, with the first run forgotten.
    Repeat,
    Fail,
    /// Cancels the operation meanwhile.
    Cancel,
    /// The process is asked to stop.
    Stop,
    /// The process ends.
    Crash,
}

/// Moment: before or after the work of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// Point at which a fault occurs, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) step: String,
    pub(super) undo: bool,
    pub(super) when: When,
    pub(super) fault: Fault,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            Fault::Repeat => "repeat of",
            Fault::Fail => "failure",
            Fault::Cancel => "cancellation",
            Fault::Stop => "stop",
            Fault::Crash => "crash",
        };
        let when = match (self.fault, self.when) {
            (Fault::Repeat, _) => "",
            (_, When::Before) => " before",
            (_, When::After) => " after",
        };
        let undo = if self.undo { " undo of" } else { "" };
        write!(f, "{what}{when}{undo} step {}", self.step)
    }
}

/// Faults to inject into an environment, and those that happened there.
#[derive(Debug, Default)]
pub(super) struct Script {
    moments: Mutex<Vec<Moment>>,
    /// Steps in the order in which they were first run.
    pub(super) seen: Mutex<Vec<String>>,
    /// The process is to be ended, that way.
    pub(super) end: Mutex<Option<Fault>>,
    pub(super) ending: Notify,
}

impl Script {
    pub(super) fn new(moments: &[Moment]) -> Arc<Self> {
        Arc::new(Self { moments: Mutex::new(moments.to_vec()), ..Self::default() })
    }

    /// Returns the moments that have not happened.
    pub(super) fn left(&self) -> Vec<Moment> {
        self.moments.lock().clone()
    }

    fn take(&self, step: &str, undo: bool, when: When) -> Option<Fault> {
        let mut moments = self.moments.lock();
        let at = moments
            .iter()
            .position(|moment| moment.step == step && moment.undo == undo && moment.when == when)?;
        Some(moments.remove(at).fault)
    }

    fn note(&self, step: &str) {
        let mut seen = self.seen.lock();
        if !seen.iter().any(|known| known == step) {
            seen.push(step.to_owned());
        }
    }

    fn end_process(&self, fault: Fault) {
        *self.end.lock() = Some(fault);
        self.ending.notify_one();
    }
}

pub(super) struct Faulty<O> {
    pub(super) operation: O,
    pub(super) script: Arc<Script>,
}

impl<O: Operation> Faulty<O> {
    /// Injects a fault; returns true if the step is to be run twice.
    async fn strike(&self, fault: Option<Fault>, scope: &Scope) -> Result<bool, Failure> {
        match fault {
            None => Ok(false),
            Some(Fault::Repeat) => Ok(true),
            Some(Fault::Fail) => Err(Failure::new(Code::Internal, "injected")),
            Some(Fault::Cancel) => {
                scope.engine().cancel(scope.id(), "testing").await?;
                Ok(false)
            }
            Some(Fault::Stop) => {
                self.script.end_process(Fault::Stop);
                scope.until(std::future::pending::<()>()).await?;
                Ok(false)
            }
            Some(Fault::Crash) => {
                self.script.end_process(Fault::Crash);
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl<O: Operation> Operation for Faulty<O> {
    const KIND: &'static str = O::KIND;
    type State = O::State;

    fn steps(&self, state: &Self::State) -> Vec<&'static str> {
        self.operation.steps(state)
    }

    fn time_limit(&self, state: &Self::State) -> Option<Duration> {
        self.operation.time_limit(state)
    }

    fn cancellable(&self, step: &str, state: &Self::State) -> bool {
        self.operation.cancellable(step, state)
    }

    async fn run(
        &self,
        step: &str,
        state: &mut Self::State,
        scope: &Scope,
    ) -> Result<Next, Failure> {
        self.script.note(step);
        let fault = self.script.take(step, false, When::Before);
        if self.strike(fault, scope).await? {
            self.operation.run(step, &mut state.clone(), scope).await?;
        }
        let next = self.operation.run(step, state, scope).await?;
        // A step that waits has not done its work yet.
        if !matches!(next, Next::Wait(_)) {
            let fault = self.script.take(step, false, When::After);
            self.strike(fault, scope).await?;
        }
        Ok(next)
    }

    async fn undo(
        &self,
        step: &str,
        state: &mut Self::State,
        scope: &Scope,
    ) -> Result<(), Failure> {
        let fault = self.script.take(step, true, When::Before);
        if self.strike(fault, scope).await? {
            self.operation.undo(step, &mut state.clone(), scope).await?;
        }
        self.operation.undo(step, state, scope).await?;
        let fault = self.script.take(step, true, When::After);
        self.strike(fault, scope).await?;
        Ok(())
    }
}
