//! Reports of crms, applied to the instances.

use selvage_api::edgeproto::TrackedState;
use selvage_store::Transaction;

use super::core::Core;
use super::error::Error;
use super::kind::{Info, Instance};
use super::state::{Report, Verb, is_error, moved, state_name};
use crate::controller::Mode;
use crate::row::Row;

/// Characters that are kept of what a crm waits for.
const LONGEST_PROGRESS: usize = 500;

impl Core {
    /// Applies a report in a transaction of its own. Reports that may not
    /// move the instance from where it is are ignored.
    pub(super) async fn apply<I: Instance>(&self, info: &I::Info, gone: bool) -> Result<(), Error> {
        let key = &info.key_text();
        if !gone && self.says_nothing_new::<I>(key, info) {
            return Ok(());
        }
        let take_in = |tx: Transaction| async move {
            let Some(Row(mut inst)) = tx.get::<Row<I>>(key).await? else { return Ok(()) };
            match taken_in(&mut inst, info, gone) {
                Effect::None => Ok::<_, Error>(()),
                Effect::Changed => Ok(tx.put(&Row(inst))?),
                Effect::Gone => inst.remove(&tx).await,
            }
        };
        // Only what goes is counted anew.
        let held = self.tables.of::<I>().get(key).filter(|_| gone);
        let committed = match held {
            Some(held) => self.count(Mode::Real, held.value.0.cloudlet_key(), take_in).await,
            None => self.transact(Mode::Real, take_in).await,
        };
        self.tables.caught_up::<I>(committed?.revision).await?;
        Ok(())
    }

    /// Most reports of a crm that connects again are of this kind, and there
    /// may be very many.
    fn says_nothing_new<I: Instance>(&self, key: &str, info: &I::Info) -> bool {
        let Some(held) = self.tables.of::<I>().get(key) else { return false };
        let mut inst = held.value.0.clone();
        inst.state() == info.state() && matches!(taken_in(&mut inst, info, false), Effect::None)
    }
}

enum Effect {
    None,
    Changed,
    Gone,
}

fn taken_in<I: Instance>(inst: &mut I, info: &I::Info, gone: bool) -> Effect {
    let state = inst.state();
    if !gone && info.state() == state {
        let refreshed = tells_what_runs(state, info) && inst.set_runtime(info.runtime());
        let moved_on = is_busy(state) && inst.set_progress(&reported_progress(info));
        return if refreshed || moved_on { Effect::Changed } else { Effect::None };
    }
    let report = if gone { Report::Gone } else { Report::Is(info.state()) };
    match moved(state, report) {
        None => {
            let state = state_name(state);
            tracing::debug!(
                kind = I::NOUN,
                key = info.key_text(),
                state,
                ?report,
                "report ignored"
            );
            Effect::None
        }
        Some(TrackedState::NotPresent) => Effect::Gone,
        Some(next) => {
            inst.set_state(next);
            inst.set_errors(if is_error(next) { info.errors().to_vec() } else { Vec::new() });
            if tells_what_runs(next, info) {
                inst.set_runtime(info.runtime());
            }
            if is_busy(next) {
                inst.set_progress(&reported_progress(info));
            }
            Effect::Changed
        }
    }
}

/// Returns whether a crm is at work on an instance in this state.
fn is_busy(state: TrackedState) -> bool {
    Verb::of(state).is_some_and(|verb| verb.busy() == state)
}

/// One line, of a length that a row can have: agents are not believed to be brief.
fn reported_progress(info: &impl Info) -> String {
    let line = info.progress().lines().next().unwrap_or_default();
    line.chars().take(LONGEST_PROGRESS).collect()
}

/// Returns true if a report says what runs. After a failed update that is the
/// version of before, if the agent kept it. An agent that cannot keep it meanwhile
/// says why it does not serve; those of the original never do.
fn tells_what_runs(state: TrackedState, info: &impl Info) -> bool {
    match state {
        TrackedState::Ready => true,
        TrackedState::UpdateError => info.runtime().is_some(),
        TrackedState::Updating => info.runtime().is_some_and(|it| !it.unhealthy.is_empty()),
        _ => false,
    }
}
