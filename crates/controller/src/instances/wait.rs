//! Waiting for a crm to do what it was asked.
//!
//! The state of the row counts, however it came about and whenever: a report
//! that came before the wait began is as good as a later one.

use selvage_api::edgeproto::TrackedState;
use selvage_store::Revision;
use selvage_store::table::{Change, Subscription};
use selvage_work::{Failure, Interrupt, Scope};

use super::core::{Core, PendingChanges};
use super::error::Error;
use super::kind::Instance;
use super::state::{Verb, is_error, state_name};
use super::usage;
use crate::controller::Mode;
use crate::row::Row;

/// End of a wait, if it was not interrupted.
#[derive(Debug)]
pub(super) enum Outcome {
    Reached,
    /// Time is up and the crm is at work.
    StillBusy(TrackedState),
    Failed(Error),
    /// Another operation has the instance now.
    TakenOver,
}

/// Lines of a wait that the followers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    Everything,
    Nothing,
}

impl Core {
    /// The changes since the operation began, if this process began it. One
    /// that was begun for what is under way already has missed the beginning.
    pub(super) fn pending<I: Instance>(
        &self,
        scope: &Scope,
        adopted: bool,
    ) -> Option<PendingChanges<I>> {
        I::pending(self).lock().remove(scope.id()).filter(|_| !adopted)
    }

    /// Waits until an instance is where the crm was asked to take it.
    pub(super) async fn wait_for<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
        verb: Verb,
        tell: Tell,
        pending: Option<PendingChanges<I>>,
    ) -> Result<Outcome, Failure> {
        if pending.is_none() {
            self.look_anew::<I>().await?;
        }
        let mut watching = Watching {
            core: self,
            scope,
            key,
            verb,
            tell,
            seen: 0,
            armed: pending.is_none(),
            said: None,
        };
        let waited = tokio::select! {
            waited = scope.within(self.timeout(verb), watching.run(pending)) => waited,
            () = self.taken_over(scope) => return Ok(Outcome::TakenOver),
        };
        match waited {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => Err(Interrupt::Stopping.into()),
            Err(Interrupt::TimedOut) => Ok(self.out_of_time::<I>(key, verb)),
            Err(interrupt) => Err(interrupt.into()),
        }
    }

    /// Returns when the instance of an operation is given to another one.
    pub(super) async fn taken_over(&self, scope: &Scope) {
        let mark = scope.until_record(&self.takeovers, scope.id(), |mark| mark.map(|_| ()));
        if mark.await.is_err() {
            // Whoever waits beside this is interrupted too, and says how.
            std::future::pending::<()>().await;
        }
    }

    fn out_of_time<I: Instance>(&self, key: &str, verb: Verb) -> Outcome {
        let state = self.state_seen::<I>(key);
        if let Some(outcome) = self.judge::<I>(key, verb) {
            return outcome;
        }
        if state == verb.busy() {
            return Outcome::StillBusy(state);
        }
        Outcome::Failed(Error::TimedOut {
            expected: state_name(verb.reached()),
            found: state_name(state),
        })
    }

    /// Returns when the view has all that the store has.
    pub(super) async fn look_anew<I: Instance>(&self) -> Result<(), Error> {
        let table = self.tables.of::<I>();
        let revision = table.store().revision().await?;
        Ok(table.wait_for(revision).await?)
    }

    /// The instance as the store has it. What decides about undoing must not
    /// come from the view, which may not have seen the beginning yet.
    pub(super) async fn stored<I: Instance>(&self, key: &str) -> Result<Option<I>, Error> {
        let read = self.transact(Mode::DryRun, |tx| async move { usage::get::<I>(&tx, key).await });
        Ok(read.await?.value)
    }

    pub(super) async fn state_now<I: Instance>(&self, key: &str) -> Result<TrackedState, Error> {
        let stored = self.stored::<I>(key).await?;
        Ok(stored.map_or(TrackedState::NotPresent, |inst| inst.state()))
    }

    fn state_seen<I: Instance>(&self, key: &str) -> TrackedState {
        let held = self.tables.of::<I>().get(key);
        held.map_or(TrackedState::NotPresent, |held| held.value.0.state())
    }

    /// Outcome of the wait, going by the row as it is.
    fn judge<I: Instance>(&self, key: &str, verb: Verb) -> Option<Outcome> {
        let held = self.tables.of::<I>().get(key);
        verdict(held.as_ref().map(|held| &held.value.0), verb)
    }
}

