//! Anything that can go wrong with a MaaS, at any moment, by a seed.
//! `SELVAGE_MAAS_RUNS` sets how many runs there are.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use selvage_api::cnct::kaas::api::{ScaleNodePoolMsg, ScaleNodePoolSpec};
use selvage_kaas::Origin;
use tracing::level_filters::LevelFilter;

use super::{
    super::lab::{admin, request},
    lab::{MaasLab, token},
    sim::{Fault, Outcome},
};

const RUNS: u64 = 150;

const FAULTS: [Fault; 13] = [
    Fault::Answer(409, Some(5), "<html>conflict</html>"),
    Fault::Answer(409, None, "No machine available."),
    Fault::Answer(400, None, "Failed to render preseed: no such template"),
    Fault::Answer(403, None, "Forbidden"),
    Fault::Answer(404, None, "No Machine matches the given query."),
    Fault::Answer(503, Some(10), "Unable to connect to any rack controller"),
    Fault::Answer(504, None, "RPC timed out"),
    Fault::Reset,
    Fault::LoseAnswer,
    Fault::Late,
    Fault::Cut,
    Fault::CrashBefore,
    Fault::CrashAfter,
];
const OUTCOMES: [Outcome; 4] = [Outcome::Well, Outcome::Well, Outcome::Fails, Outcome::Sticks];

fn script(lab: &MaasLab, random: &mut StdRng) {
    for _ in 0..random.random_range(0..6) {
        let fault = *FAULTS.choose(random).unwrap();
        lab.sim.fault_at(random.random_range(1..60), fault);
    }
    let mut world = lab.sim.world.lock();
    for _ in 0..4 {
        world.deployments.push_back(*OUTCOMES.choose(random).unwrap());
        world.releases.push_back(*OUTCOMES.choose(random).unwrap());
    }
    world.forgets_early = random.random();
    world.answers_allocated = random.random();
    world.ahead = if random.random() { 0 } else { 7_200_000 };
    world.deploy_time = *[0, 60_000, 600_000].choose(random).unwrap();
    world.release_time = *[0, 60_000].choose(random).unwrap();
}

/// Some rounds of work; the process ends where that was scripted.
async fn rounds(lab: &mut MaasLab, count: usize) {
    for _ in 0..count {
        let sim = lab.sim.clone();
        let crashed = tokio::select! {
            biased;
            () = sim.crashed() => true,
            _ = lab.round("demo") => false,
        };
        if crashed {
            lab.restart().await;
        }
    }
}

async fn scale(lab: &mut MaasLab, count: i32) {
    let node_pools = vec![ScaleNodePoolSpec { name: "web".into(), count }];
    let asked = ScaleNodePoolMsg { cluster_name: "demo".into(), node_pools };
    let (sim, admin) = (lab.sim.clone(), admin());
    let crashed = tokio::select! {
        biased;
        () = sim.crashed() => true,
        // What is refused while MaaS is away is not what this is about.
        _ = lab.manager.scale(&admin, &asked) => false,
    };
    if crashed {
        lab.restart().await;
    }
}

/// Changes that others make.
fn meddle(lab: &MaasLab, random: &mut StdRng) {
    let Some(id) = lab.sim.owned().choose(random).cloned() else { return };
    match random.random_range(0..8) {
        0 => drop(lab.sim.world.lock().machines.remove(&id)),
        1 => lab.sim.change(&id, |machine| machine.owner = Some("root".into())),
        2 => lab.sim.change(&id, |machine| {
            if matches!(machine.status, 6 | 9 | 10) {
                machine.status = 8;
            }
        }),
        _ => {}
    }
}

async fn run(seed: u64) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut lab = MaasLab::new(random.random_range(2..6)).await;
    let asked = request("demo", "1.35.8", 1, &[("web", random.random_range(0..2))]);
    lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap();
    script(&lab, &mut random);
    for _ in 0..random.random_range(1..4) {
        rounds(&mut lab, random.random_range(1..40)).await;
        meddle(&lab, &mut random);
        if random.random() {
            scale(&mut lab, random.random_range(0..3)).await;
        }
    }
    if lab.manager.snapshot("demo").is_some() {
        lab.manager.delete(&admin(), "demo").await.unwrap();
    }
    rounds(&mut lab, 5).await;
    lab.sim.forget_faults();
    lab.pass(Duration::from_secs(3600)).await;
    lab.delete("demo").await;
    lab.check_end(&format!("seed {seed}"));
    let user_data = lab.sim.world.lock().user_data.clone();
    user_data.iter().map(|data| token(data)).collect()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn nothing_is_leaked_or_used_twice_whatever_happens() {
    let runs = std::env::var("SELVAGE_MAAS_RUNS").ok().and_then(|text| text.parse().ok());
    for seed in 0..runs.unwrap_or(RUNS) {
        Box::pin(run(seed)).await;
    }
}

#[tokio::test]
async fn no_secret_is_in_the_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut tokens = Vec::new();
    for seed in 0..10 {
        tokens.extend(Box::pin(run(1_000_000 + seed)).await);
    }
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(text.contains("selvage_kaas"), "nothing was logged");
    for secret in tokens.iter().map(String::as_str).chain(["canary"]) {
        if let Some(line) = text.lines().find(|line| line.contains(secret)) {
            panic!("a secret is in the log: {line}");
        }
    }
    assert!(!tokens.is_empty());
}
