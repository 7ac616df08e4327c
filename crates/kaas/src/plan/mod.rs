//! The planner: from what is wanted and what is, to what to do next.
//!
//! It is a pure function. It knows the order in which machines come and go,
//! which of them may change at the same time, and which versions may run
//! together; it does nothing itself. Whoever runs it does what it says, writes
//! down what came of it, and asks again.

mod action;
mod hibernate;
mod preview;
mod remedy;
mod rotate;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use selvage_store::clock::Millis;

pub use action::{Action, Step};
pub use preview::preview;

use crate::{
    catalogue::Version,
    record::{Cluster, Machine, Phase, Pool, Versions},
};

/// A cluster with all that belongs to it, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub cluster: Cluster,
    pub pools: Vec<Pool>,
    /// In the order of their names.
    pub machines: Vec<Machine>,
}

impl Snapshot {
    /// Returns whether there are machines for pods alone, or are to be.
    pub fn has_workers(&self) -> bool {
        self.pools.iter().any(|pool| !pool.deleting && pool.count > 0)
    }
}

/// Settings of how clusters are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Longest time from a machine's request to its being ready, for each step
    /// on the way.
    pub step_timeout: Duration,
    /// Machines of one pool that are upgraded at the same time.
    pub max_unavailable: usize,
    /// Machines whose agent is away and whose node is not ready for so long are
    /// replaced; zero: never.
    pub remediate_after: Duration,
    /// Machines that fail to come up so often are set aside; zero: never.
    pub quarantine_after: u32,
    /// Longest time for which a disruption budget may keep pods on a machine that is
    /// drained; zero: for ever.
    pub drain_timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        // MaaS itself gives up on a deployment after half an hour.
        Self {
            step_timeout: Duration::from_secs(30 * 60),
            max_unavailable: 1,
            remediate_after: Duration::from_secs(10 * 60),
            quarantine_after: 3,
            drain_timeout: Duration::from_secs(60 * 60),
        }
    }
}

/// Actions to take next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Independent of each other.
    pub actions: Vec<Action>,
    /// When time alone changes the plan.
    pub wake_at: Option<Millis>,
}

/// Returns what to do next for a cluster.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Millis) -> Plan {
    let mut planner = Planner { snapshot, policy, now, plan: Plan::default() };
    planner.run();
    planner.plan
}

struct Planner<'s> {
    snapshot: &'s Snapshot,
    policy: &'s Policy,
    now: Millis,
    plan: Plan,
}

impl<'s> Planner<'s> {
    fn run(&mut self) {
        let cluster = &self.snapshot.cluster;
        if cluster.deleting {
            return self.delete();
        }
        if cluster.paused {
            return;
        }
        if cluster.hibernated {
            return self.hibernate();
        }
        self.replace_all();
        self.remedy();
        self.size();
        if !self.rotate() {
            self.upgrade();
        }
        for machine in &self.snapshot.machines {
            if let Some(step) = self.step(machine) {
                self.act(Action::Step { machine: machine.name.clone(), step });
            }
        }
    }

    fn act(&mut self, action: Action) {
        self.plan.actions.push(action);
    }

    fn wake(&mut self, at: Millis) {
        self.plan.wake_at = Some(self.plan.wake_at.map_or(at, |known| known.min(at)));
    }

    fn delete(&mut self) {
        if self.snapshot.machines.is_empty() {
            return self.act(Action::Finish);
        }
        for machine in &self.snapshot.machines {
            if self.is_due(machine) {
                self.act(Action::Step { machine: machine.name.clone(), step: Step::Release });
            }
        }
    }

    /// Returns whether the time has come for a next attempt.
    fn is_due(&mut self, machine: &Machine) -> bool {
        let due = machine.retry_at <= self.now;
        if !due {
            self.wake(machine.retry_at);
        }
        due
    }

