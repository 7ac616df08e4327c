//! Changes that callers ask for: checked first, written in one transaction.

use selvage_api::cnct::kaas::api::{
    AddNodePoolMsg, ClusterStatus, DeleteNodePoolMsg, ScaleNodePoolMsg,
};
use selvage_store::{clock::Millis, transact};

use super::{Manager, versions_of};
use crate::{
    Error, Result,
    caller::Caller,
    catalogue::{Release, Version},
    conditions,
    error::violation,
    plan::Snapshot,
    record::{Cluster, Pool, pool_key},
    validate::{self, Limits},
};

/// Metadata of a request beside its message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Organisation that is to own what is made.
    pub organisation: String,
    /// By which the same request can be sent again.
    pub request_id: String,
    /// Goes on although something is missing.
    pub force: bool,
}

impl Manager {
    /// Deletes a cluster. Once it is being deleted, asking again changes
    /// nothing.
    pub async fn delete(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            if !snapshot.cluster.deleting {
                snapshot.cluster.deleting = true;
                snapshot.cluster.add_event(now, format!("{who} asked for it to be deleted"));
            }
            Ok(())
        })
        .await
    }

    /// Adds pools, all or none.
    pub async fn add_pools(&self, caller: &Caller, request: &AddNodePoolMsg) -> Result<Snapshot> {
        let limits = &self.settings().limits;
        let pools = validate::add_pools(&request.cluster_name, &request.worker_node_pools, limits)?;
        let snapshot = self.owned(caller, &request.cluster_name)?;
        let wanted: Vec<(&String, u32)> =
            pools.iter().map(|pool| (&pool.instance_type, pool.count)).collect();
        self.check_offers(&wanted).await?;
        self.edit(&snapshot.cluster.name, |snapshot, now| add_to(snapshot, &pools, limits, now))
            .await
    }

    /// Deletes pools, all or none.
    pub async fn delete_pools(
        &self,
        caller: &Caller,
        request: &DeleteNodePoolMsg,
    ) -> Result<Snapshot> {
        self.owned(caller, &request.cluster_name)?;
        let names = &request.node_pool_names;
        self.edit(&request.cluster_name, |snapshot, _| delete_from(snapshot, names)).await
    }

    /// Sets the sizes of pools, all or none.
    pub async fn scale(&self, caller: &Caller, request: &ScaleNodePoolMsg) -> Result<Snapshot> {
        let limits = &self.settings().limits;
        let sizes = validate::scale(&request.node_pools, limits)?;
        let snapshot = self.owned(caller, &request.cluster_name)?;
        check_pools(&snapshot, sizes.iter().map(|(name, _)| name))?;
        self.check_growth(&snapshot, &sizes).await?;
        self.edit(&request.cluster_name, |snapshot, _| resize(snapshot, &sizes, limits)).await
    }

    /// Refuses sizes of pools that no machines there are could ever satisfy.
    pub(super) async fn check_growth(
        &self,
        snapshot: &Snapshot,
        sizes: &[(String, u32)],
    ) -> Result<()> {
        let grown = snapshot.pools.iter().filter_map(|pool| {
            let (_, count) = sizes.iter().find(|(name, _)| *name == pool.name)?;
            (*count > pool.count).then_some((&pool.instance_type, *count))
        });
        self.check_offers(&grown.collect::<Vec<_>>()).await
    }

    /// Begins an upgrade. Asking for the version that is wanted already
    /// changes nothing.
    pub async fn upgrade(
        &self,
        caller: &Caller,
        origin: &Origin,
        name: &str,
        version: &str,
    ) -> Result<Snapshot> {
        let snapshot = self.owned(caller, name)?;
        let Some(wanted) = self.target(&snapshot, version, origin.force).await? else {
            return Ok(snapshot);
        };
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            self.aim_at(snapshot, wanted, origin.force)?;
            snapshot.cluster.add_event(now, format!("{who} asked for an upgrade to {wanted}"));
            Ok(())
        })
        .await
    }

    /// Version that an upgrade was asked to, if it is another one than is wanted already
    /// and nothing outside of the records speaks against it.
    pub(super) async fn target(
        &self,
        snapshot: &Snapshot,
        version: &str,
        force: bool,
    ) -> Result<Option<Version>> {
        if version.is_empty() {
            return Err(Error::field("version", "is empty: name the version to upgrade to"));
        }
        let wanted = version.parse::<Version>();
        let wanted = wanted
            .map_err(|error| Error::Invalid(vec![violation("version", error.to_string())]))?;
        if snapshot.cluster.version == wanted.to_string() && !snapshot.cluster.deleting {
            return Ok(None);
        }
        let Some(release) = self.catalogue().find(wanted) else {
            let names = self.catalogue().names();
            let text = format!("{wanted} is not on offer, which is {names}");
            return Err(Error::Precondition(text));
        };
        if let Some(lack) = self.provider().lacks(release) {
            return Err(Error::Precondition(lack));
        }
        let runs = conditions::status(&snapshot.cluster.conditions) == ClusterStatus::Running;
        if !force && runs {
            self.check_obstacles(snapshot, wanted).await?;
        }
        Ok(Some(wanted))
    }

    /// Refuses an upgrade that could not come to its end.
    pub(super) async fn check_obstacles(&self, snapshot: &Snapshot, to: Version) -> Result<()> {
        let name = &snapshot.cluster.name;
        let obstacles = match self.inner.dependencies.driver.obstacles(snapshot, to).await {
            Ok(obstacles) => obstacles,
            Err(error) => vec![format!("the API does not answer: {error}")],
        };
        if obstacles.is_empty() {
            return Ok(());
        }
        let why = obstacles.join("; ");
        let text = format!("cluster {name:?} cannot be upgraded to {to} now: {why}");
        Err(Error::Precondition(text))
    }

    /// Takes an upgrade back that no machine of the control plane has begun with:
    /// what etcd and the API wrote with the new version the old one may not read.
    pub async fn abort_upgrade(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            check_present(snapshot)?;
            let target = snapshot.cluster.version.clone();
            let (Some(from), _) = versions_of(snapshot) else { return Ok(()) };
            let from = from.to_string();
            if from == target {
                let text = format!("cluster {name:?} has no upgrade that could be aborted");
                return Err(Error::Precondition(text));
            }
            let mut planes = snapshot.machines.iter().filter(|m| m.is_control_plane());
            if let Some(begun) = planes.find(|m| m.wanted.control_plane != from) {
                return Err(Error::Precondition(format!(
                    "{} has begun with {}: the upgrade can only go on, or the backup from before \
                     it be restored",
                    begun.name, begun.wanted.control_plane
                )));
            }
            let cluster = &mut snapshot.cluster;
            cluster.set_target(from, Vec::new(), false);
            cluster.add_event(now, format!("{who} aborted the upgrade to {target}"));
            Ok(())
        })
        .await
    }

    /// Makes a version the one that is wanted, if the cluster can go there from where it is.
    pub(super) fn aim_at(&self, snapshot: &mut Snapshot, to: Version, force: bool) -> Result<()> {
        check_awake(snapshot)?;
        self.check_whole(snapshot, force)?;
        check_even(snapshot)?;
        let (from, oldest) = versions_of(snapshot);
        let from = from.unwrap_or(to);
        let lacks = |release: &Release| self.provider().lacks(release);
        let hops = self.catalogue().hops(from, to, oldest.unwrap_or(from), lacks);
        let hops = hops.map_err(Error::Precondition)?.iter().map(ToString::to_string).collect();
        snapshot.cluster.set_target(to.to_string(), hops, force);
        Ok(())
    }

    fn check_whole(&self, snapshot: &Snapshot, force: bool) -> Result<()> {
        let status = conditions::status(&snapshot.cluster.conditions);
        let right = match status {
            ClusterStatus::Running => true,
            ClusterStatus::Degraded => force,
            _ => false,
        };
        if !right {
            let mut text = format!(
                "cluster {:?} is {}: it can be upgraded when it is RUNNING",
                snapshot.cluster.name,
                status.as_str_name()
            );
            let message = conditions::message(snapshot, self.now());
            if !message.is_empty() {
                text = format!("{text}. {message}");
            }
            return Err(Error::Precondition(text));
        }
        Ok(())
    }

    /// Leaves the cluster as it is, or goes on with it.
    pub async fn pause(&self, caller: &Caller, name: &str, paused: bool) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            check_present(snapshot)?;
            if snapshot.cluster.paused != paused {
                let what = if paused { "paused" } else { "resumed" };
                snapshot.cluster.add_event(now, format!("{who} {what} the cluster"));
                snapshot.cluster.paused_at = if paused { now } else { 0 };
            }
            snapshot.cluster.paused = paused;
            Ok(())
        })
        .await
    }

    /// The cluster, if the caller may change it.
    pub(super) fn owned(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        let snapshot = self.find(name)?;
        caller.check_owns(&snapshot.cluster)?;
        Ok(snapshot)
    }

    /// Changes a cluster and its pools in one transaction. The body runs again
    /// when somebody was faster.
    pub(super) async fn edit(
        &self,
        name: &str,
        mut body: impl FnMut(&mut Snapshot, u64) -> Result<()>,
    ) -> Result<Snapshot> {
        let now = self.now();
        let committed = transact(&self.inner.store, |tx| {
            // The body is pure, so it can run before anything is read for good.
            let known = self.find(name);
            let edited = known.and_then(|before| {
                let mut after = before.clone();
                body(&mut after, now)?;
                Ok((before, after))
            });
            async move {
                let (before, mut after) = edited?;
                // The view may be behind: only what it shows as it is counts.
                let stored = tx.get::<Cluster>(&before.cluster.name).await?;
                match stored {
                    None => return Err(Error::ClusterNotFound(before.cluster.name)),
                    Some(stored) if stored != before.cluster => {
                        return Err(selvage_store::Error::Aborted { attempts: 0 }.into());
                    }
                    Some(_) => {}
                }
                if before == after {
                    return Ok(after);
                }
                if size(&after) > size(&before) {
                    self.reserve(&tx, &after).await?;
                }
                after.cluster.generation += 1;
                after.cluster.conditions = conditions::evaluate(&after, now);
                for pool in &after.pools {
                    let old = before.pools.iter().find(|old| old.name == pool.name);
                    if old != Some(pool) {
                        let stored = tx.get::<Pool>(&pool_key(&pool.cluster, &pool.name)).await?;
                        if stored.as_ref() != old {
                            return Err(selvage_store::Error::Aborted { attempts: 0 }.into());
                        }
                        tx.put(pool)?;
                    }
                }
                tx.put(&after.cluster)?;
                Ok::<_, Error>(after)
            }
        })
        .await;
        match committed {
            Ok(committed) => {
                self.inner.clusters.wait_for(committed.revision).await?;
                self.inner.pools.wait_for(committed.revision).await?;
                Ok(committed.value)
            }
            Err(Error::Store(selvage_store::Error::Aborted { attempts: 0 })) => {
                // Somebody changed it meanwhile: look again.
                let revision = self.inner.store.revision().await?;
                self.inner.clusters.wait_for(revision).await?;
                self.inner.pools.wait_for(revision).await?;
                Box::pin(self.edit(name, body)).await
            }
            Err(error) => Err(error),
        }
    }
}

