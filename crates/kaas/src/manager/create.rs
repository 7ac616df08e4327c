//! New clusters: checked first, written in one transaction.

use prost::Message;
use selvage_api::cnct::kaas::api::CreateClusterMsg;
use selvage_store::{Transaction, transact};
use sha2::{Digest, Sha256};

use super::{Manager, Origin, change::size};
use crate::{
    Error, Result,
    caller::{self, Caller},
    catalogue::Release,
    conditions,
    plan::Snapshot,
    record::{Cluster, Pool, Reservation},
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
        let (new, organisation) = self.check_request(caller, origin, request)?;
        let digest = Sha256::digest(request.encode_to_vec()).to_vec();
        if let Some(known) = self.snapshot(&new.name) {
            return self.repeated(caller, known, &origin.request_id, &digest);
        }
        let snapshot = self.prepare(caller, origin, (new, organisation), digest).await?;
        let created = transact(&self.inner.store, async |tx| {
            self.reserve(&tx, &snapshot).await?;
            tx.create(&snapshot.cluster).await?;
            for pool in &snapshot.pools {
                // What is left of an earlier cluster of this name is not ours.
                tx.create(pool).await?;
            }
            Ok::<_, Error>(())
        })
        .await;
        let revision = match created {
            Ok(committed) => committed.revision,
            Err(Error::Store(selvage_store::Error::AlreadyExists { .. })) => {
                self.inner.clusters.wait_for(self.inner.store.revision().await?).await?;
                let known = self.find(&snapshot.cluster.name)?;
                let digest = &snapshot.cluster.request_digest;
                return self.repeated(caller, known, &origin.request_id, digest);
            }
            Err(error) => return Err(error),
        };
        self.inner.clusters.wait_for(revision).await?;
        self.inner.pools.wait_for(revision).await?;
        Ok(snapshot)
    }

    /// Checks a request for a cluster, and whose it would be.
    pub(super) fn check_request(
        &self,
        caller: &Caller,
        origin: &Origin,
        request: &CreateClusterMsg,
    ) -> Result<(NewCluster, String)> {
        let new = self.check_new(request)?;
        let organisation = caller.organisation(&origin.organisation)?;
        caller::check_cluster_name(&organisation, &new.name)?;
        Ok((new, organisation))
    }

    /// The cluster as it would begin, if it can be had.
    pub(super) async fn prepare(
        &self,
        caller: &Caller,
        origin: &Origin,
        (new, organisation): (NewCluster, String),
        request_digest: Vec<u8>,
    ) -> Result<Snapshot> {
        self.check_trusted(caller, &organisation)?;
        self.check_supply(&new).await?;
        Ok(self.begin(caller, origin, new, organisation, request_digest))
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
        if let Some(warning) = validate::warning(&cluster.control_plane) {
            cluster.add_event(now, format!("warning: {warning}"));
        }
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
    pub(super) async fn check_supply(&self, new: &NewCluster) -> Result<()> {
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
        self.check_offers(&wanted).await
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

    /// Refuses machines beyond those that the organisation of the cluster may have, in the
    /// transaction that asks for them: of two at once that would be too much together, the
    /// second one begins again and sees the first.
    pub(super) async fn reserve(&self, tx: &Transaction, after: &Snapshot) -> Result<()> {
        let organisation = &after.cluster.organisation;
        if self.quota_of(organisation).is_none() {
            return Ok(());
        }
        let known = tx.get::<Reservation>(organisation).await?;
        // Everybody who reserves changes the record, so what is read now holds until then.
        let revision = self.inner.store.revision().await?;
        self.inner.clusters.wait_for(revision).await?;
        self.inner.pools.wait_for(revision).await?;
        self.check_quota(after)?;
        let count = known.map_or(0, |known| known.count) + 1;
        tx.put(&Reservation { organisation: organisation.clone(), count })?;
        Ok(())
    }

    /// Number of machines that an organisation may have, if that is limited.
    fn quota_of(&self, organisation: &str) -> Option<u32> {
        let limit = self.settings().limits.organisation;
        (limit > 0 && !organisation.is_empty()).then_some(limit)
    }

    /// Refuses a cluster, as it would be, with which its organisation has too many machines.
    pub(super) fn check_quota(&self, after: &Snapshot) -> Result<()> {
        let organisation = &after.cluster.organisation;
        let Some(limit) = self.quota_of(organisation) else { return Ok(()) };
        let theirs = self.inner.clusters.by_index("organisation", organisation);
        let others = theirs.iter().filter(|known| known.key != after.cluster.name);
        let others = others.filter_map(|known| self.snapshot(&known.key));
        let sum = others.fold(size(after), |sum, other| sum.saturating_add(size(&other)));
        if sum > limit {
            return Err(Error::Exhausted(format!(
                "organisation {organisation} may have {limit} machines and asks for {sum}"
            )));
        }
        Ok(())
    }
}
