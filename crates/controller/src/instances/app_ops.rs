//! The operations on AppInsts.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{AppInst, AppInstKey, ClusterInst, ClusterInstKey, TrackedState};
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::core::{By, Core};
use super::error::Error;
use super::plan::Origin;
use super::plan::app::Need;
use super::state::{Goal, Override, state_of};
use super::steps::Asked;
use crate::controller::Mode;
use crate::derive::names;
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts, KeyText};

/// What an operation on an AppInst remembers.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AppWork {
    #[prost(message, optional, tag = "1")]
    pub(super) key: Option<AppInstKey>,
    #[prost(int32, tag = "2")]
    pub(super) crm_override: i32,
    /// State and errors before the operation.
    #[prost(int32, tag = "3")]
    pub(super) before: i32,
    #[prost(string, repeated, tag = "4")]
    pub(super) errors_before: Vec<String>,
    /// Begun for an instance that was found without an operation.
    #[prost(bool, tag = "5")]
    pub(super) adopted: bool,
    /// Of a creation: what was asked for, and the time that marks the row as
    /// its own.
    #[prost(message, optional, tag = "6")]
    pub(super) request: Option<AppInst>,
    #[prost(message, optional, tag = "7")]
    pub(super) created_at: Option<Timestamp>,
    /// The row was written when the operation began.
    #[prost(bool, tag = "8")]
    pub(super) placed: bool,
    /// The auto-cluster was created for this instance.
    #[prost(bool, tag = "9")]
    pub(super) own_cluster: bool,
}

impl AppWork {
    pub(super) fn app_inst_key(&self) -> &AppInstKey {
        self.key.as_ref().unwrap_or(AppInstKey::empty())
    }

    pub(super) fn cluster_key(&self) -> &ClusterInstKey {
        self.app_inst_key().cluster_inst_or_empty()
    }

    pub(super) fn over(&self) -> Override {
        Override::of(self.crm_override)
    }

    /// There is no crm to ask, or it is not to be asked.
    pub(super) fn ignores_crm(&self) -> bool {
        let cloudlet = self.cluster_key().cloudlet_or_empty();
        self.over().ignores_crm() || names::is_default_cloudlet(cloudlet)
    }
}

impl Subject for AppWork {
    fn key(&self) -> String {
        self.app_inst_key().text()
    }

    fn organisation(&self) -> String {
        self.app_inst_key().app_or_empty().developer_or_empty().name.clone()
    }
}

pub(crate) struct CreateAppInst(pub(super) Arc<Core>);

/// First the auto-cluster, if the instance has none, then the instance.
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
            return self.0.leave_failed::<AppInst>(scope, &key, Goal::Create).await;
        }
        if !self.is_own(work).await? {
            return Ok(());
        }
        let says = "DELETING AppInst due to failure";
        self.0.undo_create::<AppInst>(scope, &key, says, !work.ignores_crm()).await
    }
}

impl CreateAppInst {
    /// Whether the row, if there is one, was written by this operation.
    async fn is_own(&self, work: &AppWork) -> Result<bool, Error> {
        let row = self.0.stored::<AppInst>(&work.key()).await?;
        Ok(row.is_some_and(|row| row.created_at == work.created_at))
    }

