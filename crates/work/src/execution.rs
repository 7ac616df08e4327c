//! Driving one operation from wherever it is to its end.
//!
//! Between two writes of the record exactly one step is run or undone. The
//! record says which, so whoever reads it knows where to go on. Nothing is
//! kept in between: what the loop works on is the record that was written
//! last.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use selvage_api::Code;
use selvage_api::selvage::operations::State;
use selvage_kit::telemetry::panic_message;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::{Inner, millis};
use crate::live::Live;
use crate::operation::{Erased, Plan};
use crate::record::OperationRecord;
use crate::write::Change;
use crate::{Failure, Interrupt, Next, Scope};

pub(crate) struct Execution {
    pub(crate) inner: Arc<Inner>,
    pub(crate) live: Arc<Live>,
    pub(crate) operation: Arc<dyn Erased>,
    pub(crate) generation: u64,
    pub(crate) deposed: CancellationToken,
    pub(crate) wake: Arc<Notify>,
    /// True if the current step may have been run before.
    pub(crate) resumed: bool,
}

impl Execution {
    /// Goes on until the operation has ended or has to be left to others, and
    /// says why that was.
    pub(crate) async fn run(mut self) -> Option<Interrupt> {
        loop {
            let record = self.live.record();
            let going = match record.state() {
                _ if self.deposed.is_cancelled() || record.generation != self.generation => {
                    Err(Interrupt::Deposed)
                }
                _ if self.inner.stop.is_cancelled() => Err(Interrupt::Stopping),
                State::Running => self.forward(&record).await,
                State::Undoing => self.backward(&record).await,
                _ => {
                    log_end(&record);
                    return None;
                }
            };
            if let Err(interrupt) = going {
                self.leave(interrupt).await;
                return Some(interrupt);
            }
        }
    }

    fn scope(&self, record: &OperationRecord, cancellable: bool) -> Scope {
        Scope {
            inner: Arc::clone(&self.inner),
            live: Arc::clone(&self.live),
            stop: self.inner.stop.clone(),
            deposed: self.deposed.clone(),
            generation: self.generation,
            undoing: record.state() == State::Undoing,
            resumed: self.resumed,
            cancellable,
            deadline: (cancellable && record.deadline > 0).then_some(record.deadline),
        }
    }

    /// Runs the current step.
    async fn forward(&mut self, record: &OperationRecord) -> Result<(), Interrupt> {
        let step = record.step.as_str();
        let cancellable = self.operation.cancellable(step, &record.data).unwrap_or(true);
        let scope = self.scope(record, cancellable);
        if scope.cancelled() {
            return self.fail(record, Interrupt::Cancelled.into(), None).await;
        }
        if scope.deadline.is_some_and(|deadline| scope.now() >= deadline) {
            return self.fail(record, Interrupt::TimedOut.into(), None).await;
        }
        let mut data = record.data.clone();
        tracing::debug!(operation = %record.id, kind = %record.kind, step, "step");
        let run = self.operation.run(step, &mut data, &scope);
        let result = AssertUnwindSafe(run).catch_unwind().await;
        match result {
            Ok(Ok(Next::Wait(time))) => self.wait(&scope, time, data).await,
            Ok(Ok(next)) => self.advance(record, next, data).await,
            Ok(Err(failure)) => self.fail(record, failure, Some(data)).await,
            Err(payload) => {
                let text = panic_message(payload.as_ref());
                let failure = Failure::new(Code::Internal, format!("step {step} panicked: {text}"));
                self.fail(record, failure, None).await
            }
        }
    }

    /// The step is not done yet. Keeps what it decided, and waits.
    async fn wait(
        &mut self,
        scope: &Scope,
        time: Duration,
        data: Vec<u8>,
    ) -> Result<(), Interrupt> {
        self.resumed = true;
        let record = self.live.record();
        if data != record.data || self.unsaved(&record) {
            let keep = |record: &mut OperationRecord| record.data.clone_from(&data);
            if let Err(failure) = self.write(&keep).await {
                return self.fail(&record, failure, None).await;
            }
        }
        let wake = Arc::clone(&self.wake);
        let clock = Arc::clone(scope.clock());
        let until = scope.now().saturating_add(millis(time));
        let woken = scope.until(async {
            tokio::select! {
                () = wake.notified() => {}
                () = clock.sleep_until(until) => {}
            }
        });
        match woken.await {
            Err(interrupt) if interrupt.leaves_it_running() => Err(interrupt),
            // The loop sees for itself that it was cancelled or is too late.
            _ => Ok(()),
        }
    }

