//! Machines and clusters that are not there: any number of them, ready at
//! once. For trying things out, for scale, and for tests, which can make calls
//! fail or end the process in the middle of one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe,
};
use crate::{
    catalogue::{Catalogue, Version},
    driver::{self, Driver, Node, Progress},
    plan::Snapshot,
    record::{Machine, Phase, Versions},
    vault::Writer,
};

/// Something that goes wrong in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and nothing was done.
    Refuse,
    /// Nothing was done, and it never will: the caller is not to try again.
    RefuseForGood,
    /// It was done, and the answer was lost.
    LoseAnswer,
    /// The process ends before it was done.
    CrashBefore,
    /// The process ends after it was done.
    CrashAfter,
}

#[derive(Debug, Default)]
struct Inner {
    machines: BTreeMap<String, SimMachine>,
    clusters: BTreeMap<String, SimCluster>,
    /// Machines of each type, none for any number.
    capacity: BTreeMap<String, u32>,
    /// Machines that nobody gets.
    excluded: BTreeSet<String>,
    /// Machines that never come up.
    broken: BTreeSet<String>,
    /// No machine comes up for now.
    slow: bool,
    faults: BTreeMap<u64, Fault>,
    calls: u64,
    serial: u64,
    violations: Vec<String>,
}

#[derive(Debug)]
struct SimMachine {
    id: String,
    cluster: String,
    name: String,
    instance_type: String,
}

#[derive(Debug, Default)]
struct SimCluster {
    etcd: BTreeSet<String>,
    /// Versions by machine.
    members: BTreeMap<String, Versions>,
    nodes: BTreeMap<String, SimNode>,
}

#[derive(Debug, Clone, Default)]
struct SimNode {
    cordoned: bool,
    ready: bool,
    /// Pods that cannot be evicted.
    guarded: u32,
    delete_first: bool,
    /// The whole machine is gone, its agent too.
    lost: bool,
    hibernated: bool,
    tainted: bool,
    /// It runs something new since and has not joined again.
    restarted: bool,
    labels: BTreeMap<String, String>,
}

impl SimCluster {
    fn votes(&self, name: &str) -> bool {
        let node = self.nodes.get(name);
        self.etcd.contains(name)
            && node.is_some_and(|n| n.ready && !n.lost && !n.hibernated && !n.restarted)
    }

    fn others_that_vote(&self, machine: &Machine) -> usize {
        self.etcd.iter().filter(|name| **name != machine.name && self.votes(name)).count()
    }

    /// Returns whether etcd goes on while one member of it restarts. One alone cannot.
    fn is_quorum_without(&self, machine: &Machine) -> bool {
        self.etcd.len() == 1 || self.others_that_vote(machine) * 2 > self.etcd.len()
    }

    /// Returns whether etcd can decide that a member leaves, and decides without it then.
    fn loses_none_with(&self, machine: &Machine) -> bool {
        let others = self.others_that_vote(machine);
        let all = others + usize::from(self.votes(&machine.name));
        all * 2 > self.etcd.len() && others * 2 > self.etcd.len() - 1
    }
}

/// A world in which machines are made up. Clones are the same.
#[derive(Clone, Default)]
pub struct Sim {
    inner: Arc<Mutex<Inner>>,
    crash: Arc<Notify>,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sim")
    }
}

impl Sim {
    /// Goes on with machines of which there are records, after a restart.
    pub fn resume(&self, machines: impl IntoIterator<Item = Machine>) {
        let mut inner = self.inner.lock();
        for machine in machines {
            if machine.provider_id.is_empty() {
                continue;
            }
            inner.serial += 1;
            let known = SimMachine {
                id: machine.provider_id.clone(),
                cluster: machine.cluster.clone(),
                name: machine.name.clone(),
                instance_type: machine.instance_type.clone(),
            };
            inner.machines.insert(machine.operation.clone(), known);
            if !machine.running.kubelet.is_empty() {
                let cluster = inner.clusters.entry(machine.cluster.clone()).or_default();
                cluster.members.insert(machine.name.clone(), machine.running.clone());
                if machine.is_control_plane() {
                    cluster.etcd.insert(machine.name.clone());
                }
                let ready = machine.phase() != Phase::NotReady;
                let node = SimNode { ready, cordoned: machine.cordoned, ..SimNode::default() };
                cluster.nodes.insert(machine.name, node);
            }
        }
    }

