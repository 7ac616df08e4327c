//! The steps that operations on ClusterInsts and on AppInsts share.

use selvage_api::Code;
use selvage_api::edgeproto::TrackedState;
use selvage_work::{Failure, Interrupt, Scope, Subject};

use super::core::{Core, PendingChanges};
use super::error::Error;
use super::kind::Instance;
use super::state::{Override, Verb, is_error, is_transient, state_name};
use super::wait::{Outcome, Tell};

/// Record of an operation on either kind of instance.
pub(super) trait Work: Subject {
    type Instance: Instance;

    /// Says that all is well also where the crm was not asked.
    const SAYS_DONE: bool;

    fn over(&self) -> Override;

    /// There is no crm to ask, or it is not to be asked.
    fn ignores_crm(&self) -> bool;

    /// Begun for an instance that was found without an operation.
    fn adopted(&self) -> bool;
}

/// Result of asking the crm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrmOutcome {
    Done,
    /// Time was up while the crm was at work; it goes on without us.
    LeftBusy,
}

fn done_text<I: Instance>(verb: Verb) -> String {
    match verb {
        Verb::Create => "Created successfully".to_owned(),
        Verb::Update => "Updated successfully".to_owned(),
        Verb::Delete => format!("Deleted {} successfully", I::NOUN),
    }
}

impl Core {
    /// Says that all is well without the crm having been asked.
    pub(super) fn say_done<I: Instance>(&self, scope: &Scope, verb: Verb) {
        scope.say(done_text::<I>(verb));
    }

    /// The step of an operation whose row was written when it began: waits for
    /// the crm, unless that is not to be asked.
    pub(super) async fn ask_for<W: Work>(
        &self,
        work: &W,
        verb: Verb,
        scope: &Scope,
    ) -> Result<CrmOutcome, Failure> {
        let pending = self.pending::<W::Instance>(scope, work.adopted());
        if !work.ignores_crm() {
            return self.ask(scope, &work.key(), verb, work.over(), pending).await;
        }
        if W::SAYS_DONE {
            self.say_done::<W::Instance>(scope, verb);
        }
        Ok(CrmOutcome::Done)
    }

