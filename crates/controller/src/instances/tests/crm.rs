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
use crate::instances::state::Verb;
use crate::row::Row;

/// Behaviour of a crm that gets a request.
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
    /// Says what it waits for, one after the other, and works.
    Waits(&'static [&'static str]),
}

#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) manners: BTreeMap<&'static str, Manner>,
    /// Instances that exist on the cloudlets.
    pub(super) reality: BTreeSet<String>,
    /// Requests that were taken, in order.
    pub(super) taken: Vec<String>,
    /// One thing at a time is done to an instance.
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Last report of each instance, for controllers that come anew.
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
        let served = Arc::clone(&script);
        let task = tokio::spawn(async move {
            tokio::join!(
                serve::<ClusterInst>(&clusters, &served),
                serve::<AppInst>(&apps, &served)
            );
        });
        Self { script, own: Arc::clone(service), task }
    }

    /// The connection ends; what is being done is done all the same.
    pub(super) fn cut(&self) {
        self.task.abort();
        self.script.lock().listener.take_if(|listener| Arc::ptr_eq(listener, &self.own));
    }

    pub(super) fn set(&self, verb: &'static str, manner: Manner) {
        self.script.lock().manners.insert(verb, manner);
    }
}

async fn serve<I: Reported>(table: &Arc<Table<Row<I>>>, script: &Arc<Mutex<Script>>) {
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
            let asked = Verb::of(inst.state()).filter(|verb| verb.requested() == inst.state());
            let known = seen.insert(held.key.clone(), held.mod_revision) == Some(held.mod_revision);
            if let (Some(verb), false) = (asked, known) {
                let turn = script.lock().turns.entry(held.key.clone()).or_default().clone();
                let (inst, script) = (inst.clone(), script.clone());
                let table = Arc::clone(table);
                tokio::spawn(async move {
                    let _turn = turn.lock().await;
                    let now = table.get(&inst.key_text()).map(|held| held.value.0.state());
                    if now == Some(verb.requested()) {
                        answer(&inst, verb, &script).await;
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
async fn report<I: Reported>(
    inst: &I,
    state: TrackedState,
    errors: &[String],
    script: &Mutex<Script>,
) {
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

async fn answer<I: Reported>(inst: &I, verb: Verb, script: &Mutex<Script>) {
    let manner = {
        let mut script = script.lock();
        script.taken.push(format!("{} {}", verb.name(), I::NOUN));
        let own = script.manners.get(format!("{} {}", verb.name(), I::NOUN).as_str());
        own.or_else(|| script.manners.get(verb.name())).cloned().unwrap_or_default()
    };
    if manner == Manner::Silent {
        return;
    }
    if verb == Verb::Create && manner != Manner::AtOnce {
        // Also what fails leaves something behind until it is deleted.
        script.lock().reality.insert(inst.key_text());
    }
    if manner != Manner::AtOnce {
        report(inst, verb.busy(), &[], script).await;
    }
    match (manner, verb) {
        (Manner::Silent | Manner::Hangs, _) => {}
        (Manner::Fails(text), _) => {
            report(inst, verb.failed(), &[text.to_owned()], script).await;
        }
        (Manner::Works | Manner::AtOnce | Manner::Waits(_), Verb::Delete) => {
            script.lock().reality.remove(&inst.key_text());
            report(inst, TrackedState::NotPresent, &[], script).await;
        }
        (Manner::Waits(sentences), _) => {
            let listener = script.lock().listener.clone();
            for (sentence, listener) in sentences.iter().zip(listener.iter().cycle()) {
                inst.tell_progress(listener, sentence).await;
            }
            script.lock().reality.insert(inst.key_text());
            report(inst, TrackedState::Ready, &[], script).await;
        }
        (Manner::Works | Manner::AtOnce, _) => {
            script.lock().reality.insert(inst.key_text());
            report(inst, TrackedState::Ready, &[], script).await;
        }
    }
}

pub(super) async fn recover<I: Reported>(inst: &I, script: &Mutex<Script>) {
    match Verb::of(inst.state()).filter(|verb| verb.busy() == inst.state()) {
        Some(Verb::Delete) => {
            script.lock().reality.remove(&inst.key_text());
            report(inst, TrackedState::NotPresent, &[], script).await;
        }
        Some(verb) => {
            let text = "inconsistent Controller vs CRM state".to_owned();
            report(inst, verb.failed(), &[text], script).await;
        }
        None => {}
    }
}

/// An instance that a crm can report on.
pub(super) trait Reported: Instance {
    fn tell(
        &self,
        service: &InstanceService,
        state: TrackedState,
        errors: &[String],
        gone: bool,
    ) -> impl Future<Output = ()> + Send;

    /// Says what a creation waits for.
    fn tell_progress(
        &self,
        service: &InstanceService,
        sentence: &str,
    ) -> impl Future<Output = ()> + Send;
}

impl Reported for ClusterInst {
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

    async fn tell_progress(&self, service: &InstanceService, sentence: &str) {
        let info = ClusterInstInfo {
            key: self.key.clone(),
            state: TrackedState::Creating.into(),
            progress: sentence.to_owned(),
            ..Default::default()
        };
        service.cluster_inst_info(info, false).await;
    }
}

impl Reported for AppInst {
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

    async fn tell_progress(&self, service: &InstanceService, sentence: &str) {
        let info = AppInstInfo {
            key: self.key.clone(),
            state: TrackedState::Creating.into(),
            progress: sentence.to_owned(),
            ..Default::default()
        };
        service.app_inst_info(info, false).await;
    }
}
