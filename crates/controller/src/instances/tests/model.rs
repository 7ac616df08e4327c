//! Random calls, answers of crms, callers who leave and processes that die,
//! against a small model of what must come of it.

use super::support::*;
use crate::controller::Mode;
use crate::instances::state::{Verb, is_transient};
use crate::row::StoredObject;
use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use selvage_api::edgeproto::app_inst_api_server::AppInstApi;
use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApi;
use selvage_api::edgeproto::{
    AppInst, CloudletInfo, ClusterInst, CrmOverride, IpAccess, TrackedState,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::Request;

const CLUSTERS: [&str; 3] = ["one", "two", "autocluster1"];
const APPS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there are few, in a test")]
enum Target {
    Cluster(ClusterInst),
    App(AppInst),
}

impl Target {
    fn key(&self) -> String {
        match self {
            Self::Cluster(inst) => inst.key_text(),
            Self::App(inst) => inst.key_text(),
        }
    }

    fn set_override(&mut self, over_: CrmOverride) {
        match self {
            Self::Cluster(inst) => inst.set_crm_override(over_),
            Self::App(inst) => inst.set_crm_override(over_),
        }
    }
}

struct Run {
    world: World,
    dice: StdRng,
    /// The model: what is there, as far as the answers told.
    present: BTreeSet<String>,
    /// Those of them that are in no error state.
    healthy: BTreeSet<String>,
    /// Instances that nobody can know from the answers, because the caller
    /// left, the crm was away, or the process died.
    unknown: BTreeSet<String>,
    log: Vec<String>,
}

/// After so long something hangs.
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

impl Run {
    async fn new(seed: u64) -> Self {
        let world = World::new().await;
        world.add_cloudlet("tmus", "cloud-1", 4).await;
        for name in APPS {
            world.add_app(app(name, "tcp:80,udp:53")).await;
        }
        Self {
            world,
            dice: StdRng::seed_from_u64(seed),
            present: BTreeSet::new(),
            healthy: BTreeSet::new(),
            unknown: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.dice.random_range(0..from.len())].clone()
    }

    fn target(&mut self) -> Target {
        let name = self.pick(&CLUSTERS);
        if self.dice.random_bool(0.4) {
            let name = if name.starts_with("auto") { "one" } else { name };
            let access = self.pick(&[IpAccess::Shared, IpAccess::Dedicated]);
            return Target::Cluster(over(&cluster(name), |inst| inst.set_ip_access(access)));
        }
        let app = self.pick(&APPS);
        Target::App(app_inst(app, name))
    }

    /// One thing that happens.
    async fn step(&mut self) {
        match self.dice.random_range(0..24) {
            0 | 1 => self.change_manners(),
            2 => self.crash().await,
            20 => self.evict_and_call().await,
            21 => self.cancel().await,
            3 => {
                self.log.push("caretaker".into());
                let caring = self.world.service_caretaker();
                self.world.while_time_passes(caring).await;
                self.forget();
            }
            4..=6 => self.call_and_leave().await,
            _ => self.call().await,
        }
    }

    fn change_manners(&mut self) {
        let what = self.pick(&["Create", "Update", "Delete", "Create AppInst", "Delete AppInst"]);
        let manners = [
            Manner::Works,
            Manner::Works,
            Manner::AtOnce,
            Manner::Fails("broken"),
            Manner::Silent,
            Manner::Hangs,
        ];
        let manner = self.pick(&manners);
        self.log.push(format!("crm: {what} {manner:?}"));
        self.world.crm.set(what, manner);
    }

    fn crm_is_reliable(&self) -> bool {
        let script = self.world.crm.script.lock();
        script.manners.values().all(|manner| matches!(manner, Manner::Works | Manner::AtOnce))
    }

    async fn crash(&mut self) {
        self.log.push("crash".into());
        let (store, clock) = (Arc::clone(&self.world.controller.store), self.world.clock.clone());
        let script = Arc::clone(&self.world.crm.script);
        // The old process goes first: two of one name cannot be.
        self.world.stop();
        self.world = World::idle_on(store, clock, script, settings()).await;
        self.world.drive();
        self.forget();
    }

    /// Cancels something that is under way.
    async fn cancel(&mut self) {
        let engine = self.world.controller.engine.clone();
        let active: Vec<_> =
            engine.list().into_iter().filter(|it| matches!(it.state, 1 | 2)).collect();
        if active.is_empty() {
            return;
        }
        let chosen = self.pick(&active);
        self.log.push(format!("cancel {} {}", chosen.kind, chosen.key));
        // Refused when it has ended or cannot be cancelled any more.
        let _ = engine.cancel(&chosen.id, "model").await;
        self.forget();
    }

    /// While nobody speaks for the cloudlet nothing is begun on it.
    async fn evict_and_call(&mut self) {
        let key = cloudlet_key("tmus", "cloud-1");
        let held = self.world.controller.tables.get::<CloudletInfo>(&key).unwrap();
        let info = CloudletInfo { controller: String::new(), ..held.value.0.clone() };
        self.world.controller.evict_cloudlet_info(&info, Mode::Real).await.unwrap();
        let (verb, mut what) = self.request();
        what.set_override(CrmOverride::NoOverride);
        let answer = self.world.while_time_passes(self.ask(verb, &what)).await;
        self.log.push(format!("{verb:?} {} without cloudlet: {answer:?}", what.key()));
        assert!(answer.error.is_some(), "begun without an agent\n{}", self.log.join("\n"));
        self.world.controller.inject_cloudlet_info(info, Mode::Real).await.unwrap();
    }

    async fn ask(&self, verb: Verb, what: &Target) -> Answer {
        let world = &self.world;
        match (verb, what) {
            (Verb::Create, Target::Cluster(inst)) => world.create_cluster(inst).await,
            (Verb::Update, Target::Cluster(inst)) => world.update_cluster(inst).await,
            (Verb::Delete, Target::Cluster(inst)) => world.delete_cluster(inst).await,
            (Verb::Create, Target::App(inst)) => world.create_app(inst).await,
            (Verb::Update, Target::App(inst)) => world.update_app(inst).await,
            (Verb::Delete, Target::App(inst)) => world.delete_app(inst).await,
        }
    }

    /// Forgets the model's knowledge: work that goes on unseen may change
    /// anything.
    fn forget(&mut self) {
        self.unknown.extend(self.present.iter().cloned());
        for name in CLUSTERS {
            self.unknown.insert(cluster(name).key_text());
            self.unknown.extend(APPS.map(|app| app_inst(app, name).key_text()));
        }
    }

    fn request(&mut self) -> (Verb, Target) {
        let verb = self.pick(&[Verb::Create, Verb::Create, Verb::Delete, Verb::Update]);
        let mut what = self.target();
        if let (Verb::Update, Target::Cluster(inst)) = (verb, &mut what) {
            inst.fields = vec!["14".into()];
            inst.num_nodes = self.dice.random_range(1..5);
        }
        // To delete something while its crm is ignored is to make an orphan.
        if verb == Verb::Create && self.dice.random_bool(0.2) {
            let over_ = self.pick(&[CrmOverride::IgnoreCrm, CrmOverride::IgnoreCrmErrors]);
            what.set_override(over_);
        }
        (verb, what)
    }

    async fn call_and_leave(&mut self) {
        let (verb, what) = self.request();
        let lines = self.dice.random_range(0..3);
        self.log.push(format!("{verb:?} {} and leave after {lines}", what.key()));
        let service = &self.world.service;
        let reply = match (verb, what) {
            (Verb::Create, Target::Cluster(inst)) => {
                service.create_cluster_inst(Request::new(inst)).await
            }
            (Verb::Update, Target::Cluster(inst)) => {
                service.update_cluster_inst(Request::new(inst)).await
            }
            (Verb::Delete, Target::Cluster(inst)) => {
                ClusterInstApi::delete_cluster_inst(&**service, Request::new(inst)).await
            }
            (Verb::Create, Target::App(inst)) => service.create_app_inst(Request::new(inst)).await,
            (Verb::Update, Target::App(inst)) => service.update_app_inst(Request::new(inst)).await,
            (Verb::Delete, Target::App(inst)) => {
                AppInstApi::delete_app_inst(&**service, Request::new(inst)).await
            }
        };
        if let Ok(reply) = reply {
            let mut stream = reply.into_inner();
            let listening = async {
                for _ in 0..lines {
                    stream.next().await;
                }
            };
            self.world.while_time_passes(listening).await;
        }
        self.forget();
    }

    async fn call(&mut self) {
        let (verb, what) = self.request();
        let (key, reliable) = (what.key(), self.crm_is_reliable());
        let calling = self.ask(verb, &what);
        let busy = !self.unknown.is_empty();
        let answer = if reliable && !busy {
            calling.await
        } else {
            self.world.while_time_passes(calling).await
        };
        self.log.push(format!("{verb:?} {key}: {answer:?}"));
        if !reliable || self.unknown.contains(&key) {
            return self.forget();
        }
        let went_well = answer.error.is_none();
        self.compare(verb, &what, &key, went_well);
    }

    /// Compares with the model: a call to a crm that works, on something whose
    /// state is known.
    fn compare(&mut self, verb: Verb, what: &Target, key: &str, went_well: bool) {
        let there = self.present.contains(key);
        match verb {
            Verb::Create if went_well => {
                assert!(!there, "created twice: {key}\n{}", self.log.join("\n"));
                self.present.insert(key.to_owned());
                self.healthy.insert(key.to_owned());
            }
            Verb::Delete if went_well => {
                assert!(there, "deleted what was not there: {key}\n{}", self.log.join("\n"));
                self.present.remove(key);
                self.healthy.remove(key);
            }
            Verb::Delete => {
                let has_apps = matches!(what, Target::Cluster(_));
                assert!(!there || has_apps, "not deleted: {key}\n{}", self.log.join("\n"));
            }
            Verb::Update => {
                assert_eq!(self.healthy.contains(key), went_well, "{key}\n{}", self.log.join("\n"));
            }
            Verb::Create => {}
        }
        let row = match what {
            Target::Cluster(inst) => self.world.cluster(inst).is_some(),
            Target::App(inst) => self.world.app(inst).is_some(),
        };
        assert_eq!(row, self.present.contains(key), "{key}\n{}", self.log.join("\n"));
    }

    /// Everything comes to rest, with crms that work; then what must hold
    /// always, holds.
    async fn settle(&mut self) {
        for _ in 0..4 {
            self.world.restart_crm().await;
            self.world.while_time_passes(self.world.idle()).await;
            self.world.while_time_passes(self.world.service_caretaker()).await;
        }
        let log = self.log.join("\n");
        let tables = &self.world.controller.tables;
        for held in tables.cluster_insts.list() {
            let inst = &held.value.0;
            assert!(!is_transient(inst.state()), "{inst:?}\n{log}");
        }
        for held in tables.app_insts.list() {
            let inst = &held.value.0;
            assert!(!is_transient(inst.state()), "{inst:?}\n{log}");
        }
        let wrong = crate::instances::usage_check::differences(tables);
        assert!(wrong.is_empty(), "{wrong:?}\n{log}");
        for key in &self.world.crm.script.lock().reality {
            let known =
                tables.app_insts.get(key).is_some() || tables.cluster_insts.get(key).is_some();
            assert!(known, "{key} is an orphan\n{log}");
        }
        let clusters = tables.cluster_insts.list();
        let apps = tables.app_insts.list();
        let all = clusters.iter().map(|held| (held.key.clone(), held.value.0.state()));
        let all = all.chain(apps.iter().map(|held| (held.key.clone(), held.value.0.state())));
        let all: Vec<_> = all.collect();
        self.present = all.iter().map(|(key, _)| key.clone()).collect();
        let sound = |state| matches!(state, TrackedState::Ready | TrackedState::UpdateError);
        self.healthy =
            all.into_iter().filter(|(_, state)| sound(*state)).map(|(key, _)| key).collect();
        self.unknown.clear();
    }
}

async fn run(seed: u64, rounds: usize, steps: usize) {
    let mut run = Run::new(seed).await;
    for _ in 0..rounds {
        run.log.push(format!("seed {seed}"));
        for _ in 0..steps {
            let step = tokio::time::timeout(CALL_TIMEOUT, run.step()).await;
            assert!(step.is_ok(), "it hangs: {:?}\n{}", run.world.under_way(), run.log.join("\n"));
        }
        let settled = tokio::time::timeout(CALL_TIMEOUT, run.settle()).await;
        assert!(settled.is_ok(), "no rest: {:?}\n{}", run.world.under_way(), run.log.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_books_are_true() {
    // More of them at night.
    let seeds = std::env::var("SELVAGE_MODEL_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(24) {
        run(seed, 3, 12).await;
    }
}
