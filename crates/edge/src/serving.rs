//! Instances that somebody may be sent to.

use selvage_api::edgeproto::{AppInst, TrackedState};

/// Returns true if an instance has a version that serves and whose ports
/// answer, as far as its crm can tell.
pub fn is_serving(instance: &AppInst) -> bool {
    has_version(instance) && answers(instance)
}

/// Returns true if an instance has a version that serves. While it is updated,
/// and when that has failed, that is the old one, where the crm says where it
/// is: those of the original have none then.
fn has_version(instance: &AppInst) -> bool {
    let keeps_old = || instance.runtime_info.as_ref().is_some_and(|it| !it.addresses.is_empty());
    match instance.state() {
        TrackedState::Ready => true,
        TrackedState::UpdateRequested | TrackedState::Updating | TrackedState::UpdateError => {
            keeps_old()
        }
        _ => false,
    }
}

/// Returns true unless its crm saw that its ports do not answer.
fn answers(instance: &AppInst) -> bool {
    instance.runtime_info.as_ref().is_none_or(|runtime| runtime.unhealthy.is_empty())
}

#[cfg(test)]
mod tests {
    use selvage_api::edgeproto::AppInstRuntime;

    use super::*;

    fn instance(state: TrackedState, address: &str, unhealthy: &str) -> AppInst {
        let addresses = Vec::from_iter((!address.is_empty()).then(|| address.to_owned()));
        let unhealthy = unhealthy.to_owned();
        let runtime_info =
            Some(AppInstRuntime { addresses, unhealthy, ..AppInstRuntime::default() });
        AppInst { state: state.into(), runtime_info, ..AppInst::default() }
    }

    #[test]
    fn only_what_is_ready_and_answers_serves() {
        assert!(is_serving(&instance(TrackedState::Ready, "", "")));
        assert!(!is_serving(&instance(TrackedState::Ready, "10.0.0.1", "refused")));
        assert!(!is_serving(&instance(TrackedState::Creating, "10.0.0.1", "")));
        assert!(!is_serving(&instance(TrackedState::Deleting, "10.0.0.1", "")));
    }

    #[test]
    fn the_old_version_serves_while_a_new_one_comes() {
        assert!(is_serving(&instance(TrackedState::Updating, "10.0.0.1", "")));
        assert!(is_serving(&instance(TrackedState::UpdateError, "10.0.0.1", "")));
        assert!(!is_serving(&instance(TrackedState::Updating, "", "")));
    }
}
