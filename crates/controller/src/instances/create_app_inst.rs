//! The operation `CreateAppInst`: first the auto-cluster, if the instance has
//! none, then the instance.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, Cloudlet, CloudletInfo, ClusterInst, Flavor, TrackedState,
};
use selvage_store::Transaction;
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::app_work::AppWork;
use super::core::{Begun, Core, Initiator, InstanceRequest};
use super::create_cluster_inst::{self, CreateClusterInst};
use super::error::{Error, Refusal};
use super::kind::Instance;
use super::plan::app::{self as plan, Need};
use super::plan::{Origin, check_ready};
use super::revisions::{self, Cause};
use super::state::Verb;
use super::steps::Work;
use super::usage;
use crate::controller::Mode;
use crate::derive::names;
use crate::guard::refer;
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;

pub(crate) struct CreateAppInst(pub(super) Arc<Core>);

const CLUSTER: &str = "cluster";
const APP: &str = "app";

#[async_trait]
impl Operation for CreateAppInst {
    const KIND: &'static str = "CreateAppInst";
    type State = AppWork;

    fn steps(&self, work: &AppWork) -> Vec<&'static str> {
        if work.placed { vec![APP] } else { vec![CLUSTER, APP] }
    }

    async fn run(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<Next, Failure> {
        match step {
            CLUSTER => self.provide_cluster(work, scope).await?,
            _ => self.create(work, scope).await?,
        }
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        if step == CLUSTER {
            return self.drop_cluster(work, scope).await;
        }
        let key = work.key();
        if work.adopted {
            return self.0.leave_failed::<AppInst>(scope, &key, Verb::Create).await;
        }
        if !self.is_own(work).await? {
            return Ok(());
        }
        let says = "DELETING AppInst due to failure";
        self.0.undo_create::<AppInst>(scope, &key, says, !work.ignores_crm()).await
    }
}

impl CreateAppInst {
    /// Returns true if the row, if there is one, was written by this operation.
    async fn is_own(&self, work: &AppWork) -> Result<bool, Error> {
        let row = self.0.stored::<AppInst>(&work.key()).await?;
        Ok(row.is_some_and(|row| row.created_at == work.created_at))
    }

    async fn create(&self, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.key();
        let mut pending = self.0.pending::<AppInst>(scope, work.adopted);
        if !work.placed && !work.adopted {
            let changes = self.0.tables.app_insts.subscribe_key(&key);
            pending = self.place(work, scope).await?.then_some(changes);
        }
        if work.ignores_crm() {
            self.0.say_done::<AppInst>(scope, Verb::Create);
            return Ok(());
        }
        self.0.ask::<AppInst>(scope, &key, Verb::Create, work.over(), pending).await?;
        Ok(())
    }

    /// Writes the row, now that the cluster is there. Says whether it was
    /// written now, or before, by a run of this step that was cut short.
    async fn place(&self, work: &AppWork, scope: &Scope) -> Result<bool, Failure> {
        let core = &self.0;
        let request = work.request.clone().unwrap_or_default();
        let (key, created_at) = (work.key(), work.created_at.unwrap_or_default());
        let (request, key, who) = (&request, &key, &scope.started_by());
        let committed = core
            .count(Mode::Real, work.cluster_key().cloudlet_or_empty(), |tx| async move {
                let found = usage::get::<AppInst>(&tx, key).await?;
                if found.is_some_and(|inst| inst.created_at == Some(created_at)) {
                    return Ok(false);
                }
                let placed = core.place_app(&tx, request, created_at, who, true).await?;
                match placed.need {
                    Need::Nothing => Ok(true),
                    Need::Await | Need::Create(_) => Err(Error::NoClusterForApp.into()),
                }
            })
            .await
            .map_err(|refusal: Refusal| refusal.error)?;
        core.caught_up::<AppInst>(committed.revision).await?;
        Ok(committed.value)
    }

    /// Sees to it that the auto-cluster is there and ready.
    async fn provide_cluster(&self, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.cluster_key().text();
        loop {
            let state = self.0.state_now::<ClusterInst>(&key).await?;
            match state {
                TrackedState::Ready => return Ok(()),
                TrackedState::NotPresent => self.create_cluster(work, scope).await?,
                state if Verb::of(state) == Some(Verb::Create) => {
                    self.await_cluster(&key, scope).await?;
                }
                _ => return Err(Error::ClusterInstNotReady(key).into()),
            }
        }
    }

