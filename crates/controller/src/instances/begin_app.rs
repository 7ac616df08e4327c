//! Starting operations on AppInsts: read, decide, write, in one transaction.

use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, Cloudlet, CloudletInfo, ClusterInst, Flavor, TrackedState,
};
use selvage_store::Transaction;

use super::app_ops::{AppWork, CreateAppInst, DeleteAppInst, UpdateAppInst};
use super::books;
use super::core::{Asked, Begun, By, Core};
use super::error::{Error, Refusal};
use super::kind::Instance;
use super::plan::app::{self as plan, Need};
use super::plan::{Origin, check_ready};
use super::revisions::{self, Cause};
use super::state::{Goal, state_of};
use crate::derive::names;
use crate::guard::refer;
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::Kept;

/// What came of a creation's transaction.
pub(super) struct Placed {
    pub(super) key: AppInstKey,
    pub(super) notes: Vec<String>,
    /// The auto-cluster to wait for, or to create first. Then the AppInst is
    /// not written yet.
    pub(super) need: Need,
}

impl Core {
    pub(crate) async fn begin_create_app(
        &self,
        by: By<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        let created_at = self.now();
        let cloudlet = request.object_key().cluster_inst_or_empty().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Create, request, cloudlet };
        self.begin::<CreateAppInst, AppInst, _, _>(by, asked, |tx| async move {
            let placed = self.place_app(&tx, request, created_at, by.who, false).await?;
            let work = AppWork {
                key: Some(placed.key),
                crm_override: request.crm_override,
                request: Some(AppInst { fields: Vec::new(), ..request.clone() }),
                created_at: Some(created_at),
                placed: placed.need == Need::Nothing,
                ..Default::default()
            };
            Ok((work, placed.notes))
        })
        .await
    }

    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        Timestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond() }
    }

    /// Checks a new AppInst, and writes it if nothing has to happen before.
    /// What has to happen is checked too, so that nothing is begun that cannot
    /// be finished.
    pub(super) async fn place_app(
        &self,
        tx: &Transaction,
        request: &AppInst,
        created_at: Timestamp,
        who: &str,
        deferred: bool,
    ) -> Result<Placed, Refusal> {
        let settings = &self.settings;
        let cloudlet = request.object_key().cluster_inst_or_empty().cloudlet_or_empty();
        let info = books::get::<CloudletInfo>(tx, &cloudlet.text()).await?;
        check_ready(cloudlet, info.as_ref(), request.over())?;
        let (key, notes) = plan::settle_key(request)?;
        let (key, world) = read_world(tx, request, key, info).await?;
        let existing = world.existing.clone();
        let planned = plan::create(request, &key, created_at, deferred, world)?;
        if let Need::Create(cluster) = &planned.need {
            self.rehearse_cluster(tx, cluster).await?;
        }
        let limits = planned.info.as_ref().filter(|_| settings.enforce_resources);
        books::take_volumes(&mut books::cloudlet_refs(tx, cloudlet).await?, &planned.app, limits)?;
        if planned.need != Need::Nothing {
            return Ok(Placed { key, notes, need: planned.need });
        }
        if let Some(existing) = existing {
            books::leave_app(tx, &existing).await?;
        }
        let zone = planned.info.as_ref().map(|info| info.dns_zone.as_str());
        let place = books::Place {
            app: &planned.app,
            cluster: planned.cluster.as_ref(),
            flavor: &planned.flavor,
            limits,
            root_domain: zone.filter(|zone| !zone.is_empty()).unwrap_or(&settings.root_domain),
        };
        let mut inst = planned.inst;
        let cause = Cause { who, at: created_at, back_to: None };
        revisions::begin(tx, &mut inst, TrackedState::NotPresent, &cause).await?;
        books::enter_app(tx, inst, &place).await?;
        Ok(Placed { key, notes, need: Need::Nothing })
    }

    /// Whether an auto-cluster could be created now. Nothing of it is kept:
    /// its own operation decides again.
    async fn rehearse_cluster(
        &self,
        tx: &Transaction,
        request: &ClusterInst,
    ) -> Result<(), Refusal> {
        let world = super::begin_cluster::read_world(tx, request).await?;
        let settings = &self.settings;
        let planned = super::plan::cluster::create(request, Origin::Internal, world, settings)?;
        let limits = settings.enforce_resources.then_some(&planned.info);
        let key = request.object_key().cloudlet_or_empty();
        let mut refs = books::cloudlet_refs(tx, key).await?;
        books::take_cluster(&mut refs, &planned.inst, &planned.flavor, &planned.cloudlet, limits)?;
        Ok(())
    }

    pub(crate) async fn begin_update_app(
        &self,
        by: By<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        self.begin_revision(by, request, None).await
    }

    /// Begins to let an instance run an earlier revision; 0 is the one of before.
    pub(crate) async fn begin_roll_back(
        &self,
        by: By<'_>,
        request: &AppInst,
        revision: u64,
    ) -> Result<Begun, Refusal> {
        self.begin_revision(by, request, Some(revision)).await
    }

    async fn begin_revision(
        &self,
        by: By<'_>,
        request: &AppInst,
        back_to: Option<u64>,
    ) -> Result<Begun, Refusal> {
        let key = &plan::meant_key(request);
        let cause = &Cause { who: by.who, at: self.now(), back_to };
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Update, request, cloudlet };
        self.begin::<UpdateAppInst, AppInst, _, _>(by, asked, |tx| async move {
            let (existing, _, info) = read_row(&tx, key).await?;
            let work = work(request, key, existing.as_ref());
            let (mut after, notes) = plan::update(request, key, existing, info.as_ref())?;
            revisions::begin(&tx, &mut after, state_of(work.before), cause).await?;
            let limits = info.as_ref().filter(|_| self.settings.enforce_resources);
            books::resize_volumes(&tx, &mut after, limits).await?;
            books::resize_app(&tx, after, limits).await?;
            Ok((work, notes))
        })
        .await
    }

    pub(crate) async fn begin_delete_app(
        &self,
        by: By<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        let key = &plan::meant_key(request);
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty();
        let asked = Asked { goal: Goal::Delete, request, cloudlet };
        self.begin::<DeleteAppInst, AppInst, _, _>(by, asked, |tx| async move {
            let (existing, cloudlet, info) = read_row(&tx, key).await?;
            plan::delete(request, key, existing.as_ref(), cloudlet.as_ref(), info.as_ref())?;
            let work = work(request, key, existing.as_ref());
            if let Some(mut inst) = existing {
                if work.ignores_crm() {
                    inst.remove(&tx).await?;
                } else {
                    inst.set_state(TrackedState::DeleteRequested);
                    books::put(&tx, inst)?;
                }
            }
            Ok((work, Vec::new()))
        })
        .await
    }
}

