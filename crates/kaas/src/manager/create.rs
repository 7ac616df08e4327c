//! New clusters: checked first, written in one transaction.

use prost::Message;
use selvage_api::cnct::kaas::api::CreateClusterMsg;
use selvage_store::transact;
use sha2::{Digest, Sha256};

use super::{Manager, Origin, change::size};
use crate::{
    Error, Result,
    caller::{self, Caller},
    catalogue::Release,
    conditions,
    plan::Snapshot,
    record::{Cluster, Pool},
    validate::{self, NewCluster},
};

impl Manager {
    /// Makes a cluster. The same request with the same id gives the same
    /// answer.
    pub async fn create(
        &self,
        caller: &Caller,
        origin: &Origin,
        request: &CreateClusterMsg,
    ) -> Result<Snapshot> {
        let new = self.check_new(request)?;
        let organisation = caller.organisation(&origin.organisation)?;
        caller::check_cluster_name(&organisation, &new.name)?;
        let digest = Sha256::digest(request.encode_to_vec()).to_vec();
        if let Some(known) = self.snapshot(&new.name) {
            return self.repeated(caller, known, &origin.request_id, &digest);
        }
        self.check_trusted(caller, &organisation)?;
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

    /// Checks a request for a cluster. Where it names no version it gets the
    /// newest one that the provider's machines can run.
    pub(super) fn check_new(&self, request: &CreateClusterMsg) -> Result<NewCluster> {
        let limits = &self.settings().limits;
        let runs = |release: &&Release| self.provider().lacks(release).is_none();
        let newest = self.catalogue().releases().iter().rev().find(runs);
        match newest {
            Some(release) if request.k8s_version.is_empty() => {
                let k8s_version = release.version.to_string();
                let request = CreateClusterMsg { k8s_version, ..request.clone() };
                validate::create(&request, self.catalogue(), limits)
            }
            _ => validate::create(request, self.catalogue(), limits),
        }
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
        cluster.add_event(now, format!("{} asked for the cluster", caller.name));
        let pools = new.pools.into_iter().map(|pool| Pool { created_at: now, ..pool }).collect();
        let mut snapshot = Snapshot { cluster, pools, machines: Vec::new() };
        snapshot.cluster.conditions = conditions::evaluate(&snapshot, now);
        snapshot
    }

    /// Refuses those who may not be root on the provider's machines.
    pub(super) fn check_trusted(&self, caller: &Caller, organisation: &str) -> Result<()> {
        if caller.admin || self.provider().trusts(organisation) {
            return Ok(());
        }
        Err(Error::Denied(format!(
            "{} may not have clusters on the host of the controller, where a privileged pod is \
             root: ask an administrator to make it, to name {organisation:?} in \
             kaas.local.organisations, or to use another kaas.provider",
            caller.name
        )))
    }

    /// Refuses what no machine there is could ever satisfy.
    pub(super) async fn check_supply(&self, new: &NewCluster, organisation: &str) -> Result<()> {
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

    pub(super) async fn check_offers(&self, wanted: &[(&String, u32)]) -> Result<()> {
        self.exclude_quarantined();
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
                let text = format!("machines{kind} asked for: {count}; there are {total}");
                return Err(Error::Exhausted(self.none_free(text)));
            }
        }
        Ok(())
    }

    pub(super) fn check_quota(&self, organisation: &str, more: u32) -> Result<()> {
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
}
