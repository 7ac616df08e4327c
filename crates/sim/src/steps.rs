//! Queue of operations that wait to be let go, one report at a time.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{ObjectKind, Verb};

/// Stage that an operation is about to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reports that the work has begun.
    Begin,
    /// Its end.
    End,
}

/// An operation that waits to be let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Names it.
    pub id: u64,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Doing what.
    pub verb: Verb,
    /// The object's canonical key.
    pub key: String,
    /// The next stage.
    pub stage: Stage,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    steps: BTreeMap<u64, (Step, oneshot::Sender<()>)>,
}

pub(crate) struct Steps {
    waiting: Mutex<Waiting>,
    changed: watch::Sender<u64>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { waiting: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Steps {
    /// Waits to be let go.
    pub(crate) async fn pass(&self, kind: ObjectKind, verb: Verb, key: &str, stage: Stage) {
        let (go, gone) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock();
            waiting.next += 1;
            let id = waiting.next;
            let step = Step { id, kind, verb, key: key.to_owned(), stage };
            waiting.steps.insert(id, (step, go));
            id
        };
        self.changed.send_modify(|count| *count += 1);
        let _forget = Forget { steps: self, id };
        // Only a crm that dies drops the other end.
        let _ = gone.await;
    }

    pub(crate) fn pending(&self) -> Vec<Step> {
        self.waiting.lock().steps.values().map(|(step, _)| step.clone()).collect()
    }

    /// Lets a step go; whether it was waiting.
    pub(crate) fn release(&self, id: u64) -> bool {
        let found = self.waiting.lock().steps.remove(&id);
        found.is_some_and(|(_, go)| go.send(()).is_ok())
    }

    /// Waits for a step that fits, and lets it go.
    pub(crate) async fn step(&self, fits: impl Fn(&Step) -> bool) -> Step {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let found = self.pending().into_iter().find(|step| fits(step));
            if let Some(step) = found
                && self.release(step.id)
            {
                return step;
            }
            // The sender is ours and lives.
            let _ = changed.changed().await;
        }
    }
}

/// A step that nobody waits at any more is not pending.
struct Forget<'a> {
    steps: &'a Steps,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.steps.waiting.lock().steps.remove(&self.id);
    }
}
