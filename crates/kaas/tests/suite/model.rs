//! Random calls, with crashes in between, against a small model that knows the
//! answer to every one of them.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use selvage_api::{
    Code,
    cnct::kaas::api::{AddNodePoolMsg, DeleteNodePoolMsg, ScaleNodePoolMsg, ScaleNodePoolSpec},
};
use selvage_kaas::{Origin, catalogue::Version, provider::sim::Fault, record::Phase};

use super::lab::{Lab, admin, request, spec};

/// Sequences of a run; more with `SELVAGE_MODEL_RUNS`.
const RUNS: u64 = 8;
const CALLS: usize = 40;
const CLUSTERS: [&str; 3] = ["red", "green", "blue"];
const POOLS: [&str; 3] = ["a", "b", "c"];
const VERSIONS: [&str; 6] = ["1.35.8", "v1.36.4", "1.37.1", "1.34.0", "1.36", ""];

#[derive(Debug, Clone)]
struct ModelPool {
    count: i32,
    /// Machines that it had when all was settled.
    settled: i32,
    deleting: bool,
}

#[derive(Debug, Clone)]
struct ModelCluster {
    version: String,
    /// Version that runs; empty before it was settled once.
    running: String,
    control_plane: i32,
    pools: BTreeMap<String, ModelPool>,
    deleting: bool,
    /// Nothing becomes of what is asked for, but deletion.
    paused: bool,
}

impl ModelCluster {
    fn status(&self) -> &'static str {
        let moving = |pool: &ModelPool| pool.deleting || pool.count != pool.settled;
        if self.deleting {
            "STOPPING"
        } else if self.running.is_empty() {
            "PROVISIONING"
        } else if self.version != self.running || self.pools.values().any(moving) {
            "RECONCILING"
        } else {
            "RUNNING"
        }
    }

    fn is_between_versions(&self) -> bool {
        !self.running.is_empty() && self.running != self.version
    }

    /// Machines that there are between two times of being settled.
    fn machines(&self) -> i32 {
        if self.running.is_empty() {
            return 0;
        }
        self.control_plane + self.pools.values().map(|pool| pool.settled).sum::<i32>()
    }

    fn settle(&mut self) {
        if self.paused {
            return;
        }
        self.running = self.version.clone();
        self.pools.retain(|_, pool| !pool.deleting);
        for pool in self.pools.values_mut() {
            pool.settled = pool.count;
        }
    }
}

/// Versions that one upgrade of so many minors reaches.
fn next(running: &str, step: usize) -> &'static [&'static str] {
    let newer: &[&str] = match running {
        "1.35.8" => &["1.36.4", "1.37.1"],
        "1.36.4" => &["1.37.1"],
        _ => &[],
    };
    &newer[..newer.len().min(step)]
}

type Model = BTreeMap<String, ModelCluster>;

/// Result of a call.
fn came_to<T>(result: Result<T, selvage_kaas::Error>) -> Result<(), Code> {
    result.map(drop).map_err(|error| error.code())
}

struct Run {
    lab: Lab,
    /// Minors that one upgrade goes forward.
    step: usize,
    model: Model,
    random: StdRng,
    log: Vec<String>,
}