    /// The step is done.
    async fn advance(
        &mut self,
        record: &OperationRecord,
        next: Next,
        data: Vec<u8>,
    ) -> Result<(), Interrupt> {
        let next_step = self.next_step(record, next, &data);
        let next_step = match next_step {
            Ok(next_step) => next_step,
            Err(failure) => return self.fail(record, failure, Some(data)).await,
        };
        let change = |stored: &mut OperationRecord| {
            if stored.step != record.step {
                return;
            }
            stored.data.clone_from(&data);
            stored.done.push(std::mem::take(&mut stored.step));
            stored.skipped.extend(next_step.skipped.iter().map(|step| (*step).to_owned()));
            stored.steps_total = next_step.total;
            match next_step.step {
                Some(step) => stored.step = step.to_owned(),
                None => stored.set_state(State::Succeeded),
            }
        };
        match self.write(&change).await {
            Ok(()) => {
                self.resumed = false;
                Ok(())
            }
            Err(failure) => self.fail(record, failure, None).await,
        }
    }

    fn next_step(
        &self,
        record: &OperationRecord,
        next: Next,
        data: &[u8],
    ) -> Result<NextStep, Failure> {
        let plan = self.operation.plan(data).map_err(|error| {
            Failure::new(Code::DataLoss, format!("step {} left a bad state: {error}", record.step))
        })?;
        next_step(record, next, &plan)
    }

    /// The step failed, or may not go on: from here everything is undone.
    async fn fail(
        &mut self,
        record: &OperationRecord,
        failure: Failure,
        data: Option<Vec<u8>>,
    ) -> Result<(), Interrupt> {
        let step = &record.step;
        let message = match failure.interrupt() {
            Some(interrupt) if interrupt.leaves_it_running() => return Err(interrupt),
            Some(Interrupt::Cancelled) => match self.live.record().cancelled_by.as_str() {
                "" => "cancelled".to_owned(),
                who => format!("cancelled by {who}"),
            },
            Some(_) => format!("step {step} timed out"),
            None => failure.message().to_owned(),
        };
        let (id, code) = (&record.id, failure.code());
        tracing::warn!(operation = %id, step, %code, error = message, "operation is undone");
        let change = |stored: &mut OperationRecord| {
            stored.set_state(State::Undoing);
            stored.error.clone_from(&message);
            stored.error_code = code.grpc() as i32;
            if let Some(data) = &data {
                stored.data.clone_from(data);
            }
        };
        self.resumed = false;
        match self.write(&change).await {
            Err(failure) if data.is_some() && failure.interrupt().is_none() => {
                // The step's state cannot be stored; undo has to do with the
                // one before.
                Box::pin(self.fail(record, failure, None)).await
            }
            Err(failure) => Err(failure.interrupt().unwrap_or(Interrupt::Stopping)),
            Ok(()) => Ok(()),
        }
    }

    /// Undoes the current step.
    async fn backward(&mut self, record: &OperationRecord) -> Result<(), Interrupt> {
        let step = record.step.as_str();
        let scope = self.scope(record, false);
        let mut data = record.data.clone();
        tracing::debug!(operation = %record.id, kind = %record.kind, step, "undo");
        let undo = self.operation.undo(step, &mut data, &scope);
        let failure = match AssertUnwindSafe(undo).catch_unwind().await {
            Ok(Ok(())) => return self.undone(step, data).await,
            Ok(Err(failure)) => failure,
            Err(payload) => {
                let text = panic_message(payload.as_ref());
                Failure::new(Code::Internal, format!("undo of step {step} panicked: {text}"))
            }
        };
        match failure.interrupt() {
            Some(interrupt) if interrupt.leaves_it_running() => Err(interrupt),
            _ => self.not_undone(record, &failure, &scope).await,
        }
    }

