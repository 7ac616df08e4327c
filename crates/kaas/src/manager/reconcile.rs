//! One cluster, brought closer to what is wanted.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, stream};
use selvage_store::clock::Millis;

use super::{Manager, step::Outcome};
use crate::{
    Result, conditions,
    driver::Node,
    plan::{Action, Snapshot, plan},
    record::{Cluster, Machine, NodeFacts, Phase, machine_key},
};

/// Machines of one cluster that are worked on at the same time.
const PARALLEL: usize = 16;
/// Rounds of planning in one run; what is left comes in the next.
const ROUNDS: usize = 10_000;
/// Checks in a row that may fail before a control plane counts as gone.
const SILENT_CHECKS: u32 = 3;

/// When nodes of a cluster were last looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Health {
    at: Millis,
    silent: u32,
}

impl Manager {
    /// Does everything that can be done for a cluster now, and says after what
    /// time to look again. `None`: nothing is left to do until something
    /// changes.
    pub async fn reconcile(&self, name: &str) -> Result<Option<Duration>> {
        let mut waiting = BTreeSet::new();
        let mut again = None;
        for _ in 0..ROUNDS {
            let Some(snapshot) = self.snapshot(name) else {
                self.inner.health.lock().remove(name);
                return Ok(None);
            };
            let plan = plan(&snapshot, &self.inner.settings.policy, self.now());
            again = plan.wake_at.map(|at| self.until(at));
            let (steps, mut records): (Vec<Action>, Vec<Action>) =
                plan.actions.into_iter().partition(|a| matches!(a, Action::Step { .. }));
            let backup = records.extract_if(.., |a| matches!(a, Action::Backup { .. })).next();
            let done = |a: &mut Action| matches!(a, Action::ForgetAuthorities { .. });
            if records.extract_if(.., done).next().is_some() {
                self.end_rotation(&snapshot).await?;
                continue;
            }
            if self.without_spare(&snapshot, &records).await? {
                continue;
            }
            if !records.is_empty() {
                if !self.change_members(&snapshot, &records).await? {
                    self.catch_up().await?;
                }
                continue;
            }
            if let Some(Action::Backup { version }) = backup {
                self.secure(&snapshot, &version).await?;
                continue;
            }
            if !self.take_steps(&snapshot, steps, &mut waiting).await? {
                break;
            }
        }
        self.sync_members(name).await;
        self.refresh(name).await?;
        if !waiting.is_empty() {
            again = sooner(again, self.inner.settings.poll);
        }
        for next in [self.check_health(name).await?, self.back_up_in_time(name).await?] {
            again = next.map_or(again, |next| sooner(again, next));
        }
        Ok(again)
    }

