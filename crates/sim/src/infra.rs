//! What would exist if any of it were real.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use selvage_notify::ObjectKey;

use crate::{Operation, What};

/// What exists on the simulated infrastructure, by canonical key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infrastructure {
    /// Clusters with their number of nodes.
    pub clusters: BTreeMap<String, u32>,
    /// Instances with the names of their containers.
    pub instances: BTreeMap<String, Vec<String>>,
}

impl Infrastructure {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.instances.is_empty()
    }
}

/// How often something was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations begun.
    pub begun: BTreeMap<(What, Operation), u64>,
    /// Operations that ended well.
    pub done: BTreeMap<(What, Operation), u64>,
    /// Operations that were made to fail.
    pub failed: BTreeMap<(What, Operation), u64>,
    /// Objects found in a state that does not fit what is known here.
    pub inconsistent: u64,
    /// Requests to run a command.
    pub execs: u64,
    /// Starts after the first.
    pub restarts: u64,
}

#[derive(Default)]
pub(crate) struct Ground {
    pub(crate) infrastructure: Mutex<Infrastructure>,
    pub(crate) counters: Mutex<Counters>,
}

impl Ground {
    /// Makes, changes or removes something; doing it again is harmless.
    pub(crate) fn apply(&self, what: What, operation: Operation, key: &ObjectKey, plan: &Plan) {
        let mut there = self.infrastructure.lock();
        let text = key.text().to_owned();
        match (what, operation) {
            (What::Cluster, Operation::Delete) => {
                there.clusters.remove(&text);
            }
            (What::Cluster, _) => {
                there.clusters.insert(text, plan.nodes);
            }
            (What::Instance, Operation::Delete) => {
                there.instances.remove(&text);
            }
            (What::Instance, _) => {
                there.instances.insert(text, plan.containers.clone());
            }
        }
    }

    pub(crate) fn has(&self, what: What, key: &ObjectKey) -> bool {
        let there = self.infrastructure.lock();
        match what {
            What::Cluster => there.clusters.contains_key(key.text()),
            What::Instance => there.instances.contains_key(key.text()),
        }
    }

    pub(crate) fn containers(&self, key: &ObjectKey) -> Vec<String> {
        self.infrastructure.lock().instances.get(key.text()).cloned().unwrap_or_default()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters.lock());
    }
}

/// What an operation makes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) nodes: u32,
    pub(crate) containers: Vec<String>,
}