    async fn undone(&mut self, step: &str, data: Vec<u8>) -> Result<(), Interrupt> {
        let change = |stored: &mut OperationRecord| {
            if stored.step != step {
                return;
            }
            stored.data.clone_from(&data);
            stored.undo_failures = 0;
            stored.undo_error.clear();
            stored.step = stored.done.pop().unwrap_or_default();
            if stored.step.is_empty() {
                stored.set_state(State::Failed);
            }
        };
        self.resumed = false;
        self.write(&change).await.map_err(interruption)
    }

    /// Undo failed: keeps the reason, and tries again later or gives up.
    async fn not_undone(
        &mut self,
        record: &OperationRecord,
        failure: &Failure,
        scope: &Scope,
    ) -> Result<(), Interrupt> {
        let failures = record.undo_failures + 1;
        let give_up = failures >= self.inner.options.undo_attempts;
        let (id, step) = (&record.id, &record.step);
        tracing::error!(operation = %id, step, failures, give_up, error = %failure, "undoing a step of the operation failed");
        let change = |stored: &mut OperationRecord| {
            stored.undo_failures = failures;
            stored.undo_error = failure.message().to_owned();
            if give_up {
                let mut left = vec![stored.step.as_str()];
                left.extend(stored.done.iter().rev().map(String::as_str));
                stored.stuck = left.join(", ");
                stored.set_state(State::Failed);
            }
        };
        self.write(&change).await.map_err(interruption)?;
        self.resumed = true;
        if give_up {
            return Ok(());
        }
        let delay = self.inner.options.backoff.delay(failures, rand::random());
        scope.pause(delay).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<(), Failure> {
        self.inner.write(&self.live, self.generation, &self.deposed, change).await
    }

    /// Returns true if lines were said that are not stored yet.
    fn unsaved(&self, record: &OperationRecord) -> bool {
        let number = |lines: &[crate::record::Line]| lines.last().map(|line| line.number);
        number(&self.live.last_lines(1)) != number(&record.lines)
    }

    /// Leaves the operation as it is for whoever drives it next.
    async fn leave(self, interrupt: Interrupt) {
        let record = self.live.record();
        tracing::info!(operation = %record.id, step = %record.step, %interrupt, "operation is left to the next driver");
        if interrupt == Interrupt::Stopping && record.is_active() && self.unsaved(&record) {
            // A failure loses the progress lines; that is no reason to hold up.
            let _ = self.write(&|_| {}).await;
        }
    }
}

fn log_end(record: &OperationRecord) {
    let (id, kind) = (&record.id, &record.kind);
    match record.outcome() {
        Some(Err(failure)) if !record.stuck.is_empty() => {
            tracing::error!(operation = %id, %kind, stuck = %record.stuck, error = %failure, "operation is stuck");
        }
        Some(Err(failure)) => {
            tracing::warn!(operation = %id, %kind, error = %failure, "operation failed and is undone");
        }
        _ => tracing::info!(operation = %id, %kind, "operation succeeded"),
    }
}

/// A write that is neither stored nor interrupted is tried again by whoever
/// looks at the operation next.
fn interruption(failure: Failure) -> Interrupt {
    failure.interrupt().unwrap_or(Interrupt::Stopping)
}

struct NextStep {
    /// `None` at the end.
    step: Option<&'static str>,
    skipped: Vec<&'static str>,
    total: u32,
}

/// Returns what comes after the current step.
fn next_step(record: &OperationRecord, next: Next, plan: &Plan) -> Result<NextStep, Failure> {
    let left = |step: &&&'static str| {
        **step != record.step
            && !record.done.iter().any(|done| done == **step)
            && !record.skipped.iter().any(|skipped| skipped == **step)
    };
    let left: Vec<&'static str> = plan.steps.iter().filter(left).copied().collect();
    let at = match next {
        Next::Jump(target) => left.iter().position(|step| *step == target).ok_or_else(|| {
            let text = format!("step {} jumps to {target:?}, which is not ahead", record.step);
            Failure::new(Code::Internal, text)
        })?,
        Next::Finish => left.len(),
        Next::Done | Next::Wait(_) => 0,
    };
    Ok(NextStep {
        step: left.get(at).copied(),
        skipped: left[..at].to_vec(),
        total: u32::try_from(plan.steps.len()).unwrap_or(u32::MAX),
    })
}