    /// Offers so many machines of that type, and no other type.
    pub fn limit(&self, instance_type: &str, count: u32) {
        self.inner.lock().capacity.insert(instance_type.to_owned(), count);
    }

    /// Lets the call with that number, counted from now, go wrong.
    pub fn fault(&self, call: u64, fault: Fault) {
        let mut inner = self.inner.lock();
        let at = inner.calls + call;
        inner.faults.insert(at, fault);
    }

    /// Lets nothing more go wrong than did.
    pub fn forget_faults(&self) {
        self.inner.lock().faults.clear();
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.inner.lock().calls
    }

    /// Returns when a process was to end.
    pub async fn crashed(&self) {
        self.crash.notified().await;
    }

    /// Machines that somebody has.
    pub fn owned(&self) -> usize {
        self.inner.lock().machines.len()
    }

    /// Rules that were broken.
    pub fn violations(&self) -> Vec<String> {
        self.inner.lock().violations.clone()
    }

    /// Changes a node, as its users and accidents do.
    pub fn change_node(&self, cluster: &str, node: &str, ready: bool, guarded: u32, first: bool) {
        let mut inner = self.inner.lock();
        let found = inner.clusters.get_mut(cluster).and_then(|c| c.nodes.get_mut(node));
        if let Some(node) = found {
            node.ready = ready;
            node.guarded = guarded;
            node.delete_first = first;
        }
    }

    /// Lets a machine never come up, or repairs it.
    pub fn break_machine(&self, id: &str, broken: bool) {
        let mut inner = self.inner.lock();
        match broken {
            true => inner.broken.insert(id.to_owned()),
            false => inner.broken.remove(id),
        };
    }

    /// Lets machines take their time to be deployed, until they are let go on.
    pub fn slow_down(&self, slow: bool) {
        self.inner.lock().slow = slow;
    }

    /// Keeps pods away from a node, as `kubectl cordon` does, or lets them come again.
    pub fn cordon_by_hand(&self, cluster: &str, node: &str, cordoned: bool) {
        let mut inner = self.inner.lock();
        let found = inner.clusters.get_mut(cluster).and_then(|c| c.nodes.get_mut(node));
        if let Some(node) = found {
            node.cordoned = cordoned;
        }
    }

    /// Puts another kubelet on a machine than the one that it was given.
    pub fn replace_kubelet(&self, cluster: &str, node: &str, version: &str) {
        let mut inner = self.inner.lock();
        let found = inner.clusters.get_mut(cluster).and_then(|c| c.members.get_mut(node));
        if let Some(versions) = found {
            version.clone_into(&mut versions.kubelet);
        }
    }

    /// Takes a machine away, as by fire.
    pub fn lose(&self, cluster: &str, node: &str) {
        let mut inner = self.inner.lock();
        let found = inner.clusters.get_mut(cluster).and_then(|c| c.nodes.get_mut(node));
        if let Some(node) = found {
            (node.ready, node.lost) = (false, true);
        }
    }

    /// Returns whether pods stay away from a node.
    pub fn is_tainted(&self, cluster: &str, node: &str) -> bool {
        let inner = self.inner.lock();
        let found = inner.clusters.get(cluster).and_then(|cluster| cluster.nodes.get(node));
        found.is_some_and(|node| node.tainted)
    }

    /// Labels of a node.
    pub fn labels(&self, cluster: &str, node: &str) -> BTreeMap<String, String> {
        let inner = self.inner.lock();
        let found = inner.clusters.get(cluster).and_then(|cluster| cluster.nodes.get(node));
        found.map(|node| node.labels.clone()).unwrap_or_default()
    }

    /// Does something in the world, and lets go wrong what is to.
    async fn call<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> Result<T, Interrupted> {
        let (fault, done) = {
            let mut inner = self.inner.lock();
            inner.calls += 1;
            let number = inner.calls;
            let fault = inner.faults.remove(&number);
            let act_now = matches!(fault, None | Some(Fault::LoseAnswer | Fault::CrashAfter));
            (fault, act_now.then(|| act(&mut inner)))
        };
        match (fault, done) {
            (Some(Fault::CrashBefore | Fault::CrashAfter), _) => {
                self.crash.notify_one();
                std::future::pending().await
            }
            (Some(Fault::RefuseForGood), _) => Err(Interrupted::ForGood),
            (None, Some(done)) => Ok(done),
            _ => Err(Interrupted::ForNow),
        }
    }
}

