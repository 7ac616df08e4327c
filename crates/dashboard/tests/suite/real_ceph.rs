//! A real Ceph cluster, asked as `ceph -s` is asked, while daemons die and come
//! back, flags are set, pools come and go, and crashes are reported.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use selvage_dashboard::{
    facts::{Section, Storage},
    source::ceph::{Ceph, CephMon, Program, RestOptions, decode_status},
};
use selvage_kit::{identity::Secret, tasks::Tasks};
use tokio_util::sync::CancellationToken;

use super::{
    ceph::{Asker, Cluster, LONG, PASSWORD, USER},
    lab::Lab,
};

/// Steps of chaos; more by SELVAGE_CEPH_STEPS, other ones by SELVAGE_CEPH_SEED.
const STEPS: u64 = 50;
/// Ours and Ceph's numbers are the same for so long before a step counts as settled.
const STEADY: Duration = Duration::from_secs(3);

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn start() -> Option<Cluster> {
    let cluster = Cluster::start();
    if cluster.is_none() {
        selvage_testkit::skip("ceph", "it is not installed: run ./dev test");
    }
    cluster
}

/// Answers of Ceph itself: its status, and how many pools and new crashes it lists.
fn said_by_ceph(asker: &mut Asker) -> (Compared, usize, usize) {
    let status = asker.ask("status").to_string();
    let mut listed = |words: &str| asker.ask(words).as_array().unwrap().len();
    let (pools, crashes) = (listed("osd pool ls"), listed("crash ls-new"));
    (compared(&decode_status(status.as_bytes()).unwrap()), pools, crashes)
}

/// Values that are compared with `ceph -s`.
#[derive(Debug, PartialEq)]
struct Compared {
    id: String,
    status: String,
    checks: BTreeSet<String>,
    quorum: Vec<String>,
    standbys: usize,
    osds: (u64, u64, u64),
    clean: Option<u64>,
    objects: Option<u64>,
    total: u64,
}

