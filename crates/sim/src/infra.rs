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
    there: Mutex<There>,
    pub(crate) counters: Mutex<Counters>,
}

#[derive(Default)]
struct There {
    clusters: BTreeMap<ObjectKey, u32>,
    instances: BTreeMap<ObjectKey, Vec<String>>,
}

impl Ground {
    /// Makes, changes or removes something; doing it again is harmless.
    pub(crate) fn apply(&self, what: What, operation: Operation, key: &ObjectKey, plan: Plan) {
        let mut there = self.there.lock();
        match (what, operation) {
            (What::Cluster, Operation::Delete) => {
                there.clusters.remove(key);
            }
            (What::Cluster, _) => {
                there.clusters.insert(key.clone(), plan.nodes);
            }
            (What::Instance, Operation::Delete) => {
                there.instances.remove(key);
            }
            (What::Instance, _) => {
                there.instances.insert(key.clone(), plan.containers);
            }
        }
    }

    pub(crate) fn has(&self, what: What, key: &ObjectKey) -> bool {
        let there = self.there.lock();
        match what {
            What::Cluster => there.clusters.contains_key(key),
            What::Instance => there.instances.contains_key(key),
        }
    }

    pub(crate) fn keys(&self) -> Vec<(What, ObjectKey)> {
        let there = self.there.lock();
        let clusters = there.clusters.keys().map(|key| (What::Cluster, key.clone()));
        let instances = there.instances.keys().map(|key| (What::Instance, key.clone()));
        clusters.chain(instances).collect()
    }

    pub(crate) fn containers(&self, key: &ObjectKey) -> Vec<String> {
        self.there.lock().instances.get(key).cloned().unwrap_or_default()
    }

    pub(crate) fn snapshot(&self) -> Infrastructure {
        let there = self.there.lock();
        let text = ToString::to_string;
        Infrastructure {
            clusters: there.clusters.iter().map(|(key, nodes)| (text(key), *nodes)).collect(),
            instances: there.instances.iter().map(|(key, c)| (text(key), c.clone())).collect(),
        }
    }

    pub(crate) fn destroy(&self) {
        *self.there.lock() = There::default();
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