    /// Machines of the control plane, or of a pool, that are to stay.
    fn staying(&self, pool: &str) -> impl Iterator<Item = &'s Machine> {
        let of_pool = move |machine: &&Machine| machine.pool == pool;
        let stays = move |machine: &&Machine| !machine.removing && !self.is_from_before(machine);
        self.snapshot.machines.iter().filter(of_pool).filter(stays)
    }

    /// Returns whether a machine belongs to the cluster as it was before a snapshot was restored.
    fn is_from_before(&self, machine: &Machine) -> bool {
        machine.created_at < self.snapshot.cluster.restored_at
    }

    /// Lets machines go that know nothing of the snapshot that was restored.
    fn replace_all(&mut self) {
        let going = |m: &&Machine| !m.removing && self.is_from_before(m);
        let going = self.snapshot.machines.iter().filter(going);
        let actions: Vec<Action> =
            going.map(|m| Action::Remove { machine: m.name.clone() }).collect();
        self.plan.actions.extend(actions);
    }

    /// Makes the number of machines right.
    fn size(&mut self) {
        let cluster = &self.snapshot.cluster;
        self.size_of("", cluster.control_plane.count);
        for pool in &self.snapshot.pools {
            let wanted = if pool.deleting { 0 } else { pool.count };
            self.size_of(&pool.name, wanted);
            let empty = self.snapshot.machines.iter().all(|machine| machine.pool != pool.name);
            if pool.deleting && empty {
                self.act(Action::ForgetPool { pool: pool.name.clone() });
            }
        }
    }

    fn size_of(&mut self, pool: &str, wanted: u32) {
        let mut machines: Vec<&Machine> = self.staying(pool).collect();
        let wanted = wanted as usize;
        if machines.len() < wanted {
            if self.snapshot.cluster.retry_at > self.now {
                return self.wake(self.snapshot.cluster.retry_at);
            }
            let missing = wanted - machines.len();
            let versions = self.version_of_new(pool);
            let add = Action::Add { pool: pool.to_owned(), wanted: versions };
            return self.plan.actions.extend(std::iter::repeat_n(add, missing));
        }
        machines.sort_by_key(|machine| victim_order(machine));
        let surplus = machines.len() - wanted;
        let victims: Vec<String> =
            machines.iter().take(surplus).map(|machine| machine.name.clone()).collect();
        for machine in victims {
            self.act(Action::Remove { machine });
        }
    }

    /// Versions that a new machine starts with: never ahead of the oldest API
    /// server it may talk to.
    fn version_of_new(&self, pool: &str) -> Versions {
        let current = self.snapshot.machines.iter().filter(|m| !self.is_from_before(m));
        let running = current.map(|machine| &machine.running.control_plane);
        let oldest = running.filter_map(|version| version.parse::<Version>().ok()).min();
        let version = match oldest {
            Some(oldest) => oldest.to_string(),
            None => self.snapshot.cluster.version.clone(),
        };
        let control_plane = if pool.is_empty() { version.clone() } else { String::new() };
        let authority_stage = self.snapshot.cluster.authorities.stage;
        Versions { control_plane, kubelet: version, authority_stage }
    }

    /// Gives machines another version: the control plane first, one at a time,
    /// then nodes, a few of each pool at a time.
    fn upgrade(&mut self) {
        let target = self.next_version();
        let control_plane: Vec<&Machine> = self.staying("").collect();
        let whole = control_plane.len() >= self.snapshot.cluster.control_plane.count as usize;
        let settled = |machine: &&Machine| is_settled(machine);
        let stale = control_plane.iter().find(|m| m.wanted.control_plane != *target);
        if let Some(machine) = stale {
            let wanted = Versions { control_plane: target.clone(), ..machine.wanted.clone() };
            let next = Action::Retarget { machine: machine.name.clone(), wanted };
            if whole && control_plane.iter().all(settled) && self.is_backed_up(target) {
                self.act(next);
            }
            return;
        }
        if control_plane.iter().any(|m| m.running.control_plane != *target) {
            return;
        }
        for machines in by_pool(self.snapshot).into_values() {
            let moving = machines.iter().filter(|machine| !is_settled(machine)).count();
            let room = self.policy.max_unavailable.saturating_sub(moving);
            let stale = machines
                .iter()
                .filter(|machine| is_settled(machine) && machine.wanted.kubelet != *target);
            for machine in stale.take(room) {
                let wanted = Versions { kubelet: target.clone(), ..machine.wanted.clone() };
                let machine = machine.name.clone();
                self.act(Action::Retarget { machine, wanted });
            }
        }
    }

    /// Version that the control plane goes to next: the first one of its path that a
    /// machine of it does not run yet. Nodes wait for the last one; until then they are
    /// no more minors behind than an upgrade may go forward, which is a legal skew.
    fn next_version(&self) -> &'s String {
        let cluster = &self.snapshot.cluster;
        let read = |version: &String| version.parse::<Version>().ok();
        let running: Vec<Version> =
            self.staying("").filter_map(|m| read(&m.running.control_plane)).collect();
        let reached = |version: &String| {
            read(version).is_some_and(|version| running.iter().all(|runs| *runs >= version))
        };
        let mut hops = cluster.hops.iter();
        hops.find(|version| !reached(version)).unwrap_or(&cluster.version)
    }

    /// Returns whether there is a snapshot from before the control plane gets that version;
    /// asks for one if not.
    fn is_backed_up(&mut self, version: &str) -> bool {
        let cluster = &self.snapshot.cluster;
        if cluster.backed_up_for == version {
            return true;
        }
        match cluster.backup_retry_at <= self.now {
            true => self.act(Action::Backup { version: version.to_owned() }),
            false => self.wake(cluster.backup_retry_at),
        }
        false
    }

    /// The next step of one machine.
    fn step(&mut self, machine: &Machine) -> Option<Step> {
        if !self.is_due(machine) {
            return None;
        }
        if machine.removing {
            return Some(self.removal(machine));
        }
        match machine.phase() {
            Phase::Requested => Some(Step::Acquire),
            Phase::Allocated | Phase::Deploying => self.in_time(machine, Step::Observe),
            Phase::Booting => self.may_start(machine).then_some(Step::Configure),
            Phase::Bootstrapping => self.in_time(machine, Step::Configure),
            Phase::Joining => self.in_time(machine, Step::Join),
            Phase::Upgrading => Some(Step::Configure),
            Phase::Cordoned | Phase::Draining => Some(self.drain(machine)),
            Phase::Ready | Phase::NotReady if machine.wanted == machine.running => None,
            Phase::Ready | Phase::NotReady if self.drains(machine) => Some(Step::Cordon),
            Phase::Ready | Phase::NotReady => Some(Step::Configure),
            Phase::Failed | Phase::Removing | Phase::Releasing => Some(Step::Release),
            Phase::Hibernated => self.may_wake(machine).then_some(Step::Wake),
        }
    }

    /// The step, unless the machine had its time and did not use it.
    fn in_time(&mut self, machine: &Machine, step: Step) -> Option<Step> {
        let limit = u64::try_from(self.policy.step_timeout.as_millis()).unwrap_or(u64::MAX);
        let until = machine.since.saturating_add(limit);
        // One that took work before is not given up.
        if !machine.was_ready() {
            if until <= self.now {
                return Some(Step::Fail);
            }
            self.wake(until);
        }
        Some(step)
    }

    /// Returns whether Kubernetes may be started on a machine now. The first machine
    /// of the control plane founds the cluster; the others join one after the
    /// other, because each changes what a majority of etcd is; workers need an
    /// API to register with.
    fn may_start(&self, machine: &Machine) -> bool {
        let others = |m: &&Machine| m.is_control_plane() && m.name != machine.name;
        let mut others = self.snapshot.machines.iter().filter(others);
        if !machine.is_control_plane() {
            return self.api_is_up();
        }
        if !self.snapshot.cluster.provisioned {
            let first = self.staying("").find(|m| m.phase() == Phase::Booting);
            let nobody = !others.any(|m| m.phase().is_member() || m.phase() == Phase::Releasing);
            return nobody && first.is_some_and(|first| first.name == machine.name);
        }
        let moving = |m: &Machine| {
            m.phase().is_member() && !matches!(m.phase(), Phase::Ready | Phase::NotReady)
        };
        let next = self.staying("").find(|m| m.phase() == Phase::Booting);
        self.api_is_up()
            && !others.any(moving)
            && next.is_some_and(|next| next.name == machine.name)
    }

    fn api_is_up(&self) -> bool {
        let serves = |machine: &Machine| {
            machine.is_control_plane()
                && !machine.running.control_plane.is_empty()
                && machine.phase().is_member()
                && !matches!(machine.phase(), Phase::NotReady | Phase::Hibernated)
        };
        self.snapshot.cluster.provisioned && self.snapshot.machines.iter().any(serves)
    }

    /// Returns whether pods are moved away before the machine changes: the kubelet
    /// changes, and there is somewhere to go.
    fn drains(&self, machine: &Machine) -> bool {
        let takes_work = |other: &Machine| {
            other.name != machine.name && other.phase() == Phase::Ready && !other.cordoned
        };
        machine.wanted.kubelet != machine.running.kubelet
            && self.snapshot.machines.iter().any(takes_work)
    }

    /// Step that moves pods away: by eviction, until the time for it is over.
    fn drain(&self, machine: &Machine) -> Step {
        let limit = u64::try_from(self.policy.drain_timeout.as_millis()).unwrap_or(u64::MAX);
        let late = machine.phase() == Phase::Draining
            && limit > 0
            && machine.since.saturating_add(limit) <= self.now;
        if late { Step::ForceDrain } else { Step::Drain }
    }

    /// The next step of a machine that goes.
    fn removal(&self, machine: &Machine) -> Step {
        match machine.phase() {
            Phase::Releasing => Step::Release,
            phase if phase.is_before_kubernetes() => Step::Release,
            _ if !self.snapshot.cluster.provisioned => Step::Release,
            Phase::Hibernated => Step::Wake,
            Phase::Ready | Phase::NotReady | Phase::Upgrading => Step::Cordon,
            Phase::Cordoned | Phase::Draining => self.drain(machine),
            _ => Step::Leave,
        }
    }
}

/// Machines that are to stay, by pool.
fn by_pool(snapshot: &Snapshot) -> BTreeMap<&str, Vec<&Machine>> {
    let mut pools: BTreeMap<&str, Vec<&Machine>> = BTreeMap::new();
    for machine in snapshot.machines.iter().filter(|machine| !machine.removing) {
        pools.entry(&machine.pool).or_default().push(machine);
    }
    pools
}

/// Returns whether a machine is ready and nothing is being changed about it.
pub(crate) fn is_settled(machine: &Machine) -> bool {
    machine.phase() == Phase::Ready
        && machine.wanted == machine.running
        && !machine.cordoned
        && !machine.removing
}

/// Order in which machines go when a pool shrinks: those that somebody marked,
/// then those that do no work yet or no longer, then the youngest.
fn victim_order(machine: &Machine) -> (u8, std::cmp::Reverse<Millis>, &str) {
    let rank = match machine.phase() {
        _ if machine.delete_first => 0,
        Phase::Failed => 1,
        phase if phase.is_coming_up() => 2,
        Phase::NotReady => 3,
        _ => 4,
    };
    (rank, std::cmp::Reverse(machine.created_at), &machine.name)
}
