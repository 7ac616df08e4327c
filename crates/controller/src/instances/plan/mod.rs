//! Decisions about instances: pure functions over what a transaction has read.
//! They check in the order and with the words of the original, and say what is
//! to be written; nothing here reads or writes.

pub(super) mod app;
pub(super) mod cluster;

use selvage_api::edgeproto::{CloudletInfo, CloudletKey, CloudletState, TrackedState};

use super::error::{Error, Refusal};
use super::kind::Instance;
use super::state::Override;
use crate::derive::names;
use crate::keys::CloudletKeyParts;

/// Origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Api,
    /// The controller itself, for an auto-cluster.
    Internal,
}

/// The cloudlet's crm is there, or not needed.
pub(super) fn check_ready(
    key: &CloudletKey,
    info: Option<&CloudletInfo>,
    over: Override,
) -> Result<(), Error> {
    if over.ignores_crm() || names::is_default_cloudlet(key) {
        return Ok(());
    }
    let state = info.map_or(CloudletState::NotPresent, |info| {
        CloudletState::try_from(info.state).unwrap_or_default()
    });
    if matches!(state, CloudletState::Ready | CloudletState::Errors) {
        return Ok(());
    }
    Err(Error::CloudletNotReady {
        operator: key.operator_or_empty().name.clone(),
        name: key.name.clone(),
        state: state.as_str_name(),
    })
}

/// Checks that an instance may be created over what is there.
fn check_absent<I: Instance>(existing: Option<&I>, over: Override) -> Result<(), Refusal> {
    let Some(existing) = existing else { return Ok(()) };
    let state = existing.state();
    if state == TrackedState::DeleteError || over.takes_over(state) {
        return Ok(());
    }
    let mut notes = Vec::new();
    if state == TrackedState::CreateError {
        notes.push(format!("Previous create failed, {}", listed(existing.errors())));
        notes.push(format!("Use Delete{} to remove and try again", I::NOUN));
    }
    Err(Refusal { notes, error: Error::KeyExists })
}

/// Errors as the original prints a list.
pub(super) fn listed(errors: &[String]) -> String {
    format!("[{}]", errors.join(" "))
}
