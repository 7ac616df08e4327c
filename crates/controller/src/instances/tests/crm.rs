//! A crm that does what it is told, and remembers what exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    AppInst, AppInstInfo, AppInstRuntime, ClusterInst, ClusterInstInfo, TrackedState,
};
use selvage_store::Table;
use tokio::task::JoinHandle;

use crate::controller::{Controller, Instances};
use crate::instances::InstanceService;
use crate::instances::kind::Instance;
use crate::instances::state::Goal;
use crate::row::Row;

/// How a crm takes a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Manner {
    #[default]
    Works,
    /// Fails with this, after having begun.
    Fails(&'static str),
    /// Says nothing at all.
    Silent,
    /// Begins and says no more.
    Hangs,
    /// Ends without ever having said that it began.
    AtOnce,
}

#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) manners: BTreeMap<&'static str, Manner>,
    /// What exists on the cloudlets.
    pub(super) reality: BTreeSet<String>,
    /// Requests that were taken, in order.
    pub(super) taken: Vec<String>,
    /// One thing at a time is done to an instance.
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// What was last said of each instance, for controllers that come anew.
    infos: BTreeMap<String, (TrackedState, Vec<String>)>,
    /// The controller that listens, if one does.
    listener: Option<Arc<InstanceService>>,
}

/// Answers every request that it sees in the tables.
pub(super) struct Crm {
    pub(super) script: Arc<Mutex<Script>>,
    own: Arc<InstanceService>,
    task: JoinHandle<()>,
}

impl Drop for Crm {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Crm {
    pub(super) fn start(
        controller: &Arc<Controller>,
        service: &Arc<InstanceService>,
        script: Arc<Mutex<Script>>,
    ) -> Self {
        let clusters = Arc::clone(&controller.tables.cluster_insts);
        let apps = Arc::clone(&controller.tables.app_insts);
        script.lock().listener = Some(Arc::clone(service));
        let told = Arc::clone(&script);
        let task = tokio::spawn(async move {
            tokio::join!(serve::<ClusterInst>(&clusters, &told), serve::<AppInst>(&apps, &told));
        });
        Self { script, own: Arc::clone(service), task }
    }

    /// The connection ends; what is being done is done all the same.
    pub(super) fn cut(&self) {
        self.task.abort();
        self.script.lock().listener.take_if(|listener| Arc::ptr_eq(listener, &self.own));
    }

    pub(super) fn set(&self, goal: &'static str, manner: Manner) {
        self.script.lock().manners.insert(goal, manner);
    }
}

async fn serve<I: Told>(table: &Arc<Table<Row<I>>>, script: &Arc<Mutex<Script>>) {
    let mut changes = table.subscribe();
    let mut seen = BTreeMap::new();
    for held in table.list() {
        let (inst, info) = (&held.value.0, script.lock().infos.get(&held.key).cloned());
        match info {
            Some((state, errors)) => report(inst, state, &errors, script).await,
            None if inst.state() == TrackedState::Deleting => {
                report(inst, TrackedState::NotPresent, &[], script).await;
            }
            None => {}
        }
    }
    loop {
        for held in table.list() {
            let inst = &held.value.0;
            let asked = Goal::of(inst.state()).filter(|goal| goal.requested() == inst.state());
            let known = seen.insert(held.key.clone(), held.mod_revision) == Some(held.mod_revision);
            if let (Some(goal), false) = (asked, known) {
                let turn = script.lock().turns.entry(held.key.clone()).or_default().clone();
                let (inst, script) = (inst.clone(), script.clone());
                let table = Arc::clone(table);
                tokio::spawn(async move {
                    let _turn = turn.lock().await;
                    let now = table.get(&inst.key_text()).map(|held| held.value.0.state());
                    if now == Some(goal.requested()) {
                        answer(&inst, goal, &script).await;
                    }
                });
            }
        }
        if changes.next().await.is_none() {
            return;
        }
    }
}

/// Says something, to whoever listens now or comes later.
async fn report<I: Told>(inst: &I, state: TrackedState, errors: &[String], script: &Mutex<Script>) {
    let gone = state == TrackedState::NotPresent;
    let listener = {
        let mut script = script.lock();
        if gone {
            script.infos.remove(&inst.key_text());
        } else {
            script.infos.insert(inst.key_text(), (state, errors.to_vec()));
        }
        script.listener.clone()
    };
    if let Some(listener) = listener {
        inst.tell(&listener, state, errors, gone).await;
    }
}

async fn answer<I: Told>(inst: &I, goal: Goal, script: &Mutex<Script>) {
    let manner = {
        let mut script = script.lock();
        script.taken.push(format!("{} {}", goal.verb(), I::NOUN));
        let own = script.manners.get(format!("{} {}", goal.verb(), I::NOUN).as_str());
        own.or_else(|| script.manners.get(goal.verb())).cloned().unwrap_or_default()
    };
    if manner == Manner::Silent {
        return;
    }
    if goal == Goal::Create && manner != Manner::AtOnce {
        // Also what fails leaves something behind until it is deleted.
        script.lock().reality.insert(inst.key_text());
    }
    if manner != Manner::AtOnce {
        report(inst, goal.busy(), &[], script).await;
    }
    match (manner, goal) {
        (Manner::Silent | Manner::Hangs, _) => {}
        (Manner::Fails(text), _) => {
            report(inst, goal.failed(), &[text.to_owned()], script).await;
        }
        (Manner::Works | Manner::AtOnce, Goal::Delete) => {
            script.lock().reality.remove(&inst.key_text());
            report(inst, TrackedState::NotPresent, &[], script).await;
        }
        (Manner::Works | Manner::AtOnce, _) => {
            script.lock().reality.insert(inst.key_text());
            report(inst, TrackedState::Ready, &[], script).await;
        }
    }
}

pub(super) async fn recover<I: Told>(inst: &I, script: &Mutex<Script>) {
    match Goal::of(inst.state()).filter(|goal| goal.busy() == inst.state()) {
        Some(Goal::Delete) => {
            script.lock().reality.remove(&inst.key_text());
            report(inst, TrackedState::NotPresent, &[], script).await;
        }
        Some(goal) => {
            let text = "inconsistent Controller vs CRM state".to_owned();
            report(inst, goal.failed(), &[text], script).await;
        }
        None => {}
    }
}

/// An instance that a crm can report on.
pub(super) trait Told: Instance {
    fn tell(
        &self,
        service: &InstanceService,
        state: TrackedState,
        errors: &[String],
        gone: bool,
    ) -> impl Future<Output = ()> + Send;
}

impl Told for ClusterInst {
    async fn tell(
        &self,
        service: &InstanceService,
        state: TrackedState,
        errors: &[String],
        gone: bool,
    ) {
        let info = ClusterInstInfo {
            key: self.key.clone(),
            state: state.into(),
            errors: errors.to_vec(),
            ..Default::default()
        };
        service.cluster_inst_info(info, gone).await;
    }
}

impl Told for AppInst {
    async fn tell(
        &self,
        service: &InstanceService,
        state: TrackedState,
        errors: &[String],
        gone: bool,
    ) {
        let ready = state == TrackedState::Ready;
        let info = AppInstInfo {
            key: self.key.clone(),
            state: state.into(),
            errors: errors.to_vec(),
            runtime_info: ready.then(|| AppInstRuntime {
                container_ids: vec!["c1".into()],
                ..AppInstRuntime::default()
            }),
            ..Default::default()
        };
        service.app_inst_info(info, gone).await;
    }
}