    pub(super) fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()).max(1))
    }

    /// Waits until the views show what the store has.
    async fn catch_up(&self) -> Result<()> {
        let revision = self.inner.store.revision().await?;
        self.inner.clusters.wait_for(revision).await?;
        self.inner.pools.wait_for(revision).await?;
        self.inner.machines.wait_for(revision).await?;
        Ok(())
    }

    /// Takes the steps of machines that did not say already that they have to
    /// wait. False if there was none.
    async fn take_steps(
        &self,
        snapshot: &Snapshot,
        steps: Vec<Action>,
        waiting: &mut BTreeSet<String>,
    ) -> Result<bool> {
        let due = steps.into_iter().filter_map(|action| match action {
            Action::Step { machine, step } if !waiting.contains(&machine) => Some((machine, step)),
            _ => None,
        });
        let due: Vec<_> = due.collect();
        if due.is_empty() {
            return Ok(false);
        }
        let mut running = stream::iter(due.into_iter().map(|(name, step)| async move {
            let outcome = match snapshot.machines.iter().find(|machine| machine.name == name) {
                Some(machine) => self.take(snapshot, machine, step).await,
                None => Ok(Outcome::Waiting),
            };
            (name, outcome)
        }))
        .buffer_unordered(PARALLEL);
        while let Some((name, outcome)) = running.next().await {
            if outcome? == Outcome::Waiting {
                waiting.insert(name);
            }
        }
        Ok(true)
    }

    /// Tells members what changed around them. What fails is tried again with
    /// the next look at the cluster.
    async fn sync_members(&self, name: &str) {
        let Some(snapshot) = self.snapshot(name) else { return };
        let Cluster { provisioned, deleting, hibernated, .. } = snapshot.cluster;
        if !provisioned || deleting || hibernated {
            return;
        }
        if let Err(error) = self.inner.dependencies.driver.sync(&snapshot).await {
            tracing::warn!(cluster = name, %error, "members do not know of the last change");
        }
    }

    /// Writes down the conditions of a cluster, if they changed.
    async fn refresh(&self, name: &str) -> Result<()> {
        let Some(snapshot) = self.snapshot(name) else { return Ok(()) };
        let now = self.now();
        let found = conditions::evaluate(&snapshot, now);
        if same(&found, &snapshot.cluster.conditions) {
            return Ok(());
        }
        let status = conditions::status(&found);
        let generation = snapshot.cluster.generation;
        let change = |cluster: &mut Cluster| {
            // Somebody asked for something else meanwhile: this is about what was before.
            if cluster.generation != generation {
                return Ok(());
            }
            if conditions::status(&cluster.conditions) != status {
                cluster.add_event(now, format!("status is {}", status.as_str_name()));
            }
            cluster.conditions.clone_from(&found);
            Ok::<_, selvage_store::Error>(())
        };
        match self.inner.clusters.update(name, change).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at the nodes of a cluster that runs, every now and then, and says
    /// when to look again.
    async fn check_health(&self, name: &str) -> Result<Option<Duration>> {
        let Some(snapshot) = self.snapshot(name) else { return Ok(None) };
        let watched = |m: &Machine| matches!(m.phase(), Phase::Ready | Phase::NotReady);
        let cluster = &snapshot.cluster;
        let watches = cluster.provisioned && !cluster.deleting && !cluster.hibernated;
        if !watches || !snapshot.machines.iter().any(watched) {
            return Ok(None);
        }
        let period = self.inner.settings.health_period;
        let now = self.now();
        let known = self.inner.health.lock().get(name).copied().unwrap_or_default();
        let next = known.at.saturating_add(u64::try_from(period.as_millis()).unwrap_or(u64::MAX));
        if known.at > 0 && next > now {
            return Ok(Some(self.until(next)));
        }
        let silent = match self.inner.dependencies.driver.nodes(&snapshot).await {
            Ok(nodes) => {
                self.note_nodes(&snapshot, &nodes).await?;
                self.taint_control_plane(&snapshot, &nodes).await;
                self.follow_api(&snapshot).await?;
                0
            }
            Err(error) => {
                let silent = known.silent + 1;
                if silent >= SILENT_CHECKS {
                    self.note_silence(&snapshot, &error.to_string()).await?;
                }
                silent
            }
        };
        self.note_lost(name).await?;
        self.inner.health.lock().insert(name.to_owned(), Health { at: now, silent });
        self.refresh(name).await?;
        Ok(Some(period))
    }

    /// Writes down which API server callers are to be led to, if it is another.
    async fn follow_api(&self, snapshot: &Snapshot) -> Result<()> {
        let Ok(Some(endpoint)) = self.inner.dependencies.driver.api(snapshot).await else {
            return Ok(());
        };
        if endpoint == snapshot.cluster.endpoint {
            return Ok(());
        }
        let now = self.now();
        let change = |cluster: &mut Cluster| {
            cluster.add_event(now, format!("the API answers at {endpoint}"));
            cluster.endpoint.clone_from(&endpoint);
            Ok::<_, selvage_store::Error>(())
        };
        match self.inner.clusters.update(&snapshot.cluster.name, change).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets when the nodes of a cluster were last looked at.
    pub fn check_soon(&self, name: &str) {
        self.inner.health.lock().remove(name);
    }

    async fn note_nodes(&self, snapshot: &Snapshot, nodes: &[Node]) -> Result<()> {
        for machine in &snapshot.machines {
            let found = nodes.iter().find(|node| node.name == machine.name);
            let (ready, reason) = match found {
                Some(node) => (node.ready, node.reason.as_str()),
                None => (false, "the node is not registered"),
            };
            let delete_first = found.is_some_and(|node| node.delete_first);
            let facts = found.map(facts_of).unwrap_or_default();
            self.note_node(machine, ready, reason, delete_first, facts).await?;
        }
        Ok(())
    }

    /// Keeps pods away from the control plane as long as there are workers: pools came or
    /// went since its machines joined. What fails is tried again with the next look.
    async fn taint_control_plane(&self, snapshot: &Snapshot, nodes: &[Node]) {
        let wanted = snapshot.has_workers();
        for machine in snapshot.machines.iter().filter(|machine| machine.is_control_plane()) {
            let joined = matches!(machine.phase(), Phase::Ready | Phase::NotReady);
            let found = nodes.iter().find(|node| node.name == machine.name);
            if !joined || found.is_none_or(|node| node.tainted == wanted) {
                continue;
            }
            if let Err(error) = self.inner.dependencies.driver.taint(snapshot, machine).await {
                let (cluster, machine) = (&machine.cluster, &machine.name);
                tracing::warn!(cluster, machine, %error, "the node keeps its old taint");
            }
        }
    }

    async fn note_silence(&self, snapshot: &Snapshot, why: &str) -> Result<()> {
        for machine in snapshot.machines.iter().filter(|machine| machine.is_control_plane()) {
            let reason = format!("the API does not answer: {why}");
            let (first, facts) = (machine.delete_first, machine.node.clone());
            self.note_node(machine, false, &reason, first, facts).await?;
        }
        Ok(())
    }

    async fn note_node(
        &self,
        machine: &Machine,
        ready: bool,
        reason: &str,
        delete_first: bool,
        facts: NodeFacts,
    ) -> Result<()> {
        let phase = match machine.phase() {
            Phase::Ready | Phase::NotReady if ready => Phase::Ready,
            Phase::Ready | Phase::NotReady => Phase::NotReady,
            _ => return Ok(()),
        };
        let known = (machine.phase(), machine.delete_first, &machine.node);
        if known == (phase, delete_first, &facts) {
            return Ok(());
        }
        let (before, now) = (machine.phase(), self.now());
        let change = |record: &mut Machine| {
            if record.phase() == before && record.operation == machine.operation {
                record.delete_first = delete_first;
                record.node.clone_from(&facts);
                record.enter(phase, if ready { "" } else { reason }, now);
            }
            Ok::<_, selvage_store::Error>(())
        };
        let key = machine_key(&machine.cluster, &machine.name);
        match self.inner.machines.update(&key, change).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn facts_of(node: &Node) -> NodeFacts {
    NodeFacts {
        unschedulable: !node.schedulable,
        unknown: node.unknown,
        kubelet: node.kubelet_version.clone(),
    }
}

fn sooner(a: Option<Duration>, b: Duration) -> Option<Duration> {
    Some(a.map_or(b, |a| a.min(b)))
}

/// Returns whether conditions are the same apart from their messages, which change
/// with every machine and are of interest to nobody by themselves.
fn same(a: &[crate::record::Condition], b: &[crate::record::Condition]) -> bool {
    let alike = |(a, b): (&crate::record::Condition, &crate::record::Condition)| {
        a.kind == b.kind && a.holds == b.holds && a.reason == b.reason
    };
    a.len() == b.len() && a.iter().zip(b).all(alike)
}
