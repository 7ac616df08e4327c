//! Volumes for claims: what external-provisioner and external-resizer do
//! elsewhere, for the claims of this machine.
//!
//! Every machine serves the claims whose pods were placed on it, and those for
//! copies of what it has, so there is no leader and nothing to hand over. What is
//! to be done is read from the API each time; only what was begun and is not in
//! the API yet is kept on the disk.

mod claim;
pub(crate) mod follow;
pub(crate) mod made;
mod pending;
mod source;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kube::{
    Connection, Context, Objects,
    k8s_openapi::api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    kube::{
        Api, Client, Resource, ResourceExt,
        api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    },
    resource,
};
use selvage_work::{Failure, Reconcile, Summary};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    DRIVER, Error, Result,
    driver::Shared,
    snapshotter::{self, object},
    volume::{self, VolumeId},
    wire::csi::CapacityRange,
};

pub(crate) use pending::Pending;

/// Between two tries of what has failed.
const AGAIN: Duration = Duration::from_secs(2);

/// Makes, grows and removes volumes for the claims of this machine.
pub(crate) struct Provisioner {
    shared: Shared,
    cluster: Arc<Connection>,
    pending: Pending,
}

/// The API as it was read for one pass.
struct View {
    client: Client,
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
    classes: BTreeMap<String, StorageClass>,
    /// Snapshots and their contents, where a claim asks for one.
    snapshots: Vec<DynamicObject>,
    contents: Vec<DynamicObject>,
}

impl View {
    async fn read(client: Client) -> Result<Self> {
        // From the memory of the API server: every machine asks.
        let any = ListParams::default().match_any();
        let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
        let claims: Vec<PersistentVolumeClaim> =
            claims.list(&any).await.context("listing claims")?.items;
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volumes = volumes.list(&any).await.context("listing volumes")?.items;
        let classes: Api<StorageClass> = Api::all(client.clone());
        let classes = classes.list(&any).await.context("listing storage classes")?.items;
        let classes = classes.into_iter().map(|class| (class.name_any(), class)).collect();
        let is_copy = |claim: &PersistentVolumeClaim| {
            claim::is_open(claim) && matches!(source::named(claim), Ok(Some(_)))
        };
        let (mut snapshots, mut contents) = (Vec::new(), Vec::new());
        if claims.iter().any(is_copy) {
            snapshots = snapshotter::list(&client, object::SNAPSHOT).await?;
            contents = snapshotter::list(&client, object::CONTENT).await?;
        }
        Ok(Self { client, claims, volumes, classes, snapshots, contents })
    }

    fn claim_of(&self, volume: &PersistentVolume) -> Option<&PersistentVolumeClaim> {
        let meant = volume.spec.as_ref()?.claim_ref.as_ref()?;
        self.claims.iter().find(|claim| claim.metadata.uid == meant.uid)
    }
}

impl Provisioner {
    pub(crate) fn new(shared: Shared, cluster: Arc<Connection>, pending: Pending) -> Self {
        Self { shared, cluster, pending }
    }

    pub(crate) async fn pass(&self) -> Result<Summary> {
        let view = View::read(self.cluster.client().await?).await?;
        let mut summary = Summary::default();
        let node = &self.shared.node;
        for claim in view.claims.iter().filter(|claim| view.is_for(claim, node)) {
            let made = self.provision(&view, claim).await;
            self.note(&mut summary, &view.client, claim, "ProvisioningFailed", made).await;
        }
        for volume in view.volumes.iter().filter(|volume| made::is_on(volume, node)) {
            if made::is_to_go(volume) {
                let removed = self.remove(&view.client, volume).await;
                self.note(&mut summary, &view.client, volume, "VolumeFailedDelete", removed).await;
            } else if let Some(claim) = view.claim_of(volume)
                && let Some(bytes) = made::wanted_size(volume, claim)
            {
                let grown = self.grow(&view.client, volume, bytes).await;
                self.note(&mut summary, &view.client, claim, "VolumeResizeFailed", grown).await;
            }
        }
        self.forget(&view.client, &mut summary).await?;
        Ok(summary)
    }

    /// Counts what was done, and tells whose volume it is what was not.
    async fn note<K>(
        &self,
        summary: &mut Summary,
        client: &Client,
        about: &K,
        reason: &str,
        outcome: Result<()>,
    ) where
        K: Resource<DynamicType = ()>,
    {
        match outcome {
            Ok(()) => summary.changes += 1,
            Err(error) => {
                let name = about.name_any();
                tracing::warn!(%error, name, "volume of a claim");
                summary.again = Some(AGAIN);
                if let Err(error) = record_event(client, about, reason, &error.to_string()).await {
                    tracing::debug!(%error, name, "cannot be told in the cluster");
                }
            }
        }
    }