/// A call did not come to its end.
enum Interrupted {
    ForNow,
    ForGood,
}

const LOST: &str = "connection reset";

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::ForNow => Self::Unavailable(LOST.into()),
            Interrupted::ForGood => Self::Refused("broken for good".into()),
        }
    }
}

impl From<Interrupted> for driver::Error {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::ForNow => Self::Unavailable(LOST.into()),
            Interrupted::ForGood => Self::Refused("broken for good".into()),
        }
    }
}

impl Inner {
    /// Names of the machines of a type, where their number is limited.
    fn of_type(&self, kind: &str) -> impl Iterator<Item = String> {
        let before = self.capacity.iter().take_while(|(name, _)| *name != kind);
        let first: u32 = before.map(|(_, count)| count).sum();
        let count = self.capacity.get(kind).copied().unwrap_or(0);
        let names = (first + 1..=first + count).map(|number| format!("sim-{number:05}"));
        names.filter(|name| !self.excluded.contains(name))
    }

    fn acquire(&mut self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        if let Some(known) = self.machines.get(&operation.0) {
            if known.cluster != request.cluster || known.name != request.name {
                self.violations.push(format!("operation {} is used twice", operation.0));
            }
            return Ok(Acquired { id: known.id.clone(), hostname: known.id.clone() });
        }
        let id = if self.capacity.is_empty() {
            self.serial += 1;
            format!("sim-{:05}", self.serial)
        } else {
            let kind = &request.instance_type;
            let none = || Error::NoneFree(format!("no machine of type {kind:?} is free"));
            let taken = |id: &String| self.machines.values().any(|m| m.id == *id);
            self.of_type(kind).find(|id| !taken(id)).ok_or_else(none)?
        };
        let machine = SimMachine {
            id: id.clone(),
            cluster: request.cluster.clone(),
            name: request.name.clone(),
            instance_type: request.instance_type.clone(),
        };
        self.machines.insert(operation.0.clone(), machine);
        Ok(Acquired { id: id.clone(), hostname: id })
    }

    fn configure(&mut self, machine: &Machine) {
        let mine = self.machines.get(&machine.operation);
        if mine.is_none_or(|m| m.cluster != machine.cluster || m.name != machine.name) {
            self.violations.push(format!("{} is configured and not ours", machine.name));
        }
        let cluster = self.clusters.entry(machine.cluster.clone()).or_default();
        let before = cluster.members.insert(machine.name.clone(), machine.wanted.clone());
        let restarts = before.as_ref().is_some_and(|before| *before != machine.wanted);
        let version = |text: &str| text.parse::<Version>().ok();
        let newer = before.and_then(|before| version(&before.control_plane));
        if newer > version(&machine.wanted.control_plane) {
            self.violations.push(format!("the API server of {} is taken back", machine.name));
        }
        if restarts && cluster.etcd.contains(&machine.name) && !cluster.is_quorum_without(machine) {
            let text = format!("{} is restarted and the others are no quorum", machine.name);
            self.violations.push(text);
        }
        if machine.is_control_plane() {
            if machine.founder && !cluster.etcd.is_empty() && !cluster.etcd.contains(&machine.name)
            {
                self.violations.push(format!("{} founds a second etcd", machine.name));
            }
            cluster.etcd.insert(machine.name.clone());
        }
        let fresh = SimNode { ready: true, ..SimNode::default() };
        let node = cluster.nodes.entry(machine.name.clone()).or_insert(fresh);
        node.restarted |= restarts;
        if std::mem::take(&mut node.hibernated) {
            node.ready = true;
        }
        self.check_skew(&machine.cluster);
    }

    /// Stops a machine. Workers have to be stopped before the API is.
    fn hibernate(&mut self, machine: &Machine) {
        let Some(cluster) = self.clusters.get_mut(&machine.cluster) else { return };
        let works = |(name, node): (&String, &SimNode)| {
            !cluster.etcd.contains(name) && !node.hibernated && !node.lost
        };
        if machine.is_control_plane() && cluster.nodes.iter().any(works) {
            self.violations.push(format!("{} is stopped before its workers", machine.name));
        }
        if let Some(node) = cluster.nodes.get_mut(&machine.name) {
            (node.ready, node.hibernated) = (false, true);
        }
    }

