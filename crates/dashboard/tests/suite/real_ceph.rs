//! A real Ceph cluster: a monitor, two managers with their dashboards and three
//! OSDs, asked as `ceph -s` is asked, while daemons die and come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use selvage_dashboard::{
    facts::{Section, Storage},
    source::ceph::{Ceph, CephMon, Program, RestOptions, decode_status},
};
use selvage_kit::{identity::Secret, tasks::Tasks};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::lab::Lab;

/// Timeout of a daemon's reaction to a command.
const LONG: Duration = Duration::from_secs(300);
/// Steps of chaos; more by SELVAGE_CEPH_STEPS.
const STEPS: u32 = 50;
const PASSWORD: &str = "Passw0rd!demo";

fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// The cluster. Nothing of it is left when it is dropped.
struct Cluster {
    daemons: BTreeMap<String, Child>,
    /// Of the managers' dashboards.
    ports: [u16; 2],
    folder: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.values_mut() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Cluster {
    /// Starts one; None where Ceph is not installed.
    fn start() -> Option<Self> {
        let there = |program: &str| {
            Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success())
        };
        let dashboard = std::path::Path::new("/usr/share/ceph/mgr/dashboard/module.py").exists();
        if !dashboard || !["ceph", "ceph-mon", "ceph-mgr", "ceph-osd"].into_iter().all(there) {
            assert!(std::env::var_os("CI").is_none(), "Ceph is missing on CI");
            println!("SKIPPED: ceph: not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { daemons: BTreeMap::new(), ports: [free(), free()], folder };
        cluster.configure();
        cluster.monitor();
        for (name, port) in ["x", "y"].into_iter().zip(cluster.ports) {
            cluster.manager(name, port);
        }
        for number in 0..3 {
            cluster.make_osd(number);
            cluster.osd(number);
        }
        cluster.dashboard();
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn configure(&self) {
        let at = self.folder.path().display();
        for name in ["mon", "mgr-x", "mgr-y", "osd0", "osd1", "osd2"] {
            std::fs::create_dir(self.path(name)).unwrap();
        }
        let (first, second, cluster) = (free(), free(), id());
        let text = format!(
            "[global]
fsid = {cluster}
mon_host = [v2:127.0.0.1:{first},v1:127.0.0.1:{second}]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
keyring = {at}/keyring
run_dir = {at}
admin_socket = {at}/$name.asok
log_file = {at}/$name.log
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_max_pg_per_osd = 1000
mon_allow_pool_delete = true
mon_data_avail_warn = 1
mon_data_avail_crit = 0
auth_allow_insecure_global_id_reclaim = false
osd_objectstore = bluestore
bluestore_block_size = 1073741824
[mon]
mon_data = {at}/mon
[osd]
osd_data = {at}/osd$id
"
        );
        std::fs::write(self.path("ceph.conf"), text).unwrap();
        std::fs::write(self.path("monitors.env"), format!("{cluster} {first} {second}")).unwrap();
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env("CEPH_CONF", self.path("ceph.conf")).stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, words: &[&str]) -> Vec<u8> {
        let ran = self.command(program, words).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{program} {words:?}: {said}");
        ran.stdout
    }

    fn ceph(&self, words: &str) -> Vec<u8> {
        self.run("ceph", &words.split(' ').collect::<Vec<_>>())
    }

    fn begin(&mut self, name: &str, program: &str, words: &[&str]) {
        let log = std::fs::File::create(self.path(&format!("{name}.out"))).unwrap();
        let mut command = self.command(program, words);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.insert(name.into(), child);
    }

    fn monitor(&mut self) {
        let (keyring, map) = (self.text("keyring"), self.text("monitors"));
        let numbers = std::fs::read_to_string(self.path("monitors.env")).unwrap();
        let [cluster, first, second] = numbers.split(' ').collect::<Vec<_>>()[..] else { panic!() };
        let place = format!("[v2:127.0.0.1:{first},v1:127.0.0.1:{second}]");
        let mon =
            ["--create-keyring", &keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"];
        self.run("ceph-authtool", &mon);
        let all = "allow *";
        let admin = [
            &keyring,
            "--gen-key",
            "-n",
            "client.admin",
            "--cap",
            "mon",
            all,
            "--cap",
            "osd",
            all,
            "--cap",
            "mds",
            all,
            "--cap",
            "mgr",
            all,
        ];
        self.run("ceph-authtool", &admin);
        self.run("monmaptool", &["--create", "--fsid", cluster, "--addv", "a", &place, &map]);
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &keyring]);
        self.begin("mon.a", "ceph-mon", &["-i", "a", "-f"]);
        self.ceph("config set mon auth_allow_insecure_global_id_reclaim false");
    }

    fn manager(&mut self, name: &str, port: u16) {
        let folder = self.text(&format!("mgr-{name}"));
        let keyring = format!("{folder}/keyring");
        let who = format!("mgr.{name}");
        let caps = ["mon", "allow profile mgr", "osd", "allow *", "mds", "allow *"];
        let words = [&["auth", "get-or-create", &who][..], &caps[..]].concat();
        std::fs::write(&keyring, self.run("ceph", &words)).unwrap();
        // Unknown until a manager is up, hence by force.
        self.ceph("config set --force mgr mgr/dashboard/ssl false");
        self.ceph(&format!("config set --force mgr mgr/dashboard/{name}/server_addr 127.0.0.1"));
        self.ceph(&format!("config set --force mgr mgr/dashboard/{name}/server_port {port}"));
        let words = ["-i", name, "-f", "--mgr-data", &folder, "--keyring", &keyring];
        self.begin(&who, "ceph-mgr", &words);
    }

    fn make_osd(&self, number: u32) {
        let (uuid, keyring) = (id(), self.text(&format!("osd{number}/keyring")));
        let made = self.run("ceph-authtool", &["--gen-print-key"]);
        let key = String::from_utf8(made).unwrap().trim().to_owned();
        let secrets = self.path("secrets.json");
        std::fs::write(&secrets, format!("{{\"cephx_secret\":\"{key}\"}}")).unwrap();
        self.run("ceph", &["osd", "new", &uuid, "-i", secrets.to_str().unwrap()]);
        let who = format!("osd.{number}");
        self.run("ceph-authtool", &["--create-keyring", &keyring, "-n", &who, "--add-key", &key]);
        let number = number.to_string();
        let words = ["-i", &number, "--mkfs", "--osd-uuid", &uuid, "--keyring", &keyring];
        self.run("ceph-osd", &words);
    }

    fn osd(&mut self, number: u32) {
        let keyring = self.text(&format!("osd{number}/keyring"));
        let text = number.to_string();
        self.begin(
            &format!("osd.{number}"),
            "ceph-osd",
            &["-i", &text, "-f", "--keyring", &keyring],
        );
    }

    /// Kills a daemon as a power cut does.
    fn kill(&mut self, name: &str) {
        if let Some(mut daemon) = self.daemons.remove(name) {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + LONG;
        while !so() {
            assert!(Instant::now() < deadline, "never: {what}: {}", self.health());
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn health(&self) -> String {
        String::from_utf8_lossy(&self.ceph("health detail")).into_owned()
    }

    fn dashboard(&self) {
        let available = || -> bool {
            let stat: Value = serde_json::from_slice(&self.ceph("mgr stat -f json")).unwrap();
            stat["available"] == true
        };
        self.until("a manager", available);
        // It breaks in an interpreter with others, and says so as a warning.
        self.ceph("mgr module disable restful");
        self.ceph("mgr module enable dashboard");
        self.until("a manager with the dashboard", available);
        let password = self.path("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let password = password.to_str().unwrap();
        let words = [
            "dashboard",
            "ac-user-create",
            "reader",
            "read-only",
            "-i",
            password,
            "--force-password",
        ];
        self.until("a user", || {
            self.command("ceph", &words).output().is_ok_and(|ran| ran.status.success())
        });
    }

    fn status(&self) -> Storage {
        decode_status(&self.ceph("status -f json")).unwrap()
    }
}

/// Values that are compared with `ceph -s`.
#[derive(Debug, PartialEq)]
struct Compared {
    id: String,
    status: String,
    checks: BTreeSet<String>,
    quorum: Vec<String>,
    osds: (u64, u64, u64),
    clean: Option<u64>,
    total: u64,
}

fn compared(storage: &Storage) -> Compared {
    let osd = storage.osd.clone().unwrap_or_default();
    Compared {
        id: storage.id.clone(),
        status: storage.status.clone(),
        checks: storage.checks.iter().filter(|c| !c.muted).map(|c| c.code.clone()).collect(),
        quorum: storage.mon.clone().unwrap_or_default().quorum,
        osds: (osd.count, osd.up, osd.r#in),
        clean: storage.clean_pgs,
        total: storage.usage.unwrap_or_default().total,
    }
}

struct Watched {
    lab: Lab,
    tasks: Tasks,
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
        username: "reader".into(),
        password: Secret::new(PASSWORD),
        ca: None,
        skip_tls_verify: false,
    };
    let every = Duration::from_secs(1);
    let program =
        Program { path: "ceph".into(), conf: Some(cluster.path("ceph.conf")), name: None };
    lab.dashboard.add_source(Ceph::new(options, every, None).unwrap());
    let board = Arc::clone(lab.dashboard.board());
    lab.dashboard.add_source(CephMon::new(program, board, every, false));
    let tasks = Tasks::new(CancellationToken::new());
    lab.dashboard.spawn(&tasks);
    Watched { lab, tasks }
}

impl Watched {
    fn storage(&self) -> Option<Arc<Storage>> {
        self.lab.dashboard.board().snapshot().facts.storage.clone()
    }

    /// Waits until what we tell is what `ceph -s` says; false if it never is.
    async fn settles(&self, cluster: &Arc<tokio::sync::Mutex<Cluster>>) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            let theirs = {
                let cluster = Arc::clone(cluster);
                let ask = move || compared(&cluster.blocking_lock().status());
                tokio::task::spawn_blocking(ask).await.unwrap()
            };
            let ours = self.storage().map(|storage| compared(&storage));
            if ours.as_ref() == Some(&theirs) {
                return true;
            }
            if Instant::now() > deadline {
                println!("ours {ours:#?}\ntheirs {theirs:#?}");
                return false;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// One step: something breaks, or is mended.
fn step(cluster: &mut Cluster, number: u32) -> String {
    let osd = number % 3;
    match number % 12 {
        0 => {
            cluster.kill(&format!("osd.{osd}"));
            format!("kill osd.{osd}")
        }
        1 => {
            for number in 0..3 {
                if !cluster.daemons.contains_key(&format!("osd.{number}")) {
                    cluster.osd(number);
                }
            }
            "start what was killed".into()
        }
        2 => said(cluster, "osd set noout"),
        3 => said(cluster, "osd unset noout"),
        4 => said(cluster, &format!("osd pool create pool{number} 4")),
        5 => said(cluster, &format!("osd out {osd}")),
        6 => said(cluster, "osd in 0 1 2"),
        7 => said(cluster, "osd set noscrub"),
        8 => said(cluster, "health mute OSDMAP_FLAGS 10m"),
        9 => said(cluster, "health unmute OSDMAP_FLAGS"),
        10 => said(cluster, "osd unset noscrub"),
        _ => {
            let pool = format!("pool{}", number / 12 * 12 + 4);
            said(cluster, &format!("osd pool rm {pool} {pool} --yes-i-really-really-mean-it"))
        }
    }
}

fn said(cluster: &Cluster, words: &str) -> String {
    cluster.ceph(words);
    words.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_tell_is_what_ceph_says_while_things_break() {
    let Some(cluster) = tokio::task::spawn_blocking(Cluster::start).await.unwrap() else { return };
    let watched = watch(&cluster).await;
    let cluster = Arc::new(tokio::sync::Mutex::new(cluster));
    assert!(watched.settles(&cluster).await, "at the start");
    let steps = std::env::var("SELVAGE_CEPH_STEPS").ok().and_then(|text| text.parse().ok());
    let mut mismatches = Vec::new();
    for number in 0..steps.unwrap_or(STEPS) {
        let breaking = Arc::clone(&cluster);
        let act = move || step(&mut breaking.blocking_lock(), number);
        let what = tokio::task::spawn_blocking(act).await.unwrap();
        println!("{number}: {what}");
        if !watched.settles(&cluster).await {
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
    let told_by_monitors = || {
        let sources = watched.lab.dashboard.board().sources();
        let storage = |name: &str| {
            sources.iter().find(|s| s.section == Section::Storage && s.source == name).cloned()
        };
        storage("ceph").is_some_and(|state| state.failing())
            && storage("ceph-mon").is_some_and(|s| s.fetched.is_some() && !s.failing())
    };
    while !told_by_monitors() {
        assert!(Instant::now() < deadline, "the monitors are not asked");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