    async fn create(&self, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.key();
        let mut early = self.0.early::<AppInst>(scope, work.adopted);
        if !work.placed && !work.adopted {
            let changes = self.0.tables.app_insts.subscribe_key(&key);
            early = self.place(work, scope).await?.then_some(changes);
        }
        if work.ignores_crm() {
            self.0.say_done::<AppInst>(scope, Goal::Create);
            return Ok(());
        }
        self.0.ask::<AppInst>(scope, &key, Goal::Create, work.over(), early).await?;
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
                let found = super::books::get::<AppInst>(&tx, key).await?;
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
            .map_err(|refusal: super::error::Refusal| refusal.error)?;
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
                state if Goal::of(state) == Some(Goal::Create) => {
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
        let by = By { engine, who, mode: Mode::Real };
        let begun = self.0.begin_create_cluster(by, &request, Origin::Internal).await;
        match begun.map_err(|refusal| refusal.error) {
            Ok(begun) => super::relay(scope, begun).await,
            // Somebody else was faster: his will do.
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
            .map_err(|refusal: super::error::Refusal| refusal.error)?;
        Ok(match placed.value.need {
            Need::Create(request) => Some(*request),
            Need::Nothing | Need::Await => None,
        })
    }

    /// Waits until whoever creates the cluster has come to an end.
    async fn await_cluster(&self, key: &str, scope: &Scope) -> Result<(), Failure> {
        // Else the view may show that there is no cluster yet.
        self.0.look_anew::<ClusterInst>().await?;
        let limit = self.0.timeout(Goal::Create);
        let table = &self.0.tables.cluster_insts;
        let waited = scope.record_within(limit, table, key, |row| {
            let state = row.map_or(TrackedState::NotPresent, |row| row.0.state());
            (Goal::of(state) != Some(Goal::Create)).then_some(())
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
            && running.kind == super::cluster_ops::CreateClusterInst::KIND
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

pub(crate) struct UpdateAppInst(pub(super) Arc<Core>);

#[async_trait]
impl Operation for UpdateAppInst {
    const KIND: &'static str = "UpdateAppInst";
    type State = AppWork;

    fn steps(&self, _: &AppWork) -> Vec<&'static str> {
        vec!["update"]
    }

    async fn run(&self, _: &str, work: &mut AppWork, scope: &Scope) -> Result<Next, Failure> {
        let early = self.0.early::<AppInst>(scope, work.adopted);
        if work.ignores_crm() {
            self.0.say_done::<AppInst>(scope, Goal::Update);
        } else {
            let key = work.key();
            self.0.ask(scope, &key, Goal::Update, work.over(), early).await?;
        }
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        self.0.leave_failed::<AppInst>(scope, &work.key(), Goal::Update).await?;
        self.0.fail_revision(scope, work.app_inst_key()).await
    }
}

pub(crate) struct DeleteAppInst(pub(super) Arc<Core>);

#[async_trait]
impl Operation for DeleteAppInst {
    const KIND: &'static str = "DeleteAppInst";
    type State = AppWork;

    fn steps(&self, _: &AppWork) -> Vec<&'static str> {
        vec![APP, CLUSTER]
    }

    /// What a crm was asked to delete it cannot be asked to keep.
    fn cancellable(&self, _: &str, _: &AppWork) -> bool {
        false
    }

    async fn run(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<Next, Failure> {
        if step == CLUSTER {
            self.0.drop_unused_cluster(work, "DELETING auto-cluster inst", scope).await?;
            return Ok(Next::Done);
        }
        let early = self.0.early::<AppInst>(scope, work.adopted);
        if work.ignores_crm() {
            self.0.say_done::<AppInst>(scope, Goal::Delete);
            return Ok(Next::Done);
        }
        let key = work.key();
        match self.0.ask(scope, &key, Goal::Delete, work.over(), early).await? {
            Asked::Done => Ok(Next::Done),
            Asked::LeftBusy => Ok(Next::Finish),
        }
    }

    async fn undo(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        if step == CLUSTER {
            return Ok(());
        }
        let (key, before) = (work.key(), state_of(work.before));
        let restored = self.0.restore::<AppInst>(scope, &key, before, &work.errors_before).await?;
        match self.0.state_now::<AppInst>(&key).await? {
            // The crm was faster: then its cluster goes as well.
            TrackedState::NotPresent if !self.0.is_taken_over(scope.id()) => {
                self.0.drop_unused_cluster(work, "DELETING auto-cluster inst", scope).await?;
            }
            TrackedState::Ready if restored => {
                scope.say("Recreating AppInst due to failure");
                scope.say("Created successfully");
            }
            _ if restored => scope.say("Recreating AppInst due to failure"),
            _ => {}
        }
        Ok(())
    }
}