fn work(request: &AppInst, key: &AppInstKey, before: Option<&AppInst>) -> AppWork {
    AppWork {
        key: Some(key.clone()),
        crm_override: request.crm_override,
        before: before.map_or(0, |before| before.state),
        errors_before: before.map(|before| before.errors.clone()).unwrap_or_default(),
        ..Default::default()
    }
}

/// Reads what a creation is decided by. An App of the platform that names a
/// cluster which is not there may mean its own of that name.
async fn read_world(
    tx: &Transaction,
    request: &AppInst,
    mut key: AppInstKey,
    info: Option<CloudletInfo>,
) -> Result<(AppInstKey, plan::World), Error> {
    let mut cluster_key = key.cluster_inst_or_empty().clone();
    let mut cluster = books::get::<ClusterInst>(tx, &cluster_key.text()).await?;
    let developer = &key.app_or_empty().developer_or_empty().name;
    if cluster.is_none() && *developer != cluster_key.developer {
        cluster_key.developer.clone_from(developer);
        cluster = books::get(tx, &cluster_key.text()).await?;
        if cluster.is_some() {
            key.cluster_inst_key = Some(cluster_key.clone());
        }
    }
    let app = refer::<App>(tx, &key.app_or_empty().text()).await?;
    let flavor = plan::flavor_key(request, app.as_ref());
    let cloudlet_key = cluster_key.cloudlet_or_empty();
    let cloudlet = match names::is_default_cloudlet(cloudlet_key) {
        true => None,
        false => refer::<Cloudlet>(tx, &cloudlet_key.text()).await?,
    };
    let world = plan::World {
        existing: books::get(tx, &key.text()).await?,
        cloudlet,
        info,
        cluster,
        flavor: refer::<Flavor>(tx, &flavor.text()).await?,
        app,
    };
    Ok((key, world))
}

async fn read_row(
    tx: &Transaction,
    key: &AppInstKey,
) -> Result<(Option<AppInst>, Option<Cloudlet>, Option<CloudletInfo>), Error> {
    let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty().text();
    let existing = books::get(tx, &key.text()).await?;
    Ok((existing, books::get(tx, &cloudlet).await?, books::get(tx, &cloudlet).await?))
}
