//! A real Ceph cluster on loopback: a monitor, two managers with their dashboards and
//! three OSDs. Suites and benchmarks take this file in by its path.

use std::{
    collections::BTreeMap,
    io::Write,
    net::TcpListener,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Timeout of a daemon's reaction to a command.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// A user of the dashboards who may read everything.
pub(crate) const USER: &str = "reader";
pub(crate) const PASSWORD: &str = "Passw0rd!demo";

fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// One `ceph` that answers question after question: to start it takes longer than to ask.
pub(crate) struct Asker {
    child: Child,
    questions: ChildStdin,
    answers: serde_json::StreamDeserializer<
        'static,
        serde_json::de::IoRead<std::io::BufReader<ChildStdout>>,
        Value,
    >,
}

impl Drop for Asker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Asker {
    /// The answer to a command that prints JSON. An error of Ceph's is none, and ends the test.
    pub(crate) fn ask(&mut self, words: &str) -> Value {
        writeln!(self.questions, "{words}").unwrap();
        self.answers.next().unwrap().unwrap_or_else(|error| panic!("{words}: {error}"))
    }
}

/// The cluster. Nothing of it is left when it is dropped.
pub(crate) struct Cluster {
    pub(crate) daemons: BTreeMap<String, Child>,
    /// Ports of the managers' dashboards.
    pub(crate) ports: [u16; 2],
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
    pub(crate) fn start() -> Option<Self> {
        let there = |program: &str| {
            Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success())
        };
        let dashboard = std::path::Path::new("/usr/share/ceph/mgr/dashboard/module.py").exists();
        if !dashboard || !["ceph", "ceph-mon", "ceph-mgr", "ceph-osd"].into_iter().all(there) {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
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
admin_socket = {at}/$name.$pid.asok
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

    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Vec<u8> {
        let ran = self.command(program, words).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{program} {words:?}: {said}");
        ran.stdout
    }

    pub(crate) fn ceph(&self, words: &str) -> Vec<u8> {
        self.run("ceph", &words.split(' ').collect::<Vec<_>>())
    }

    /// Starts a `ceph` that is asked more than once.
    pub(crate) fn asker(&self) -> Asker {
        let mut command = self.command("sh", &["-c", "exec ceph -f json 2>&1"]);
        command.env("PYTHONUNBUFFERED", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let questions = child.stdin.take().unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        let answers = serde_json::Deserializer::from_reader(answers).into_iter();
        Asker { child, questions, answers }
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

    pub(crate) fn osd(&mut self, number: u32) {
        let keyring = self.text(&format!("osd{number}/keyring"));
        let text = number.to_string();
        self.begin(
            &format!("osd.{number}"),
            "ceph-osd",
            &["-i", &text, "-f", "--keyring", &keyring],
        );
    }

    /// Kills a daemon as a power cut does.
    pub(crate) fn kill(&mut self, name: &str) {
        if let Some(mut daemon) = self.daemons.remove(name) {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    pub(crate) fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + LONG;
        while !so() {
            assert!(Instant::now() < deadline, "never: {what}: {}", self.health());
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    pub(crate) fn health(&self) -> String {
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
        let words =
            ["dashboard", "ac-user-create", USER, "read-only", "-i", password, "--force-password"];
        self.until("a user", || {
            self.command("ceph", &words).output().is_ok_and(|ran| ran.status.success())
        });
    }
}