    async fn create_cluster(&self, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        let Some(request) = self.cluster_request(work).await? else { return Ok(()) };
        // Before it is begun, so that undo knows of it whatever happens.
        work.own_cluster = true;
        scope.checkpoint(work).await?;
        let (engine, who) = (&scope.engine(), &scope.started_by());
        let by = Initiator { engine, who, mode: Mode::Real };
        let begun = self.0.begin_create_cluster(by, &request, Origin::Internal).await;
        match begun.map_err(|refusal| refusal.error) {
            Ok(begun) => super::relay(scope, begun).await,
            // Somebody else was faster: theirs will do.
            Err(Error::KeyExists) => {
                work.own_cluster = false;
                scope.checkpoint(work).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The auto-cluster as it is to be created, decided anew; nothing if it is
    /// there by now.
    async fn cluster_request(&self, work: &AppWork) -> Result<Option<ClusterInst>, Failure> {
        let request = work.request.clone().unwrap_or_default();
        let created_at = work.created_at.unwrap_or_default();
        let (core, request) = (&self.0, &request);
        let placed = core
            .transact(Mode::DryRun, |tx| async move {
                core.place_app(&tx, request, created_at, "", false).await
            })
            .await
            .map_err(|refusal: Refusal| refusal.error)?;
        Ok(match placed.value.need {
            Need::Create(request) => Some(*request),
            Need::Nothing | Need::Await => None,
        })
    }

    /// Waits until whoever creates the cluster has come to an end.
    async fn await_cluster(&self, key: &str, scope: &Scope) -> Result<(), Failure> {
        // Else the view may show that there is no cluster yet.
        self.0.look_anew::<ClusterInst>().await?;
        let limit = self.0.timeout(Verb::Create);
        let table = &self.0.tables.cluster_insts;
        let waited = scope.record_within(limit, table, key, |row| {
            let state = row.map_or(TrackedState::NotPresent, |row| row.0.state());
            (Verb::of(state) != Some(Verb::Create)).then_some(())
        });
        match waited.await {
            Err(selvage_work::Interrupt::TimedOut) => {
                Err(Error::ClusterInstNotReady(key.to_owned()).into())
            }
            waited => Ok(waited?),
        }
    }

    /// Deletes the auto-cluster that was created for the instance, unless
    /// others use it.
    async fn drop_cluster(&self, work: &AppWork, scope: &Scope) -> Result<(), Failure> {
        if !work.own_cluster || self.0.is_taken_over(scope.id()) {
            return Ok(());
        }
        let (engine, key) = (scope.engine(), work.cluster_key().text());
        if let Some(running) = engine.running_on(&key)
            && running.kind == CreateClusterInst::KIND
        {
            // It ends undone, or ready because it was faster.
            if engine.cancel(&running.id, &scope.started_by()).await.is_ok() {
                let _ = scope.until(engine.attach(&running.id)?.ended()).await?;
            }
        }
        let says = "DELETING auto-ClusterInst due to failure";
        self.0.drop_unused_cluster(work, says, scope).await
    }
}

/// Result of a creation's transaction.
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
        by: Initiator<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        let created_at = self.now();
        let cloudlet = request.object_key().cluster_inst_or_empty().cloudlet_or_empty();
        let asked = InstanceRequest { verb: Verb::Create, request, cloudlet };
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

    pub(super) fn now(&self) -> Timestamp {
        let now = self.clock.now();
        Timestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond() }
    }

    /// Checks a new AppInst, and writes it if nothing has to happen before.
    /// Checks all that has to happen too, so that nothing is begun that cannot
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
        let info = usage::get::<CloudletInfo>(tx, &cloudlet.text()).await?;
        check_ready(cloudlet, info.as_ref(), request.over())?;
        let (key, notes) = plan::settle_key(request)?;
        let (key, world) = read_world(tx, request, key, info).await?;
        let existing = world.existing.clone();
        let planned = plan::create(request, &key, created_at, deferred, world)?;
        if let Need::Create(cluster) = &planned.need {
            self.rehearse_cluster(tx, cluster).await?;
        }
        let limits = planned.info.as_ref().filter(|_| settings.enforce_resources);
        usage::take_volumes(&mut usage::cloudlet_refs(tx, cloudlet).await?, &planned.app, limits)?;
        if planned.need != Need::Nothing {
            return Ok(Placed { key, notes, need: planned.need });
        }
        if let Some(existing) = existing {
            usage::release_app(tx, &existing).await?;
        }
        let zone = planned.info.as_ref().map(|info| info.dns_zone.as_str());
        let placement = usage::Placement {
            app: &planned.app,
            cluster: planned.cluster.as_ref(),
            flavor: &planned.flavor,
            limits,
            root_domain: zone.filter(|zone| !zone.is_empty()).unwrap_or(&settings.root_domain),
        };
        let mut inst = planned.inst;
        let cause = Cause { who, at: created_at, back_to: None };
        revisions::begin(tx, &mut inst, TrackedState::NotPresent, &cause).await?;
        usage::reserve_app(tx, inst, &placement).await?;
        Ok(Placed { key, notes, need: Need::Nothing })
    }

    /// Checks that an auto-cluster could be created now. Nothing of it is kept:
    /// its own operation decides again.
    async fn rehearse_cluster(
        &self,
        tx: &Transaction,
        request: &ClusterInst,
    ) -> Result<(), Refusal> {
        let world = create_cluster_inst::read_world(tx, request).await?;
        let settings = &self.settings;
        let planned = super::plan::cluster::create(request, Origin::Internal, world, settings)?;
        let limits = settings.enforce_resources.then_some(&planned.info);
        let key = request.object_key().cloudlet_or_empty();
        let mut refs = usage::cloudlet_refs(tx, key).await?;
        usage::take_cluster(&mut refs, &planned.inst, &planned.flavor, &planned.cloudlet, limits)?;
        Ok(())
    }
}

/// Reads what a creation is decided by. An App of the platform that names a
/// cluster which is not there may mean its own of that name.
async fn read_world(
    tx: &Transaction,
    request: &AppInst,
    mut key: AppInstKey,
    info: Option<CloudletInfo>,
) -> Result<(AppInstKey, plan::Inputs), Error> {
    let mut cluster_key = key.cluster_inst_or_empty().clone();
    let mut cluster = usage::get::<ClusterInst>(tx, &cluster_key.text()).await?;
    let developer = &key.app_or_empty().developer_or_empty().name;
    if cluster.is_none() && *developer != cluster_key.developer {
        cluster_key.developer.clone_from(developer);
        cluster = usage::get(tx, &cluster_key.text()).await?;
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
    let world = plan::Inputs {
        existing: usage::get(tx, &key.text()).await?,
        cloudlet,
        info,
        cluster,
        flavor: refer::<Flavor>(tx, &flavor.text()).await?,
        app,
    };
    Ok((key, world))
}