/// Adds pools, all or none.
pub(super) fn add_to(
    snapshot: &mut Snapshot,
    pools: &[Pool],
    limits: &Limits,
    now: Millis,
) -> Result<()> {
    check_changeable(snapshot)?;
    let known = |pool: &&Pool| snapshot.pools.iter().any(|p| p.name == pool.name);
    let taken: Vec<String> = pools.iter().filter(known).map(|pool| pool.name.clone()).collect();
    if !taken.is_empty() {
        let cluster = snapshot.cluster.name.clone();
        return Err(Error::PoolExists { cluster, pools: taken });
    }
    let fresh = pools.iter().map(|pool| Pool { created_at: now, ..pool.clone() });
    snapshot.pools.extend(fresh);
    check_total(snapshot, limits)
}

/// Marks pools to be deleted, all or none.
pub(super) fn delete_from(snapshot: &mut Snapshot, names: &[String]) -> Result<()> {
    check_changeable(snapshot)?;
    check_pools(snapshot, names.iter())?;
    for pool in &mut snapshot.pools {
        pool.deleting |= names.contains(&pool.name);
    }
    Ok(())
}

/// Sets the sizes of pools, all or none.
pub(super) fn resize(
    snapshot: &mut Snapshot,
    sizes: &[(String, u32)],
    limits: &Limits,
) -> Result<()> {
    check_changeable(snapshot)?;
    check_pools(snapshot, sizes.iter().map(|(name, _)| name))?;
    for pool in &mut snapshot.pools {
        if let Some((_, count)) = sizes.iter().find(|(name, _)| *name == pool.name) {
            pool.count = *count;
        }
    }
    check_total(snapshot, limits)
}

