//! Simulated infrastructure.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use selvage_notify::ObjectKey;

use crate::{ObjectKind, Verb};

/// Objects on the simulated infrastructure, by canonical key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infrastructure {
    /// Clusters with their number of nodes.
    pub clusters: BTreeMap<String, u32>,
    /// Instances with the names of their containers.
    pub instances: BTreeMap<String, Vec<String>>,
}

impl Infrastructure {
    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.instances.is_empty()
    }
}

/// Counters of operations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations begun.
    pub begun: BTreeMap<(ObjectKind, Verb), u64>,
    /// Operations that ended well.
    pub done: BTreeMap<(ObjectKind, Verb), u64>,
    /// Operations that were made to fail.
    pub failed: BTreeMap<(ObjectKind, Verb), u64>,
    /// Objects found in a state that does not fit what is known here.
    pub inconsistent: u64,
    /// Requests to run a command.
    pub execs: u64,
    /// Starts after the first.
    pub restarts: u64,
}

#[derive(Default)]
pub(crate) struct SimulatedInfra {
    objects: Mutex<Objects>,
    pub(crate) counters: Mutex<Counters>,
}

#[derive(Default)]
struct Objects {
    clusters: BTreeMap<ObjectKey, u32>,
    instances: BTreeMap<ObjectKey, Vec<String>>,
}

impl SimulatedInfra {
    /// Makes, changes or removes something; doing it again is harmless.
    pub(crate) fn apply(&self, kind: ObjectKind, verb: Verb, key: &ObjectKey, plan: Plan) {
        let mut there = self.objects.lock();
        match (kind, verb) {
            (ObjectKind::Cluster, Verb::Delete) => {
                there.clusters.remove(key);
            }
            (ObjectKind::Cluster, _) => {
                there.clusters.insert(key.clone(), plan.nodes);
            }
            (ObjectKind::Instance, Verb::Delete) => {
                there.instances.remove(key);
            }
            (ObjectKind::Instance, _) => {
                there.instances.insert(key.clone(), plan.containers);
            }
        }
    }

    pub(crate) fn has(&self, kind: ObjectKind, key: &ObjectKey) -> bool {
        let there = self.objects.lock();
        match kind {
            ObjectKind::Cluster => there.clusters.contains_key(key),
            ObjectKind::Instance => there.instances.contains_key(key),
        }
    }

    pub(crate) fn keys(&self) -> Vec<(ObjectKind, ObjectKey)> {
        let there = self.objects.lock();
        let clusters = there.clusters.keys().map(|key| (ObjectKind::Cluster, key.clone()));
        let instances = there.instances.keys().map(|key| (ObjectKind::Instance, key.clone()));
        clusters.chain(instances).collect()
    }

    pub(crate) fn containers(&self, key: &ObjectKey) -> Vec<String> {
        self.objects.lock().instances.get(key).cloned().unwrap_or_default()
    }

    pub(crate) fn snapshot(&self) -> Infrastructure {
        let there = self.objects.lock();
        let text = ToString::to_string;
        Infrastructure {
            clusters: there.clusters.iter().map(|(key, nodes)| (text(key), *nodes)).collect(),
            instances: there.instances.iter().map(|(key, c)| (text(key), c.clone())).collect(),
        }
    }

    pub(crate) fn destroy(&self) {
        *self.objects.lock() = Objects::default();
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters.lock());
    }
}

/// Objects that an verb makes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) nodes: u32,
    pub(crate) containers: Vec<String>,
}