fn compared(storage: &Storage) -> Compared {
    let osd = storage.osd.clone().unwrap_or_default();
    Compared {
        id: storage.id.clone(),
        status: storage.status.clone(),
        checks: storage.checks.iter().filter(|c| !c.muted).map(|c| c.code.clone()).collect(),
        quorum: storage.mon.clone().unwrap_or_default().quorum,
        standbys: storage.mgr.clone().unwrap_or_default().standbys.len(),
        osds: (osd.count, osd.up, osd.r#in),
        clean: storage.clean_pgs,
        objects: storage.objects,
        total: storage.usage.unwrap_or_default().total,
    }
}

struct Watched {
    lab: Lab,
    tasks: Tasks,
    asker: Arc<Mutex<Asker>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

async fn watch(cluster: &Cluster) -> Watched {
    let lab = Lab::new().await;
    let options = RestOptions {
        urls: cluster.ports.map(|port| format!("http://127.0.0.1:{port}")).to_vec(),
        username: USER.into(),
        password: Secret::new(PASSWORD),
        ca: None,
        skip_tls_verify: false,
    };
    let every = Duration::from_secs(1);
    let program =
        Program { path: "ceph".into(), conf: Some(cluster.path("ceph.conf")), name: None };
    lab.dashboard.add_source(Ceph::new(options, every, Some(program.clone())).unwrap());
    let board = Arc::clone(lab.dashboard.board());
    lab.dashboard.add_source(CephMon::new(program, board, every, false));
    let tasks = Tasks::new(CancellationToken::new());
    lab.dashboard.spawn(&tasks);
    Watched { lab, tasks, asker: Arc::new(Mutex::new(cluster.asker())) }
}

impl Watched {
    fn storage(&self) -> Option<Arc<Storage>> {
        self.lab.dashboard.board().snapshot().facts.storage.clone()
    }

    /// Waits until Ceph says that so many OSDs are up, as the last step made it: before
    /// it notices, everything is still as it was.
    async fn notices(&self, running: u64) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            let asker = Arc::clone(&self.asker);
            let ask = move || asker.lock().unwrap().ask("status").to_string();
            let status = tokio::task::spawn_blocking(ask).await.unwrap();
            let osd = decode_status(status.as_bytes()).unwrap().osd;
            if osd.as_ref().is_some_and(|osd| osd.up == running) {
                return true;
            }
            if Instant::now() > deadline {
                println!("{running} OSDs run, Ceph says {osd:?}");
                return false;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Waits until what we tell is what Ceph says, poll after poll for a while; false if
    /// it never is. What was done last may take effect late.
    async fn settles(&self) -> bool {
        let deadline = Instant::now() + LONG;
        let mut equal_since = None;
        loop {
            let asker = Arc::clone(&self.asker);
            let ask = move || said_by_ceph(&mut asker.lock().unwrap());
            let theirs = tokio::task::spawn_blocking(ask).await.unwrap();
            let ours = self.storage().map(|storage| {
                let pools = storage.pools.as_ref().map_or(0, Vec::len);
                (compared(&storage), pools, storage.crashes.len())
            });
            let now = Instant::now();
            equal_since = match equal_since {
                _ if ours.as_ref() != Some(&theirs) => None,
                None => Some(now),
                known => known,
            };
            if equal_since.is_some_and(|since| now - since >= STEADY) {
                return true;
            }
            if now > deadline {
                println!("ours {ours:#?}\ntheirs {theirs:#?}");
                return false;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// Breaks things and repairs them at random, the same for the same seed.
struct Chaos {
    seed: u64,
    pools: Vec<String>,
    muted: bool,
}

const FLAGS: [&str; 4] = ["noout", "noscrub", "nodeep-scrub", "norebalance"];

impl Chaos {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self { seed, pools: Vec::new(), muted: false }
    }

    /// A number below a limit.
    fn below(&mut self, limit: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.seed >> 33).unwrap() % limit
    }

    /// One step: something breaks, or is mended. Two OSDs always run, so that Ceph
    /// can settle.
    fn step(&mut self, cluster: &mut Cluster, number: u64) -> String {
        let dead = (0..3).find(|osd| !cluster.daemons.contains_key(&format!("osd.{osd}")));
        let flag = FLAGS[self.below(FLAGS.len())];
        match (self.below(12), dead) {
            (0 | 1, None) => {
                let osd = format!("osd.{}", self.below(3));
                cluster.kill(&osd);
                format!("kill {osd}")
            }
            (0..=2, Some(osd)) => {
                cluster.osd(osd);
                format!("start osd.{osd}")
            }
            (2 | 3, _) => said(cluster, &format!("osd set {flag}")),
            (4, _) => said(cluster, &format!("osd unset {flag}")),
            (5, None) => said(cluster, &format!("osd out {}", number % 3)),
            (5 | 6, _) => said(cluster, "osd in 0 1 2"),
            (7, _) if self.pools.len() < 4 => {
                let pool = format!("pool{number}");
                self.pools.push(pool.clone());
                said(cluster, &format!("osd pool create {pool} 4"))
            }
            (7 | 8, _) if !self.pools.is_empty() => {
                let at = self.below(self.pools.len());
                let pool = self.pools.swap_remove(at);
                said(cluster, &format!("osd pool rm {pool} {pool} --yes-i-really-really-mean-it"))
            }
            (7..=9, _) => {
                self.muted = !self.muted;
                let words = ["health unmute OSDMAP_FLAGS", "health mute OSDMAP_FLAGS 1h --sticky"];
                said(cluster, words[usize::from(self.muted)])
            }
            (10, _) => crash(cluster, number),
            _ => said(cluster, "crash archive-all"),
        }
    }
}

/// Reports a crash as the agent of a machine does.
#[allow(clippy::disallowed_methods, reason = "the cluster goes by the time of the machine")]
fn crash(cluster: &Cluster, number: u64) -> String {
    let now = jiff::Timestamp::now();
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ");
    let report = serde_json::json!({
        "crash_id": format!("{time}_{number:08x}-0000-4000-8000-000000000000"),
        "timestamp": time.to_string(),
        "entity_name": "osd.0", "process_name": "ceph-osd", "ceph_version": "16.2.15",
        "utsname_hostname": "here", "backtrace": [],
    });
    let path = cluster.path("crash.json");
    std::fs::write(&path, report.to_string()).unwrap();
    cluster.run("ceph", &["crash", "post", "-i", path.to_str().unwrap()]);
    "a crash".into()
}

fn said(cluster: &Cluster, words: &str) -> String {
    cluster.ceph(words);
    words.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_tell_is_what_ceph_says_while_things_break() {
    let Some(cluster) = tokio::task::spawn_blocking(start).await.unwrap() else { return };
    let watched = watch(&cluster).await;
    let cluster = Arc::new(tokio::sync::Mutex::new(cluster));
    assert!(watched.settles().await, "at the start");
    let mut mismatches = Vec::new();
    let mut chaos = Chaos::new(number("SELVAGE_CEPH_SEED", 17));
    for number in 0..number("SELVAGE_CEPH_STEPS", STEPS) {
        let breaking = Arc::clone(&cluster);
        let act = move || {
            let cluster = &mut breaking.blocking_lock();
            let what = chaos.step(cluster, number);
            let osds = cluster.daemons.keys().filter(|name| name.starts_with("osd."));
            (chaos, what, osds.count() as u64)
        };
        let (what, running);
        (chaos, what, running) = tokio::task::spawn_blocking(act).await.unwrap();
        println!("{number}: {what}");
        if !watched.notices(running).await || !watched.settles().await {
            mismatches.push(format!("{number}: {what}"));
        }
    }
    assert_eq!(mismatches, Vec::<String>::new());
    // The managers die: the monitors go on telling.
    let killing = Arc::clone(&cluster);
    let kill = move || {
        let mut cluster = killing.blocking_lock();
        cluster.kill("mgr.x");
        cluster.kill("mgr.y");
    };
    tokio::task::spawn_blocking(kill).await.unwrap();
    let deadline = Instant::now() + LONG;
    let reported_by_monitors = || {
        let sources = watched.lab.dashboard.board().sources();
        let storage = |name: &str| {
            sources.iter().find(|s| s.section == Section::Storage && s.source == name).cloned()
        };
        storage("ceph").is_some_and(|state| state.failing())
            && storage("ceph-mon").is_some_and(|s| s.fetched.is_some() && !s.failing())
    };
    while !reported_by_monitors() {
        assert!(Instant::now() < deadline, "the monitors are not asked");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