    /// Makes the volume of a claim.
    async fn provision(&self, view: &View, claim: &PersistentVolumeClaim) -> Result<()> {
        let name = claim::volume_name(claim);
        if view.volumes.iter().any(|volume| volume.name_any() == name) {
            return Ok(());
        }
        let class = claim::class_name(claim).and_then(|name| view.classes.get(name));
        let class = class.ok_or_else(|| Error::invalid("storageClassName", "is not there"))?;
        let plan = claim::plan(claim, class)?;
        let id = VolumeId::for_name(&name, &plan.device_class);
        let source = view.source_of(claim)?;
        if let Some(source) = &source {
            source.check_mode(plan.block)?;
            volume::same_class(&id, source.origin.id())?;
        }
        self.pending.begin(&id, claim)?;
        let range = CapacityRange { required_bytes: plan.bytes.cast_signed(), limit_bytes: 0 };
        let made = match &source {
            None => self.shared.make(&id, Some(&range)).await,
            Some(source) => self.shared.make_from(&id, &source.origin, Some(&range)).await,
        };
        let size = match made {
            // A copy can be made nowhere else.
            Err(error @ Error::NoRoom(_)) if source.is_none() => {
                self.give_back(&view.client, claim).await?;
                return Err(error);
            }
            other => other?,
        };
        let volume = plan.volume(claim, class, &id, size, &self.shared.node);
        let volumes: Api<PersistentVolume> = Api::all(view.client.clone());
        match volumes.create(&PostParams::default(), &volume).await.context("making the volume") {
            // Another pass was faster.
            Err(error) if error.code() == selvage_api::Code::Aborted => {}
            other => drop(other?),
        }
        tracing::info!(volume = %id, claim = claim.name_any(), "was made");
        self.pending.end(&id)
    }

    /// Lets the scheduler look for another machine.
    async fn give_back(&self, client: &Client, claim: &PersistentVolumeClaim) -> Result<()> {
        let namespace = claim.namespace().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let patch = json!({ "metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { claim::SELECTED_NODE: null },
        }});
        let params = PatchParams::default();
        claims
            .patch(&claim.name_any(), &params, &Patch::Merge(patch))
            .await
            .context("its claim")?;
        Ok(())
    }

    /// Removes a volume that nobody claims any more.
    async fn remove(&self, client: &Client, volume: &PersistentVolume) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        if made::is_deleted_with(volume) {
            let handle = made::handle(volume).unwrap_or_default();
            self.shared.remove(&handle.parse()?).await?;
            tracing::info!(volume = handle, "was removed");
        }
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_none() {
            let params = DeleteParams::default();
            selvage_kube::ignore_not_found(volumes.delete(&name, &params).await)
                .context("removing the volume")?;
        }
        let left: Vec<&String> =
            volume.finalizers().iter().filter(|one| *one != made::FINALIZER).collect();
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": left } }));
        let patched = volumes.patch(&name, &PatchParams::default(), &patch).await;
        selvage_kube::ignore_not_found(patched).context("letting the volume go").map(drop)?;
        Ok(())
    }

    /// Grows a volume; the kubelet grows the file system when it sees the size.
    async fn grow(&self, client: &Client, volume: &PersistentVolume, bytes: u64) -> Result<()> {
        let id: VolumeId = made::handle(volume).unwrap_or_default().parse()?;
        let range = CapacityRange { required_bytes: bytes.cast_signed(), limit_bytes: 0 };
        let size = self.shared.expand(&id, Some(&range)).await?;
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let patch = json!({ "spec": { "capacity": { "storage": size.to_string() } } });
        let params = PatchParams::default();
        let patched = volumes.patch(&volume.name_any(), &params, &Patch::Merge(patch)).await;
        patched.context("the volume's size")?;
        tracing::info!(volume = %id, size, "was grown");
        Ok(())
    }

    /// Removes what was begun for a claim that is gone, or is another machine's.
    async fn forget(&self, client: &Client, summary: &mut Summary) -> Result<()> {
        for begun in self.pending.all()? {
            let volumes: Api<PersistentVolume> = Api::all(client.clone());
            let claims: Api<PersistentVolumeClaim> =
                Api::namespaced(client.clone(), &begun.namespace);
            // Asked anew, not from memory: what is removed is gone.
            let volume = volumes.get_opt(&begun.volume()).await.context("reading the volume")?;
            let claim = claims.get_opt(&begun.claim).await.context("reading the claim")?;
            let wanted = claim.is_some_and(|claim| {
                let here = claim::is_placed(&claim, &self.shared.node) || source::has_one(&claim);
                claim.uid().as_ref() == Some(&begun.uid) && claim::is_open(&claim) && here
            });
            if volume.is_none() && wanted {
                summary.again = Some(AGAIN);
                continue;
            }
            if volume.is_none() {
                self.shared.remove(&begun.id()?).await?;
                summary.changes += 1;
            }
            self.pending.end(&begun.id()?)?;
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Provisioner {
    fn name(&self) -> &str {
        "volumes of claims"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        self.pass().await.map_err(|error| Failure::new(error.code(), error.to_string()))
    }
}

/// Makes an event of what is wrong; the same again is the same event.
async fn record_event<K>(client: &Client, about: &K, reason: &str, message: &str) -> Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let namespace = about.namespace().unwrap_or_else(|| "default".to_owned());
    let text = format!("{reason}{message}{:?}", about.uid());
    let digest = hex::encode(&Sha256::digest(text)[..8]);
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let reference = about.object_ref(&());
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{}.{digest}", about.name_any()), "namespace": namespace },
        "involvedObject": reference,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": { "component": DRIVER },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    let events = Objects::namespaced(client, &namespace, &resource("", "v1", "Event"));
    events.apply(&event).await?;
    Ok(())
}