    fn check_skew(&mut self, name: &str) {
        let Some(cluster) = self.clusters.get(name) else { return };
        let read = |text: &str| text.parse::<Version>().ok();
        let control_plane: Vec<Version> =
            cluster.members.values().filter_map(|v| read(&v.control_plane)).collect();
        let kubelets: Vec<Version> =
            cluster.members.values().filter_map(|v| read(&v.kubelet)).collect();
        let stages = || cluster.members.values().map(|v| v.authority_stage);
        let apart = stages().max().unwrap_or(0) - stages().min().unwrap_or(0);
        if apart > 1 {
            self.violations.push(format!("{name}: members do not trust each other"));
        }
        let Ok(catalogue) = Catalogue::load(None) else { return };
        if let Err(why) = catalogue.skew.check(&control_plane, &kubelets) {
            self.violations.push(format!("{name}: {why}"));
        }
    }

    /// Takes a machine out of etcd, which has to work before and after.
    fn leave_etcd(&mut self, machine: &Machine) {
        let cluster = self.clusters.get(&machine.cluster);
        let votes = cluster.filter(|cluster| cluster.etcd.contains(&machine.name));
        if votes.is_some_and(|cluster| !cluster.loses_none_with(machine)) {
            self.violations.push(format!("{} leaves and no quorum is left", machine.name));
        }
        self.leave(machine);
    }

    fn leave(&mut self, machine: &Machine) {
        if let Some(cluster) = self.clusters.get_mut(&machine.cluster) {
            cluster.etcd.remove(&machine.name);
            cluster.members.remove(&machine.name);
            cluster.nodes.remove(&machine.name);
            if cluster.members.is_empty() {
                self.clusters.remove(&machine.cluster);
            }
        }
    }

    fn node(&mut self, machine: &Machine) -> Option<&mut SimNode> {
        self.clusters.get_mut(&machine.cluster)?.nodes.get_mut(&machine.name)
    }
}

#[async_trait]
impl Provider for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { disposable: false, problem: None }
    }

    fn exclude(&self, machines: BTreeSet<String>) -> bool {
        let mut inner = self.inner.lock();
        inner.excluded = machines;
        !inner.capacity.is_empty()
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        let inner = self.inner.lock();
        if inner.capacity.is_empty() {
            let instance_type = instance_type.to_owned();
            return Ok(vec![Offer { instance_type, total: None, free: None }]);
        }
        let fits = |kind: &&String| instance_type.is_empty() || *kind == instance_type;
        let offer = |kind: &String| {
            let total = u32::try_from(inner.of_type(kind).count()).unwrap_or(u32::MAX);
            let used = inner.machines.values().filter(|m| m.instance_type == *kind).count();
            let used = u32::try_from(used).unwrap_or(u32::MAX);
            let free = Some(total.saturating_sub(used));
            Offer { instance_type: kind.clone(), total: Some(total), free }
        };
        Ok(inner.capacity.keys().filter(fits).map(offer).collect())
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        self.call(|inner| inner.acquire(operation, request)).await?
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        let found = self.call(|inner| inner.machines.get(&operation.0).map(|m| m.id.clone()));
        let Some(id) = found.await? else {
            return Err(Error::Refused("the machine is gone".into()));
        };
        if self.inner.lock().broken.contains(&id) {
            let state = State::Failed("it is broken".into());
            return Ok(Observed { state, detail: "Failed deployment".into() });
        }
        if self.inner.lock().slow {
            return Ok(Observed { state: State::Deploying, detail: "Deploying".into() });
        }
        // Documentation's own addresses: nobody answers there.
        let number = id.trim_start_matches("sim-").parse::<u32>().unwrap_or(0);
        let address = format!("198.51.{}.{}", 100 + number / 256 % 100, number % 256);
        let agent = format!("{address}:8443");
        Ok(Observed { state: State::Up { address, agent }, detail: "Deployed".into() })
    }

    async fn release(&self, operation: &OperationId, _: Wipe) -> Result<bool, Error> {
        let released = self.call(|inner| drop(inner.machines.remove(&operation.0)));
        released.await?;
        Ok(true)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        let inner = self.inner.lock();
        let owned = inner.machines.iter();
        let owned = owned.map(|(operation, machine)| Owned {
            operation: OperationId(operation.clone()),
            id: machine.id.clone(),
        });
        Ok(owned.collect())
    }
}