/// Refuses an upgrade of a cluster that is between two versions already: what the newest
/// of its control planes wrote an older one may not read.
fn check_even(snapshot: &Snapshot) -> Result<()> {
    let Cluster { name, version, .. } = &snapshot.cluster;
    let runs = |running: &String| !running.is_empty() && running != version;
    let other = snapshot
        .machines
        .iter()
        .find(|machine| runs(&machine.running.control_plane) || runs(&machine.running.kubelet));
    let Some(machine) = other else { return Ok(()) };
    let text = format!(
        "cluster {name:?} is on its way to {version}, and {} runs another version: upgrade it \
         after that",
        machine.name
    );
    Err(Error::Precondition(text))
}

/// Number of machines that a cluster is to have.
pub(super) fn size(snapshot: &Snapshot) -> u32 {
    let pools = snapshot.pools.iter().filter(|pool| !pool.deleting);
    pools.fold(snapshot.cluster.control_plane.count, |sum, pool| sum.saturating_add(pool.count))
}

fn check_total(snapshot: &Snapshot, limits: &Limits) -> Result<()> {
    let (pools, nodes) = (limits.pools, limits.nodes);
    let count = snapshot.pools.iter().filter(|pool| !pool.deleting).count();
    if count > pools {
        return Err(Error::Exhausted(format!("a cluster has at most {pools} pools")));
    }
    if size(snapshot) > nodes {
        return Err(Error::Exhausted(format!("a cluster has at most {nodes} nodes")));
    }
    Ok(())
}

