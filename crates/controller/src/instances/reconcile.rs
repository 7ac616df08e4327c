//! Looks after instances that nobody looks after: those that wait for
//! something without an operation, auto-clusters without Apps, deletions that
//! a crm has forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::edgeproto::{
    AppInst, CloudletInfo, CloudletKey, CloudletState, ClusterInst, ClusterInstKey, TrackedState,
};
use selvage_api::selvage::operations::State;
use selvage_store::Transaction;
use selvage_work::{Engine, Failure, Operation, Reconcile, Summary};

use super::app_work::AppWork;
use super::cluster_work::ClusterWork;
use super::core::{Core, Initiator};
use super::create_app_inst::CreateAppInst;
use super::create_cluster_inst::CreateClusterInst;
use super::delete_app_inst::DeleteAppInst;
use super::delete_cluster_inst::{DeleteClusterInst, is_in_use};
use super::error::{Error, Refusal};
use super::kind::{Info, Instance};
use super::state::{Verb, is_transient};
use super::update_app_inst::UpdateAppInst;
use super::update_cluster_inst::UpdateClusterInst;
use super::usage_check;
use crate::controller::Mode;
use crate::keys::KeyText;
use crate::registry::AgentReport;
use crate::row::{Row, StoredObject};

/// Name of the one who started what nobody asked for.
const WHO: &str = "controller";

/// See the module.
pub struct InstanceReconciler {
    core: Arc<Core>,
    engine: Engine,
    /// Deletions and differences seen at the last run: once may be a moment's
    /// view, twice is so.
    suspects: Mutex<BTreeSet<String>>,
}

impl InstanceReconciler {
    pub(super) fn new(core: Arc<Core>, engine: Engine) -> Self {
        Self { core, engine, suspects: Mutex::default() }
    }

    fn by_controller(&self) -> Initiator<'_> {
        Initiator { engine: &self.engine, who: WHO, mode: Mode::Real }
    }
}

#[async_trait]
impl Reconcile for InstanceReconciler {
    fn name(&self) -> &str {
        "instances"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        let mut changes = 0;
        for held in self.core.tables.cluster_insts.list() {
            changes += u64::from(self.adopt_cluster(&held.value.0).await?);
        }
        for held in self.core.tables.app_insts.list() {
            changes += u64::from(self.adopt_app(&held.value.0).await?);
        }
        changes += self.drop_unused_clusters().await?;
        changes += self.ask_again().await?;
        Ok(Summary { changes, ..Summary::default() })
    }
}

impl InstanceReconciler {
    /// Gives a ClusterInst that is on its way somewhere an operation.
    async fn adopt_cluster(&self, inst: &ClusterInst) -> Result<bool, Error> {
        let Some(verb) = self.abandoned(inst) else { return Ok(false) };
        if inst.state() == TrackedState::DeletePrepare {
            return self.core.alter::<ClusterInst>(&inst.key_text(), unprepare).await;
        }
        let work = ClusterWork {
            key: inst.key.clone(),
            before: TrackedState::Ready.into(),
            adopted: true,
            ..Default::default()
        };
        match verb {
            Verb::Create => self.adopt::<CreateClusterInst, ClusterInst>(inst, work).await,
            Verb::Update => self.adopt::<UpdateClusterInst, ClusterInst>(inst, work).await,
            Verb::Delete => self.adopt::<DeleteClusterInst, ClusterInst>(inst, work).await,
        }
    }

    async fn adopt_app(&self, inst: &AppInst) -> Result<bool, Error> {
        let Some(verb) = self.abandoned(inst) else { return Ok(false) };
        let work = AppWork {
            key: inst.key.clone(),
            before: TrackedState::Ready.into(),
            adopted: true,
            placed: true,
            created_at: inst.created_at,
            ..Default::default()
        };
        match verb {
            Verb::Create => self.adopt::<CreateAppInst, AppInst>(inst, work).await,
            Verb::Update => self.adopt::<UpdateAppInst, AppInst>(inst, work).await,
            Verb::Delete => self.adopt::<DeleteAppInst, AppInst>(inst, work).await,
        }
    }

    /// Verb that an instance is in the middle of, if no operation carries it
    /// out.
    fn abandoned<I: Instance>(&self, inst: &I) -> Option<Verb> {
        let verb = Verb::of(inst.state())?;
        self.engine.running_on(&inst.key_text()).is_none().then_some(verb)
    }

    async fn adopt<O: Operation<State: Sync>, I: Instance>(
        &self,
        inst: &I,
        work: O::State,
    ) -> Result<bool, Error> {
        let (key, work) = (&inst.key_text(), &work);
        let decide = |tx: Transaction| async move {
            let row = tx.get::<Row<I>>(key).await?;
            let waits = row.as_ref().is_some_and(|row| row.0.state() == inst.state());
            match waits {
                true => Ok((work.clone(), Vec::new())),
                false => Err(Refusal::from(Error::KeyNotFound)),
            }
        };
        let cloudlet = inst.cloudlet_key();
        let begun = self.core.start::<O, I, _, _>(self.by_controller(), cloudlet, decide);
        match begun.await {
            Ok(_) => {
                tracing::warn!(kind = I::NOUN, key, "instance without an operation, given one");
                Ok(true)
            }
            Err(Refusal { error: Error::KeyNotFound | Error::Busy(_), .. }) => Ok(false),
            Err(refusal) => Err(refusal.error),
        }
    }