impl Run {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from.choose(&mut self.random).unwrap()
    }

    fn expect(&mut self, what: String, answer: Result<(), Code>, right: Result<(), Code>) {
        self.log.push(format!("{what} → {answer:?}"));
        assert_eq!(answer, right, "{:#?}\n{:#?}", self.log, self.model);
    }

    async fn call(&mut self) {
        let name = self.pick(&CLUSTERS).to_owned();
        match self.random.random_range(0..15) {
            0 | 1 => self.create(&name).await,
            2 => self.delete(&name).await,
            3 | 4 => self.scale(&name).await,
            5 => self.add_pools(&name).await,
            6 => self.delete_pools(&name).await,
            7 => self.upgrade(&name).await,
            8 | 9 => self.settle(&name).await,
            10 => self.pause(&name).await,
            11 | 12 => self.cut_off(&name).await,
            _ => self.crash(&name).await,
        }
        self.compare();
    }

    async fn create(&mut self, name: &str) {
        let version = self.pick(&VERSIONS);
        let control_plane = *[0, 1, 2, 3, 3].choose(&mut self.random).unwrap();
        let pool = self.pick(&POOLS);
        let count = self.random.random_range(-1..3);
        let asked = request(name, version, control_plane, &[(pool, count)]);
        let made = self.lab.manager.create(&admin(), &Origin::default(), &asked).await;
        let offered = ["1.35.8", "v1.36.4", "1.37.1", ""].contains(&version);
        let right = if !offered || control_plane == 2 || count < 0 {
            Err(Code::InvalidArgument)
        } else if self.model.contains_key(name) {
            Err(Code::AlreadyExists)
        } else {
            let version = if version.is_empty() { "1.37.1" } else { version };
            let pools = [(pool.to_owned(), ModelPool { count, settled: 0, deleting: false })];
            let cluster = ModelCluster {
                version: version.trim_start_matches('v').to_owned(),
                running: String::new(),
                control_plane: control_plane.max(1),
                pools: pools.into(),
                deleting: false,
                paused: false,
            };
            self.model.insert(name.to_owned(), cluster);
            Ok(())
        };
        let what = format!("create {name} {version} {control_plane} {pool}={count}");
        self.expect(what, came_to(made), right);
    }

    async fn delete(&mut self, name: &str) {
        let deleted = self.lab.manager.delete(&admin(), name).await;
        let right = match self.model.get_mut(name) {
            None => Err(Code::NotFound),
            Some(cluster) => {
                cluster.deleting = true;
                Ok(())
            }
        };
        self.expect(format!("delete {name}"), came_to(deleted), right);
    }

    async fn scale(&mut self, name: &str) {
        let pool = self.pick(&POOLS);
        let count = self.random.random_range(-1..4);
        let node_pools = vec![ScaleNodePoolSpec { name: pool.into(), count }];
        let asked = ScaleNodePoolMsg { cluster_name: name.into(), node_pools };
        let scaled = self.lab.manager.scale(&admin(), &asked).await;
        let right = match self.model.get_mut(name) {
            _ if count < 0 => Err(Code::InvalidArgument),
            None => Err(Code::NotFound),
            Some(cluster) => {
                let blocked = cluster.deleting || cluster.is_between_versions();
                match cluster.pools.get_mut(pool).filter(|pool| !pool.deleting) {
                    None => Err(Code::NotFound),
                    Some(_) if blocked => Err(Code::FailedPrecondition),
                    Some(pool) => {
                        pool.count = count;
                        Ok(())
                    }
                }
            }
        };
        self.expect(format!("scale {name} {pool}={count}"), came_to(scaled), right);
    }

    async fn add_pools(&mut self, name: &str) {
        let (one, two) = (self.pick(&POOLS), self.pick(&POOLS));
        let worker_node_pools = vec![spec(one, 1), spec(two, 0)];
        let asked = AddNodePoolMsg { cluster_name: name.into(), worker_node_pools };
        let added = self.lab.manager.add_pools(&admin(), &asked).await;
        let right = match self.model.get_mut(name) {
            _ if one == two => Err(Code::InvalidArgument),
            None => Err(Code::NotFound),
            Some(c) if c.deleting || c.is_between_versions() => Err(Code::FailedPrecondition),
            Some(c) if c.pools.contains_key(one) || c.pools.contains_key(two) => {
                Err(Code::AlreadyExists)
            }
            Some(cluster) => {
                for (name, count) in [(one, 1), (two, 0)] {
                    let pool = ModelPool { count, settled: 0, deleting: false };
                    cluster.pools.insert(name.to_owned(), pool);
                }
                Ok(())
            }
        };
        self.expect(format!("add pools {one} {two} to {name}"), came_to(added), right);
    }

    async fn delete_pools(&mut self, name: &str) {
        let pool = self.pick(&POOLS);
        let node_pool_names = vec![pool.to_owned()];
        let asked = DeleteNodePoolMsg { cluster_name: name.into(), node_pool_names };
        let deleted = self.lab.manager.delete_pools(&admin(), &asked).await;
        let right = match self.model.get_mut(name) {
            None => Err(Code::NotFound),
            Some(c) if c.deleting || c.is_between_versions() => Err(Code::FailedPrecondition),
            Some(cluster) => match cluster.pools.get_mut(pool).filter(|pool| !pool.deleting) {
                None => Err(Code::NotFound),
                Some(pool) => {
                    pool.deleting = true;
                    Ok(())
                }
            },
        };
        self.expect(format!("delete pool {pool} of {name}"), came_to(deleted), right);
    }

    async fn upgrade(&mut self, name: &str) {
        // Few of all versions can be reached.
        let reached = self.model.get(name).map_or(&[][..], |c| next(&c.running, self.step));
        let version = match self.random.random_bool(0.5) && !reached.is_empty() {
            true => self.pick(reached),
            false => self.pick(&VERSIONS),
        };
        self.upgrade_to(name, version).await;
    }

    async fn upgrade_to(&mut self, name: &str, version: &str) {
        let upgraded = self.lab.upgrade(name, version).await;
        let target = version.trim_start_matches('v');
        let right = match self.model.get_mut(name) {
            None => Err(Code::NotFound),
            Some(_) if target.parse::<Version>().is_err() => Err(Code::InvalidArgument),
            Some(cluster) if cluster.version == target && !cluster.deleting => Ok(()),
            Some(cluster) => {
                let reached = next(&cluster.running, self.step).contains(&target);
                if cluster.status() == "RUNNING" && reached {
                    cluster.version = target.to_owned();
                    Ok(())
                } else {
                    Err(Code::FailedPrecondition)
                }
            }
        };
        self.expect(format!("upgrade {name} to {version}"), came_to(upgraded), right);
    }

    /// Pauses a cluster, or lets it go on.
    async fn pause(&mut self, name: &str) {
        let paused = !self.model.get(name).is_some_and(|cluster| cluster.paused);
        let answer = self.lab.manager.pause(&admin(), name, paused).await;
        let right = match self.model.get_mut(name) {
            None => Err(Code::NotFound),
            Some(cluster) if cluster.deleting => Err(Code::FailedPrecondition),
            Some(cluster) => {
                cluster.paused = paused;
                Ok(())
            }
        };
        self.expect(format!("pause {name}: {paused}"), came_to(answer), right);
    }

    /// The process ends in the middle of an upgrade, and the cluster is paused there: it
    /// can go nowhere else.
    async fn cut_off(&mut self, name: &str) {
        let Some(cluster) = self.model.get(name) else { return };
        let reached = next(&cluster.running, self.step);
        if cluster.status() != "RUNNING" || cluster.paused || reached.is_empty() {
            return;
        }
        let target = self.pick(reached);
        self.upgrade_to(name, target).await;
        let call = self.random.random_range(1..25);
        self.crash_at(name, call, Fault::CrashAfter).await;
        self.pause(name).await;
        let machines = self.lab.manager.find(name).unwrap().machines;
        if machines.iter().all(|m| m.phase() == Phase::Ready && m.running.kubelet == target) {
            self.model.get_mut(name).unwrap().running = target.to_owned();
        } else {
            assert_eq!(self.lab.status(name), "RECONCILING", "{:#?}", self.log);
            for version in VERSIONS {
                self.upgrade_to(name, version).await;
            }
        }
        self.pause(name).await;
        self.settle(name).await;
    }

    async fn settle(&mut self, name: &str) {
        self.lab.settle(name).await;
        self.log.push(format!("settle {name}"));
        self.settled(name);
    }

    fn settled(&mut self, name: &str) {
        if self.model.get(name).is_some_and(|cluster| cluster.deleting) {
            self.model.remove(name);
        } else if let Some(cluster) = self.model.get_mut(name) {
            cluster.settle();
        }
    }

    /// The process ends somewhere on the way; the next one goes on.
    async fn crash(&mut self, name: &str) {
        let call = self.random.random_range(1..20);
        let faults = [Fault::CrashBefore, Fault::CrashAfter, Fault::LoseAnswer];
        let fault = *faults.choose(&mut self.random).unwrap();
        self.crash_at(name, call, fault).await;
        self.lab.settle(name).await;
        self.settled(name);
    }

    async fn crash_at(&mut self, name: &str, call: u64, fault: Fault) {
        self.lab.sim.fault(call, fault);
        let crashed = tokio::select! {
            biased;
            () = self.lab.sim.crashed() => true,
            () = self.lab.settle(name) => false,
        };
        self.log.push(format!("{fault:?} at call {call} of {name}: {crashed}"));
        self.lab.sim.forget_faults();
        if crashed {
            self.lab.restart().await;
        }
    }

    /// Every answer that can be read, and the rules of the world.
    fn compare(&self) {
        let manager = &self.lab.manager;
        let listed: Vec<String> = manager.list().into_iter().map(|cluster| cluster.name).collect();
        let known: Vec<String> = self.model.keys().cloned().collect();
        assert_eq!(listed, known, "{:#?}", self.log);
        let mut machines = 0;
        for (name, cluster) in &self.model {
            let snapshot = manager.find(name).unwrap();
            assert_eq!(self.lab.status(name), cluster.status(), "{name} {:#?}", self.log);
            let count = i32::try_from(snapshot.machines.len()).unwrap();
            assert_eq!(count, cluster.machines(), "{name} {:#?}", self.log);
            machines += snapshot.machines.len();
            let from = if cluster.running.is_empty() { &cluster.version } else { &cluster.running };
            let from: Version = from.parse().unwrap();
            let reachable = next(&from.to_string(), self.step);
            let told: Vec<String> =
                manager.upgrades(&snapshot).iter().map(ToString::to_string).collect();
            assert_eq!(told, reachable, "{name}");
        }
        assert_eq!(self.lab.sim.owned(), machines, "leaked or lost: {:#?}", self.log);
        assert_eq!(self.lab.sim.violations(), Vec::<String>::new(), "{:#?}", self.log);
    }
}

#[tokio::test]
async fn random_calls_and_crashes_give_the_answers_of_the_model() {
    let runs = std::env::var("SELVAGE_MODEL_RUNS").ok().and_then(|text| text.parse().ok());
    for seed in 0..runs.unwrap_or(RUNS) {
        let random = StdRng::seed_from_u64(seed);
        let step = 1 + usize::from(seed % 2 == 1);
        let lab = Lab::with_step(u32::try_from(step).unwrap()).await;
        let log = vec![format!("seed {seed}")];
        let mut run = Run { lab, step, model: Model::new(), random, log };
        for _ in 0..CALLS {
            run.call().await;
        }
        for name in CLUSTERS {
            run.delete(name).await;
            run.settle(name).await;
        }
        run.compare();
        assert_eq!(run.lab.sim.owned(), 0);
    }
}
