//! Counts of each kind by state, and cloudlets on the map.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{Count, Place, Problem, Severity},
};

use crate::{
    facts::{Facts, Instance, Machine, Volumes, each},
    rules::{MachineState, Thresholds, hosts, state},
};

fn count<'a>(kind: &str, states: impl Iterator<Item = (&'a str, bool)>) -> Count {
    let mut count = Count { kind: kind.into(), ..Count::default() };
    let mut by_state: BTreeMap<String, u32> = BTreeMap::new();
    for (state, healthy) in states {
        count.total += 1;
        count.healthy += u32::from(healthy);
        *by_state.entry(state.to_owned()).or_default() += 1;
    }
    count.states = by_state;
    count
}

/// A state in words.
pub(crate) fn cloudlet_word(state: CloudletState) -> &'static str {
    match state {
        CloudletState::Ready => "ready",
        CloudletState::Offline => "offline",
        CloudletState::Errors => "errors",
        CloudletState::NotPresent => "no agent yet",
        CloudletState::Unknown => "unknown",
    }
}

pub(crate) fn tracked_word(state: TrackedState) -> &'static str {
    match state {
        TrackedState::Ready => "ready",
        TrackedState::CreateRequested | TrackedState::Creating => "creating",
        TrackedState::UpdateRequested | TrackedState::Updating => "updating",
        TrackedState::DeleteRequested | TrackedState::Deleting | TrackedState::DeletePrepare => {
            "deleting"
        }
        TrackedState::CreateError | TrackedState::UpdateError | TrackedState::DeleteError => {
            "failed"
        }
        TrackedState::NotPresent | TrackedState::Unknown => "unknown",
    }
}

pub(crate) fn kaas_word(status: ClusterStatus) -> &'static str {
    match status {
        ClusterStatus::Running => "ready",
        ClusterStatus::Provisioning => "creating",
        ClusterStatus::Reconciling => "updating",
        ClusterStatus::Stopping => "deleting",
        ClusterStatus::Error => "failed",
        ClusterStatus::Degraded => "degraded",
        ClusterStatus::StatusUnspecified => "unknown",
    }
}

fn instance_word(instance: &Instance) -> (&'static str, bool) {
    let unhealthy = instance.state == TrackedState::Ready && !instance.unhealthy.is_empty();
    let word = if unhealthy { "unhealthy" } else { tracked_word(instance.state) };
    (word, word == "ready")
}

/// A volume is as its group is, and what is being filled is not ready yet.
fn volume_words(volumes: &Volumes) -> impl Iterator<Item = (&'static str, bool)> {
    let gone: HashSet<&str> = volumes
        .groups
        .iter()
        .filter(|group| group.missing)
        .map(|group| group.object.name.as_str())
        .collect();
    volumes.volumes.iter().map(move |volume| {
        match (gone.contains(volume.group.as_str()), volume.pending) {
            (true, _) => ("missing", false),
            (false, true) => ("incomplete", false),
            (false, false) => ("ready", true),
        }
    })
}

pub(super) fn counts(facts: &Facts, now: Timestamp, thresholds: &Thresholds) -> Vec<Count> {
    let mut counts = Vec::new();
    if facts.cloudlets.is_some() {
        let words = each(&facts.cloudlets).map(|cloudlet| {
            (cloudlet_word(cloudlet.state), cloudlet.state == CloudletState::Ready)
        });
        counts.push(count("cloudlet", words));
    }
    if facts.instances.is_some() {
        counts.push(count("appinst", each(&facts.instances).map(instance_word)));
    }
    if facts.clusters.is_some() {
        let words = each(&facts.clusters)
            .map(|cluster| (tracked_word(cluster.state), cluster.state == TrackedState::Ready));
        counts.push(count("clusterinst", words));
    }
    if facts.kaas.is_some() {
        let words = each(&facts.kaas)
            .map(|cluster| (kaas_word(cluster.status), cluster.status == ClusterStatus::Running));
        counts.push(count("kaas", words));
    }
    if facts.machines.is_some() {
        let hosts = hosts(facts);
        let word = |machine: &Machine| {
            let host = hosts.get(machine.name.as_str()).copied();
            let state = state(machine, host, now, thresholds.machine_away);
            (state.word(), state == MachineState::Ready)
        };
        counts.push(count("machine", each(&facts.machines).map(word)));
    }
    if let Some(volumes) = &facts.volumes {
        let words = volumes.groups.iter().map(|group| match group.missing {
            true => ("missing", false),
            false => ("ready", true),
        });
        counts.push(count("volume_group", words));
        counts.push(count("volume", volume_words(volumes)));
    }
    if facts.operations.is_some() {
        counts.push(count("operation", each(&facts.operations).map(|_| ("running", true))));
    }
    if facts.nodes.is_some() {
        let words = each(&facts.nodes).map(|node| match node.ready {
            Some(true) => ("ready", true),
            Some(false) => ("not ready", false),
            None => ("unknown", false),
        });
        counts.push(count("kubernetes", words));
    }
    counts
}

pub(super) fn places(facts: &Facts, problems: &[Problem]) -> Vec<Place> {
    let mut instances: HashMap<&str, (u32, u32)> = HashMap::new();
    for instance in each(&facts.instances) {
        let (all, ready) = instances.entry(instance.cloudlet.as_str()).or_default();
        *all += 1;
        *ready += u32::from(instance_word(instance).1);
    }
    let mut worst: HashMap<&str, i32> = HashMap::new();
    for problem in problems {
        let Some(object) = problem.object.as_ref().filter(|object| object.kind == "cloudlet")
        else {
            continue;
        };
        let known = worst.entry(object.name.as_str()).or_insert(Severity::Ok.into());
        *known = (*known).max(problem.severity);
    }
    let place = |cloudlet: &crate::facts::Cloudlet| {
        let (latitude, longitude) = cloudlet.location.unwrap_or_default();
        let name = cloudlet.object.name.as_str();
        let (all, ready) = instances.get(name).copied().unwrap_or_default();
        Place {
            cloudlet: Some(cloudlet.object.clone()),
            latitude,
            longitude,
            state: cloudlet_word(cloudlet.state).into(),
            severity: worst.get(name).copied().unwrap_or_default(),
            instances: all,
            ready_instances: ready,
        }
    };
    each(&facts.cloudlets).map(place).collect()
}