pub(super) fn check_present(snapshot: &Snapshot) -> Result<()> {
    if snapshot.cluster.deleting {
        let text = format!("cluster {:?} is being deleted", snapshot.cluster.name);
        return Err(Error::Precondition(text));
    }
    Ok(())
}

/// Refuses changes of a cluster that hibernates.
pub(super) fn check_awake(snapshot: &Snapshot) -> Result<()> {
    match snapshot.cluster.hibernated {
        true => Err(Error::hibernated(&snapshot.cluster)),
        false => Ok(()),
    }
}

/// Refuses changes of pools while the control plane is between two versions.
fn check_changeable(snapshot: &Snapshot) -> Result<()> {
    check_present(snapshot)?;
    check_awake(snapshot)?;
    let target = &snapshot.cluster.version;
    let behind = snapshot.machines.iter().any(|machine| {
        machine.is_control_plane()
            && !machine.running.control_plane.is_empty()
            && machine.running.control_plane != *target
    });
    if behind {
        let text = format!(
            "the control plane of cluster {:?} is being upgraded to {target}: change pools after \
             that",
            snapshot.cluster.name
        );
        return Err(Error::Precondition(text));
    }
    Ok(())
}

/// Refuses names of pools that are not there, all of them.
fn check_pools<'a>(snapshot: &Snapshot, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let known =
        |name: &&String| !snapshot.pools.iter().any(|pool| pool.name == **name && !pool.deleting);
    let missing: Vec<String> = names.filter(known).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::PoolNotFound { cluster: snapshot.cluster.name.clone(), pools: missing })
}