#[async_trait]
impl Driver for Sim {
    async fn configure(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.call(|inner| inner.configure(machine)).await?;
        Ok(Progress::Done)
    }

    async fn hibernate(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.call(|inner| inner.hibernate(machine)).await?;
        Ok(Progress::Done)
    }

    async fn api(&self, cluster: &Snapshot) -> Result<Option<String>, driver::Error> {
        let up = |machine: &&Machine| machine.is_control_plane() && !machine.address.is_empty();
        let first = cluster.machines.iter().find(up);
        Ok(first.map(|machine| format!("{}:6443", machine.address)))
    }

    async fn join(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        let joined = self.call(|inner| {
            let node = inner.node(machine)?;
            node.labels = machine.labels.clone();
            node.tainted = machine.is_control_plane() && cluster.has_workers();
            (node.cordoned, node.restarted) = (false, false);
            Some(node.ready)
        });
        Ok(match joined.await? {
            Some(true) => Progress::Done,
            Some(false) => Progress::Waiting("the node is not ready".into()),
            None => Progress::Waiting("the node has not registered".into()),
        })
    }

    async fn nodes(&self, cluster: &Snapshot) -> Result<Vec<Node>, driver::Error> {
        let inner = self.inner.lock();
        let Some(known) = inner.clusters.get(&cluster.cluster.name) else {
            return Ok(Vec::new());
        };
        let node = |(name, node): (&String, &SimNode)| Node {
            name: name.clone(),
            ready: node.ready,
            unknown: node.lost,
            reason: if node.ready { String::new() } else { "the kubelet is silent".into() },
            schedulable: !node.cordoned,
            kubelet_version: known.members.get(name).map(|v| v.kubelet.clone()).unwrap_or_default(),
            delete_first: node.delete_first,
            tainted: node.tainted,
        };
        Ok(known.nodes.iter().map(node).collect())
    }

    async fn cordon(&self, _: &Snapshot, machine: &Machine) -> Result<(), driver::Error> {
        let cordoned = self.call(|inner| {
            if let Some(node) = inner.node(machine) {
                node.cordoned = true;
            }
        });
        Ok(cordoned.await?)
    }

    async fn drain(
        &self,
        _: &Snapshot,
        machine: &Machine,
        force: bool,
    ) -> Result<Progress, driver::Error> {
        let drained = self.call(|inner| match inner.node(machine) {
            Some(node) if !force => node.guarded,
            _ => 0,
        });
        Ok(match drained.await? {
            0 => Progress::Done,
            left => Progress::Waiting(format!("{left} pods may not be disrupted now")),
        })
    }

    async fn taint(&self, cluster: &Snapshot, machine: &Machine) -> Result<(), driver::Error> {
        let tainted = self.call(|inner| {
            if let Some(node) = inner.node(machine) {
                node.tainted = cluster.has_workers();
            }
        });
        Ok(tainted.await?)
    }

    async fn leave(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.call(|inner| inner.leave_etcd(machine)).await?;
        Ok(Progress::Done)
    }

    async fn answers(&self, machine: &Machine) -> bool {
        self.inner.lock().node(machine).is_some_and(|node| !node.lost)
    }

    async fn reset(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.call(|inner| inner.leave(machine)).await?;
        Ok(Progress::Done)
    }

    async fn obstacles(
        &self,
        cluster: &Snapshot,
        _: Version,
    ) -> Result<Vec<String>, driver::Error> {
        let inner = self.inner.lock();
        let nodes = inner.clusters.get(&cluster.cluster.name).map(|known| &known.nodes);
        let guarded = nodes.into_iter().flatten().filter(|(_, node)| node.guarded > 0);
        let listed =
            guarded.map(|(name, node)| format!("{} pods of {name} may not go", node.guarded));
        Ok(listed.collect())
    }

    async fn save(&self, cluster: &Snapshot, into: &mut Writer) -> Result<(), driver::Error> {
        let content = self.call(|_| cluster.cluster.name.clone().into_bytes()).await?;
        // As etcd does it.
        let digest = Sha256::digest(&content);
        into.write(&content)?;
        Ok(into.write(&digest)?)
    }
}
