//! Changes that callers ask for: checked first, written in one transaction.

use prost::Message;
use selvage_api::cnct::kaas::api::{
    AddNodePoolMsg, ClusterStatus, CreateClusterMsg, DeleteNodePoolMsg, ScaleNodePoolMsg,
};
use selvage_store::transact;
use sha2::{Digest, Sha256};

use super::{Manager, versions_of};
use crate::{
    Error, Result,
    caller::Caller,
    conditions,
    error::violation,
    plan::Snapshot,
    record::{Cluster, Pool, pool_key},
    validate::{self, NewCluster},
};

/// What a request says of itself beside its message.
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
    /// Makes a cluster. The same request with the same id gives the same
    /// answer.
    pub async fn create(
        &self,
        caller: &Caller,
        origin: &Origin,
        request: &CreateClusterMsg,
    ) -> Result<Snapshot> {
        let new = validate::create(request, self.catalogue(), &self.settings().limits)?;
        let organisation = caller.organisation(&origin.organisation)?;
        let digest = Sha256::digest(request.encode_to_vec()).to_vec();
        if let Some(known) = self.snapshot(&new.name) {
            return self.repeated(caller, known, &origin.request_id, &digest);
        }
        self.check_supply(&new, &organisation).await?;
        let snapshot = self.begin(caller, origin, new, organisation, digest);
        let created = transact(&self.inner.store, async |tx| {
            tx.create(&snapshot.cluster).await?;
            for pool in &snapshot.pools {
                // What is left of an earlier cluster of this name is not ours.
                tx.create(pool).await?;
            }
            Ok::<_, selvage_store::Error>(())
        })
        .await;
        let revision = match created {
            Ok(committed) => committed.revision,
            Err(selvage_store::Error::AlreadyExists { .. }) => {
                self.inner.clusters.wait_for(self.inner.store.revision().await?).await?;
                let known = self.find(&snapshot.cluster.name)?;
                let digest = &snapshot.cluster.request_digest;
                return self.repeated(caller, known, &origin.request_id, digest);
            }
            Err(error) => return Err(error.into()),
        };
        self.inner.clusters.wait_for(revision).await?;
        self.inner.pools.wait_for(revision).await?;
        Ok(snapshot)
    }

    /// The cluster that the same request made before.
    fn repeated(
        &self,
        caller: &Caller,
        known: Snapshot,
        request_id: &str,
        digest: &[u8],
    ) -> Result<Snapshot> {
        let cluster = &known.cluster;
        let same = !request_id.is_empty()
            && cluster.request_id == request_id
            && cluster.request_digest == digest
            && caller.sees(cluster);
        if same { Ok(known) } else { Err(Error::ClusterExists(cluster.name.clone())) }
    }

    pub(super) fn begin(
        &self,
        caller: &Caller,
        origin: &Origin,
        new: NewCluster,
        organisation: String,
        request_digest: Vec<u8>,
    ) -> Snapshot {
        let now = self.now();
        let mut cluster = Cluster {
            name: new.name,
            uid: uuid::Uuid::new_v4().to_string(),
            organisation,
            created_by: caller.name.clone(),
            created_at: now,
            version: new.version.to_string(),
            control_plane: new.control_plane,
            generation: 1,
            request_id: origin.request_id.clone(),
            request_digest,
            provider: self.provider().name().to_owned(),
            ..Cluster::default()
        };
        cluster.tell(now, format!("{} asked for the cluster", caller.name));
        let pools = new.pools.into_iter().map(|pool| Pool { created_at: now, ..pool }).collect();
        let mut snapshot = Snapshot { cluster, pools, machines: Vec::new() };
        snapshot.cluster.conditions = conditions::evaluate(&snapshot, now);
        snapshot
    }

    /// Refuses what no machine there is could ever satisfy.
    async fn check_supply(&self, new: &NewCluster, organisation: &str) -> Result<()> {
        let provider = self.provider();
        if let Some(problem) = provider.capabilities().problem {
            return Err(Error::Provider(problem));
        }
        if let Some(release) = self.catalogue().find(new.version)
            && let Some(lack) = provider.lacks(release)
        {
            return Err(Error::Precondition(lack));
        }
        let mut wanted = vec![(&new.control_plane.instance_type, new.control_plane.count)];
        wanted.extend(new.pools.iter().map(|pool| (&pool.instance_type, pool.count)));
        self.check_offers(&wanted).await?;
        let sum = wanted.iter().fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
        self.check_quota(organisation, sum)
    }

    async fn check_offers(&self, wanted: &[(&String, u32)]) -> Result<()> {
        for (instance_type, _) in wanted {
            let count = wanted
                .iter()
                .filter(|(other, _)| other == instance_type)
                .fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
            let offers = self.provider().offers(instance_type).await;
            let offers = offers.map_err(|error| Error::Provider(error.to_string()))?;
            if offers.iter().any(|offer| offer.total.is_none()) {
                continue;
            }
            let total: u32 = offers.iter().filter_map(|offer| offer.total).sum();
            if count > total {
                let kind = match instance_type.as_str() {
                    "" => String::new(),
                    kind => format!(" of type {kind:?}"),
                };
                return Err(Error::Exhausted(format!(
                    "{count} machines{kind} are asked for and there are {total}"
                )));
            }
        }
        Ok(())
    }

    fn check_quota(&self, organisation: &str, more: u32) -> Result<()> {
        let limit = self.settings().limits.organisation;
        if limit == 0 || organisation.is_empty() {
            return Ok(());
        }
        let theirs = self.inner.clusters.by_index("organisation", organisation);
        let used: u32 = theirs.iter().filter_map(|c| self.snapshot(&c.key)).map(size).sum();
        if used.saturating_add(more) > limit {
            return Err(Error::Exhausted(format!(
                "organisation {organisation} may have {limit} machines and asks for {}",
                used.saturating_add(more)
            )));
        }
        Ok(())
    }

    /// Deletes a cluster. Once it is being deleted, asking again changes
    /// nothing.
    pub async fn delete(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            if !snapshot.cluster.deleting {
                snapshot.cluster.deleting = true;
                snapshot.cluster.tell(now, format!("{who} asked for it to be deleted"));
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
        self.check_quota(&snapshot.cluster.organisation, wanted.iter().map(|(_, n)| n).sum())?;
        let most = (limits.pools, limits.nodes);
        self.edit(&request.cluster_name, |snapshot, now| {
            check_changeable(snapshot)?;
            let known = |pool: &&Pool| snapshot.pools.iter().any(|p| p.name == pool.name);
            let taken: Vec<String> =
                pools.iter().filter(known).map(|pool| pool.name.clone()).collect();
            if !taken.is_empty() {
                let cluster = snapshot.cluster.name.clone();
                return Err(Error::PoolExists { cluster, pools: taken });
            }
            let fresh = pools.iter().map(|pool| Pool { created_at: now, ..pool.clone() });
            snapshot.pools.extend(fresh);
            check_total(snapshot, most)
        })
        .await
    }

    /// Deletes pools, all or none.
    pub async fn delete_pools(
        &self,
        caller: &Caller,
        request: &DeleteNodePoolMsg,
    ) -> Result<Snapshot> {
        self.owned(caller, &request.cluster_name)?;
        self.edit(&request.cluster_name, |snapshot, _| {
            check_changeable(snapshot)?;
            check_pools(snapshot, request.node_pool_names.iter())?;
            for pool in &mut snapshot.pools {
                pool.deleting |= request.node_pool_names.contains(&pool.name);
            }
            Ok(())
        })
        .await
    }

    /// Sets the sizes of pools, all or none.
    pub async fn scale(&self, caller: &Caller, request: &ScaleNodePoolMsg) -> Result<Snapshot> {
        let limits = &self.settings().limits;
        let sizes = validate::scale(&request.node_pools, limits)?;
        let snapshot = self.owned(caller, &request.cluster_name)?;
        check_pools(&snapshot, sizes.iter().map(|(name, _)| name))?;
        let size_of = |pool: &Pool| {
            let found = sizes.iter().find(|(name, _)| *name == pool.name);
            found.map_or(pool.count, |(_, count)| *count)
        };
        let grown = snapshot.pools.iter().filter(|pool| size_of(pool) > pool.count);
        let wanted: Vec<(&String, u32)> =
            grown.map(|pool| (&pool.instance_type, size_of(pool))).collect();
        self.check_offers(&wanted).await?;
        let most = (limits.pools, limits.nodes);
        self.edit(&request.cluster_name, |snapshot, _| {
            check_changeable(snapshot)?;
            check_pools(snapshot, sizes.iter().map(|(name, _)| name))?;
            for pool in &mut snapshot.pools {
                pool.count = size_of(pool);
            }
            check_total(snapshot, most)
        })
        .await
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
        if version.is_empty() {
            return Err(Error::field("version", "is empty: name the version to upgrade to"));
        }
        let wanted = version.parse::<crate::catalogue::Version>();
        let wanted = wanted
            .map_err(|error| Error::Invalid(vec![violation("version", error.to_string())]))?;
        let target = wanted.to_string();
        if snapshot.cluster.version == target && !snapshot.cluster.deleting {
            return Ok(snapshot);
        }
        let Some(release) = self.catalogue().find(wanted) else {
            let names = self.catalogue().names();
            let text = format!("{wanted} is not on offer, which is {names}");
            return Err(Error::Precondition(text));
        };
        if let Some(lack) = self.provider().lacks(release) {
            return Err(Error::Precondition(lack));
        }
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            self.check_upgrade(snapshot, wanted, origin.force)?;
            snapshot.cluster.version.clone_from(&target);
            snapshot.cluster.tell(now, format!("{who} asked for an upgrade to {target}"));
            Ok(())
        })
        .await
    }

    fn check_upgrade(
        &self,
        snapshot: &Snapshot,
        to: crate::catalogue::Version,
        force: bool,
    ) -> Result<()> {
        let status = conditions::status(&snapshot.cluster.conditions);
        let right = match status {
            ClusterStatus::Running => true,
            ClusterStatus::Degraded => force,
            _ => false,
        };
        if !right {
            let text = format!(
                "cluster {:?} is {}: it can be upgraded when it is RUNNING",
                snapshot.cluster.name,
                status.as_str_name()
            );
            return Err(Error::Precondition(text));
        }
        let (from, oldest) = versions_of(snapshot);
        let from = from.unwrap_or(to);
        let step = self.catalogue().check_step(from, to, oldest.unwrap_or(from));
        step.map_err(Error::Precondition)
    }

    /// Leaves the cluster as it is, or goes on with it.
    pub async fn pause(&self, caller: &Caller, name: &str, paused: bool) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = caller.name.clone();
        self.edit(name, |snapshot, now| {
            check_present(snapshot)?;
            if snapshot.cluster.paused != paused {
                let what = if paused { "paused" } else { "resumed" };
                snapshot.cluster.tell(now, format!("{who} {what} the cluster"));
            }
            snapshot.cluster.paused = paused;
            Ok(())
        })
        .await
    }

    /// The cluster, if the caller may change it.
    fn owned(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        let snapshot = self.find(name)?;
        caller.check_owns(&snapshot.cluster)?;
        Ok(snapshot)
    }

    /// Changes a cluster and its pools in one transaction. The body runs again
    /// when somebody was faster.
    async fn edit(
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

fn size(snapshot: Snapshot) -> u32 {
    let pools = snapshot.pools.iter().filter(|pool| !pool.deleting);
    pools.fold(snapshot.cluster.control_plane.count, |sum, pool| sum.saturating_add(pool.count))
}

fn check_total(snapshot: &Snapshot, (pools, nodes): (usize, u32)) -> Result<()> {
    let count = snapshot.pools.iter().filter(|pool| !pool.deleting).count();
    if count > pools {
        return Err(Error::Exhausted(format!("a cluster has at most {pools} pools")));
    }
    if size(snapshot.clone()) > nodes {
        return Err(Error::Exhausted(format!("a cluster has at most {nodes} nodes")));
    }
    Ok(())
}

fn check_present(snapshot: &Snapshot) -> Result<()> {
    if snapshot.cluster.deleting {
        let text = format!("cluster {:?} is being deleted", snapshot.cluster.name);
        return Err(Error::Precondition(text));
    }
    Ok(())
}

/// Refuses changes of pools while the control plane is between two versions.
fn check_changeable(snapshot: &Snapshot) -> Result<()> {
    check_present(snapshot)?;
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
