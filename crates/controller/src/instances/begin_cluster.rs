//! Starting operations on ClusterInsts: read, decide, write, in one
//! transaction.

use selvage_api::edgeproto::{
    App, AppKey, Cloudlet, CloudletInfo, Cluster, ClusterInst, DeleteType, Flavor, TrackedState,
};
use selvage_store::Transaction;

use super::books;
use super::cluster_ops::{ClusterWork, CreateClusterInst, DeleteClusterInst, UpdateClusterInst};
use super::core::{Asked, Begun, By, Core};
use super::error::{Error, Refusal};
use super::plan::{Origin, cluster as plan};
use super::state::Goal;
use crate::guard::refer;
use crate::keys::{ClusterInstKeyParts, KeyText};
use crate::row::Kept;

impl Core {
    pub(crate) async fn begin_create_cluster(
        &self,
        by: By<'_>,
        request: &ClusterInst,
        origin: Origin,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Create, request, cloudlet };
        self.begin::<CreateClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            self.create_cluster(&tx, request, origin).await?;
            Ok((work(request, None), Vec::new()))
        })
        .await
    }

    /// Checks and writes a new ClusterInst.
    pub(super) async fn create_cluster(
        &self,
        tx: &Transaction,
        request: &ClusterInst,
        origin: Origin,
    ) -> Result<ClusterInst, Refusal> {
        let settings = &self.settings;
        let world = read_world(tx, request).await?;
        let existing = world.existing.clone();
        let planned = plan::create(request, origin, world, settings)?;
        if let Some(existing) = existing {
            books::leave_cluster_but_apps(tx, &existing).await?;
        }
        let limits = settings.enforce_resources.then_some(&planned.info);
        let (flavor, cloudlet) = (&planned.flavor, &planned.cloudlet);
        Ok(books::enter_cluster(tx, planned.inst, flavor, cloudlet, limits).await?)
    }

    pub(crate) async fn begin_update_cluster(
        &self,
        by: By<'_>,
        request: &ClusterInst,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Update, request, cloudlet };
        self.begin::<UpdateClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            let (before, info) = read_row(&tx, request).await?;
            let (after, notes) = plan::update(request, before.clone(), info.as_ref())?;
            let enforced = self.settings.enforce_resources;
            let limits = info.as_ref().filter(|_| enforced);
            if let Some(before) = &before {
                books::resize_cluster(&tx, before, after, info.as_ref(), limits).await?;
            }
            Ok((work(request, before.as_ref()), notes))
        })
        .await
    }

    pub(crate) async fn begin_delete_cluster(
        &self,
        by: By<'_>,
        request: &ClusterInst,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Delete, request, cloudlet };
        self.begin::<DeleteClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            let (existing, info) = read_row(&tx, request).await?;
            let in_use = is_in_use(&tx, request, None).await?;
            plan::delete(request, existing.as_ref(), info.as_ref(), in_use)?;
            let state = work(request, existing.as_ref());
            if let Some(mut inst) = existing {
                inst.set_state(TrackedState::DeletePrepare);
                books::put(&tx, inst)?;
            }
            Ok((state, Vec::new()))
        })
        .await
    }
}

fn work(request: &ClusterInst, before: Option<&ClusterInst>) -> ClusterWork {
    ClusterWork {
        key: request.key.clone(),
        crm_override: request.crm_override,
        before: before.map_or(0, |before| before.state),
        errors_before: before.map(|before| before.errors.clone()).unwrap_or_default(),
        adopted: false,
    }
}

pub(super) async fn read_world(
    tx: &Transaction,
    request: &ClusterInst,
) -> Result<plan::World, Error> {
    let key = request.object_key();
    let cloudlet = key.cloudlet_or_empty().text();
    let cluster = books::get::<Cluster>(tx, &key.cluster_or_empty().text()).await?;
    let flavor = plan::flavor_key(request, cluster.as_ref());
    Ok(plan::World {
        existing: books::get(tx, &key.text()).await?,
        cloudlet: refer::<Cloudlet>(tx, &cloudlet).await?,
        info: books::get(tx, &cloudlet).await?,
        flavor: refer::<Flavor>(tx, &flavor.text()).await?,
        cluster,
    })
}

async fn read_row(
    tx: &Transaction,
    request: &ClusterInst,
) -> Result<(Option<ClusterInst>, Option<CloudletInfo>), Error> {
    let key = request.object_key();
    let info = books::get(tx, &key.cloudlet_or_empty().text()).await?;
    Ok((books::get(tx, &key.text()).await?, info))
}

/// Whether Apps run in a cluster that do not go with it. One App may be left
/// out of account. An App that is not there any more counts: nobody said that
/// it may go.
pub(super) async fn is_in_use(
    tx: &Transaction,
    cluster: &ClusterInst,
    besides: Option<&AppKey>,
) -> Result<bool, Error> {
    let refs = books::cluster_refs(tx, cluster.object_key()).await?;
    for key in refs.apps.iter().filter(|key| Some(*key) != besides) {
        let app = books::get::<App>(tx, &key.text()).await?;
        if app.is_none_or(|app| app.del_opt != i32::from(DeleteType::AutoDelete)) {
            return Ok(true);
        }
    }
    Ok(false)
}