    /// Waits for what the crm was asked, telling followers how it goes.
    pub(super) async fn ask<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
        verb: Verb,
        over: Override,
        pending: Option<PendingChanges<I>>,
    ) -> Result<CrmOutcome, Failure> {
        let error = match self.wait_for::<I>(scope, key, verb, Tell::Everything, pending).await? {
            Outcome::Reached => {
                self.refs_caught_up::<I>(verb).await?;
                scope.say(done_text::<I>(verb));
                return Ok(CrmOutcome::Done);
            }
            Outcome::StillBusy(state) => {
                scope.say(format!(
                    "Timed out while work still in progress state {}. Please use Show{} to check current status",
                    state_name(state),
                    I::NOUN
                ));
                return Ok(CrmOutcome::LeftBusy);
            }
            Outcome::Failed(error) => error,
            Outcome::TakenOver => {
                let text = format!("another operation has taken over {} {key}", I::NOUN);
                return Err(Failure::new(Code::Cancelled, text));
            }
        };
        if !over.ignores_errors() {
            return Err(error.into());
        }
        scope.say(format!("{} {} ignoring CRM failure: {error}", verb.name(), I::NOUN));
        match verb {
            Verb::Delete => self.remove::<I>(key).await?,
            Verb::Create | Verb::Update => {
                self.alter::<I>(key, |inst| settle(inst, TrackedState::Ready, Vec::new())).await?;
            }
        }
        scope.say(format!("{}d {} successfully", verb.name(), I::NOUN));
        Ok(CrmOutcome::Done)
    }

    /// Waits until the caller sees that a deleted instance is counted no
    /// longer.
    async fn refs_caught_up<I: Instance>(&self, verb: Verb) -> Result<(), Error> {
        match verb {
            Verb::Delete => {
                let revision = self.tables.of::<I>().revision();
                self.caught_up::<I>(revision).await
            }
            Verb::Create | Verb::Update => Ok(()),
        }
    }

    /// Undoes a creation: the crm is told to remove what there may be, and
    /// the row goes when it has. If it does not, the row stays, in an error
    /// state that can be deleted, so that nothing on the cloudlet is forgotten.
    pub(super) async fn undo_create<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
        says: &str,
        ask_crm: bool,
    ) -> Result<(), Failure> {
        if self.is_taken_over(scope.id())
            || self.state_now::<I>(key).await? == TrackedState::NotPresent
        {
            return Ok(());
        }
        scope.say(says);
        if !ask_crm {
            return Ok(self.remove::<I>(key).await?);
        }
        self.let_finish::<I>(scope, key).await?;
        self.alter::<I>(key, |inst| {
            let asked =
                matches!(inst.state(), TrackedState::DeleteRequested | TrackedState::Deleting);
            if !asked {
                inst.set_state(TrackedState::DeleteRequested);
            }
            !asked
        })
        .await?;
        let outcome = self.wait_for::<I>(scope, key, Verb::Delete, Tell::Nothing, None).await?;
        let second = match outcome {
            Outcome::TakenOver => return Ok(()),
            Outcome::Reached => return Ok(self.refs_caught_up::<I>(Verb::Delete).await?),
            Outcome::StillBusy(state) => {
                format!("still {} when it was given up", state_name(state))
            }
            Outcome::Failed(error) => error.to_string(),
        };
        let first = scope.reason().map(|reason| reason.message().to_owned());
        let second = format!("not removed from the cloudlet: {second}");
        let errors: Vec<_> = first.into_iter().chain([second]).collect();
        self.alter::<I>(key, |inst| settle(inst, TrackedState::CreateError, errors.clone()))
            .await?;
        Ok(())
    }

    /// A crm that is at work on a creation does not listen: waits for its end.
    async fn let_finish<I: Instance>(&self, scope: &Scope, key: &str) -> Result<(), Failure> {
        let limit = self.timeout(Verb::Create);
        let waited = scope.record_within(limit, self.tables.of::<I>(), key, |row| {
            row.is_none_or(|row| row.0.state() != TrackedState::Creating).then_some(())
        });
        tokio::select! {
            waited = waited => match waited {
                Ok(()) | Err(Interrupt::TimedOut) => Ok(()),
                Err(interrupt) => Err(interrupt.into()),
            },
            () = self.taken_over(scope) => Ok(()),
        }
    }

    /// Leaves an instance that did not get where it should in the error state
    /// of that verb.
    pub(super) async fn leave_failed<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
        verb: Verb,
    ) -> Result<(), Failure> {
        if self.is_taken_over(scope.id()) {
            return Ok(());
        }
        let reason = scope.reason().map(|reason| reason.message().to_owned());
        self.alter::<I>(key, |inst| {
            is_transient(inst.state())
                && settle(inst, verb.failed(), reason.iter().cloned().collect())
        })
        .await?;
        Ok(())
    }

    /// Gives a row whose deletion failed the state back that it had. Says
    /// whether there was one to give it to.
    pub(super) async fn restore<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
        before: TrackedState,
        errors: &[String],
    ) -> Result<bool, Failure> {
        if self.is_taken_over(scope.id()) || self.goes_all_the_same::<I>(scope, key).await? {
            return Ok(false);
        }
        let before = if is_transient(before) { TrackedState::Ready } else { before };
        let restored = self
            .alter::<I>(key, |inst| {
                let state = inst.state();
                let ours = is_error(state) || is_transient(state);
                ours && settle(inst, before, errors.to_vec())
            })
            .await?;
        Ok(restored)
    }
}

impl Core {
    /// Waits for the crm, which may delete what it was asked to delete whatever
    /// we say now, unless that was what took too long.
    async fn goes_all_the_same<I: Instance>(
        &self,
        scope: &Scope,
        key: &str,
    ) -> Result<bool, Failure> {
        let state = self.state_now::<I>(key).await?;
        let asked = matches!(state, TrackedState::DeleteRequested | TrackedState::Deleting);
        let late = scope.reason().is_some_and(|reason| reason.code() == Code::DeadlineExceeded);
        if !asked || late {
            return Ok(false);
        }
        let outcome = self.wait_for::<I>(scope, key, Verb::Delete, Tell::Nothing, None).await?;
        Ok(matches!(outcome, Outcome::Reached | Outcome::TakenOver))
    }
}

/// Sets state and errors; says whether that changed anything.
fn settle<I: Instance>(inst: &mut I, state: TrackedState, errors: Vec<String>) -> bool {
    let changes = inst.state() != state || inst.errors() != errors.as_slice();
    inst.set_state(state);
    inst.set_errors(errors);
    changes
}
