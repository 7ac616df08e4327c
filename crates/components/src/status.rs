//! Status of a machine, as it is reported.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_api::selvage::kubernetes::{Component, ComponentState, MissingArtifact};

/// One component as it was just seen.
pub(crate) struct ComponentStatus {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) state: ComponentState,
    pub(crate) message: String,
    pub(crate) restarts: u32,
    pub(crate) missing: Option<MissingArtifact>,
}

impl ComponentStatus {
    pub(crate) fn new(name: &'static str, state: ComponentState, message: String) -> Self {
        Self { name, version: String::new(), state, message, restarts: 0, missing: None }
    }
}

/// Since when components are as they are.
#[derive(Default)]
pub(crate) struct History(Mutex<BTreeMap<&'static str, (ComponentState, Timestamp)>>);

impl History {
    /// True if it was healthy when it was last probed.
    pub(crate) fn was_healthy(&self, name: &str) -> bool {
        let kept = self.0.lock();
        let bad = |state| matches!(state, ComponentState::Healthy | ComponentState::Unhealthy);
        kept.get(name).is_some_and(|(state, _)| bad(*state))
    }

    pub(crate) fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// As it goes over the wire.
    pub(crate) fn report(&self, seen: &ComponentStatus, generation: u64) -> Component {
        let mut kept = self.0.lock();
        let entry = kept.entry(seen.name).or_insert((seen.state, Timestamp::now()));
        if entry.0 != seen.state {
            *entry = (seen.state, Timestamp::now());
        }
        let since = prost_types::Timestamp {
            seconds: entry.1.as_second(),
            nanos: entry.1.subsec_nanosecond(),
        };
        Component {
            name: seen.name.to_owned(),
            version: seen.version.clone(),
            state: seen.state.into(),
            message: seen.message.clone(),
            since: Some(since),
            restarts: seen.restarts,
            generation,
        }
    }
}