    async fn drop_unused_clusters(&self) -> Result<u64, Error> {
        // One that deletes an instance sees to its cluster itself.
        let deleting = self.engine.list().iter().any(|operation| {
            operation.kind == "DeleteAppInst"
                && self.engine.running_on(&operation.key).is_some_and(|it| it.id == operation.id)
        });
        if deleting {
            return Ok(0);
        }
        self.core.forget_overrides().await?;
        let mut dropped = 0;
        for held in self.core.tables.cluster_insts.list() {
            let inst = &held.value.0;
            if !inst.auto || inst.state() != TrackedState::Ready {
                continue;
            }
            let key = inst.object_key();
            if !self.core.is_unused_auto_cluster(&self.engine, key, None).await? {
                continue;
            }
            let request = ClusterInst {
                key: inst.key.clone(),
                crm_override: self.core.remembered_override(&held.key),
                ..Default::default()
            };
            let begun = self.core.begin_delete_cluster(self.by_controller(), &request).await;
            match begun {
                Ok(_) => dropped += 1,
                Err(refusal) => {
                    tracing::debug!(error = %refusal.error, "unused auto-cluster stays for now");
                }
            }
        }
        Ok(dropped)
    }

    /// A crm that was started anew knows nothing of what it was deleting, and
    /// says nothing about it: it is asked again.
    async fn ask_again(&self) -> Result<u64, Error> {
        let mut now = BTreeSet::new();
        now.extend(
            self.core.unreported_deletions::<AppInst>(|cloudlet| self.is_attached(cloudlet))?,
        );
        now.extend(
            self.core.unreported_deletions::<ClusterInst>(|cloudlet| self.is_attached(cloudlet))?,
        );
        now.extend(usage_check::differences(&self.core.tables));
        let before = std::mem::replace(&mut *self.suspects.lock(), now.clone());
        let mut asked = 0;
        for suspect in now.intersection(&before) {
            let again = self.core.alter::<AppInst>(suspect, ask_once_more).await?
                || self.core.alter::<ClusterInst>(suspect, ask_once_more).await?;
            asked += u64::from(again);
            if !again {
                tracing::error!(difference = suspect, "the usage records are wrong");
            }
        }
        Ok(asked)
    }

    /// Returns true if the agent of a cloudlet is connected to this controller.
    fn is_attached(&self, cloudlet: &CloudletKey) -> bool {
        let ours = self.core.settings.controller_id();
        self.core.tables.get::<CloudletInfo>(cloudlet).is_some_and(|info| {
            let info = &info.value.0;
            info.controller == ours && info.state() == CloudletState::Ready
        })
    }
}

impl Core {
    /// Keys of the instances on these cloudlets that are being deleted although
    /// no agent reports on them.
    fn unreported_deletions<I: Instance<Info: AgentReport>>(
        &self,
        on: impl Fn(&CloudletKey) -> bool,
    ) -> Result<Vec<String>, Error> {
        let reports = I::Info::held(&self.state.memory).list();
        let reported: BTreeSet<String> = reports.iter().map(|info| info.key_text()).collect();
        let rows = self.tables.of::<I>().list().into_iter();
        let unreported = rows.filter(|held| {
            let inst = &held.value.0;
            inst.state() == TrackedState::Deleting
                && !reported.contains(&held.key)
                && on(inst.cloudlet_key())
        });
        Ok(unreported.map(|held| held.key.clone()).collect())
    }

    /// Requests deletions again that the agent of these cloudlets, having
    /// reported everything, did not mention: one that was started anew has no
    /// record of what it was deleting.
    pub(super) async fn resume_deletions<I: Instance<Info: AgentReport>>(
        &self,
        cloudlets: &[CloudletKey],
    ) -> Result<(), Error> {
        for key in self.unreported_deletions::<I>(|cloudlet| cloudlets.contains(cloudlet))? {
            if self.alter::<I>(&key, ask_once_more).await? {
                tracing::info!(kind = I::NOUN, key, "deletion requested again: its agent lost it");
            }
        }
        Ok(())
    }
}

fn unprepare(inst: &mut ClusterInst) -> bool {
    let prepared = inst.state() == TrackedState::DeletePrepare;
    if prepared {
        inst.set_state(TrackedState::Ready);
    }
    prepared
}

fn ask_once_more<I: Instance>(inst: &mut I) -> bool {
    let deleting = inst.state() == TrackedState::Deleting;
    if deleting {
        inst.set_state(TrackedState::DeleteRequested);
    }
    deleting
}

impl Core {
    /// Returns true if a cluster was made for an AppInst and none needs it now,
    /// nor is about to. One operation may be left out of account.
    pub(super) async fn is_unused_auto_cluster(
        &self,
        engine: &Engine,
        key: &ClusterInstKey,
        besides: Option<&str>,
    ) -> Result<bool, Error> {
        let Some(cluster) = self.stored::<ClusterInst>(&key.text()).await? else {
            return Ok(false);
        };
        let cluster = &cluster;
        let state = cluster.state();
        if !cluster.auto || is_transient(state) || state == TrackedState::DeleteError {
            return Ok(false);
        }
        let in_use = self
            .transact(Mode::DryRun, |tx| async move { is_in_use(&tx, cluster, None).await })
            .await?;
        if in_use.value {
            return Ok(false);
        }
        let tail = format!("\"cluster_inst_key\":{}}}", key.text());
        let awaited = engine.list().iter().any(|operation| {
            operation.kind == CreateAppInst::KIND
                && matches!(operation.state(), State::Running | State::Undoing)
                && operation.key.ends_with(&tail)
                && Some(operation.id.as_str()) != besides
        });
        Ok(!awaited)
    }
}