fn verdict<I: Instance>(inst: Option<&I>, verb: Verb) -> Option<Outcome> {
    let Some(inst) = inst else {
        return Some(match verb {
            Verb::Delete => Outcome::Reached,
            Verb::Create | Verb::Update => Outcome::Failed(Error::Vanished),
        });
    };
    let state = inst.state();
    if state == verb.reached() {
        return Some(Outcome::Reached);
    }
    is_error(state).then(|| Outcome::Failed(Error::Crm(inst.errors().join(", "))))
}

struct Watching<'a> {
    core: &'a Core,
    scope: &'a Scope,
    key: &'a str,
    verb: Verb,
    tell: Tell,
    /// Revision of the newest row that was looked at.
    seen: Revision,
    /// False while the changes may be from before the crm was asked.
    armed: bool,
    /// State that the followers were told of last.
    said: Option<TrackedState>,
}

impl Watching<'_> {
    /// `None` when the store was closed.
    async fn run<I: Instance>(&mut self, pending: Option<PendingChanges<I>>) -> Option<Outcome> {
        let mut changes = match pending {
            Some(changes) => changes,
            None => {
                let changes = self.core.tables.of::<I>().subscribe_key(self.key);
                if let Some(outcome) = self.look::<I>() {
                    return Some(outcome);
                }
                changes
            }
        };
        loop {
            if let Some(outcome) = self.next::<I>(&mut changes).await? {
                return Some(outcome);
            }
        }
    }

    async fn next<I: Instance>(
        &mut self,
        changes: &mut Subscription<Row<I>>,
    ) -> Option<Option<Outcome>> {
        Some(match changes.next().await? {
            Change::Put(stored) if stored.mod_revision > self.seen => {
                self.seen = stored.mod_revision;
                self.armed |= stored.value.0.state() == self.verb.requested();
                if self.armed { self.meet(Some(&stored.value.0)) } else { None }
            }
            Change::Deleted(_) if self.armed => self.meet::<I>(None),
            Change::Reset => self.look::<I>(),
            Change::Put(_) | Change::Deleted(_) => None,
        })
    }

    /// Looks at the row as it is, whatever was missed.
    fn look<I: Instance>(&mut self) -> Option<Outcome> {
        self.armed = true;
        let held = self.core.tables.of::<I>().get(self.key);
        match held {
            Some(held) if held.mod_revision <= self.seen => None,
            Some(held) => {
                self.seen = held.mod_revision;
                self.meet(Some(&held.value.0))
            }
            None => self.meet::<I>(None),
        }
    }

    fn meet<I: Instance>(&mut self, inst: Option<&I>) -> Option<Outcome> {
        if self.tell == Tell::Everything {
            self.narrate(inst);
        }
        verdict(inst, self.verb)
    }

    /// Says the state, unless that is all as before and the crm says what it waits for.
    fn narrate<I: Instance>(&mut self, inst: Option<&I>) {
        let state = inst.map_or(TrackedState::NotPresent, Instance::state);
        if state == self.verb.requested() {
            return;
        }
        let progress = inst.map_or("", Instance::progress);
        if self.said != Some(state) || progress.is_empty() {
            self.scope.say(state_name(state));
        }
        if !progress.is_empty() {
            self.scope.say(progress);
        }
        self.said = Some(state);
    }
}
