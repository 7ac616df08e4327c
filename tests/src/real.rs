//! The real parts that tests talk to. `./dev test` installs them.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::process::wait_for;

/// Says loudly that a test did not run. On CI a missing part is a failure.
pub fn skip(part: &str, reason: &str) {
    assert!(std::env::var("CI").is_err(), "{part} is missing on CI: {reason}");
    say_skipped(part, reason);
}

fn say_skipped(part: &str, reason: &str) {
    // Straight to the file descriptor: the test harness hides what passing
    // tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {part}: {reason}");
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Python with the packages of `./dev`, or `None` with a loud word.
pub fn python() -> Option<PathBuf> {
    from_environment("SELVAGE_TEST_PYTHON", "python")
}

/// The folder of npm packages, or `None` with a loud word.
pub fn node_modules() -> Option<PathBuf> {
    from_environment("SELVAGE_TEST_NODE_MODULES", "node")
}

/// A script of `tests/browser`, ready to be run, or `None` with a loud word.
pub fn browser(script: &str) -> Option<Command> {
    let modules = node_modules()?;
    if !Path::new("/usr/bin/chromium").exists() {
        skip("chromium", "it is not installed: run ./dev test");
        return None;
    }
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("browser").join(script));
    Some(command)
}

/// Runs a command that ends with `ok` on a line of its own.
pub fn must_end_ok(command: &mut Command) {
    let output = command.output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stdout.lines().last(), Some("ok"), "{stdout}\n{stderr}");
}

/// Runs a script of `tests/uml` under a kernel with a device mapper, LVM's
/// configuration and a disk in `folder`; whether it could be run, with a loud
/// word where not. `detail` adds what the script is given.
pub fn on_lvm(
    folder: &Path,
    seconds: u32,
    script: &str,
    detail: impl FnOnce(&mut Command),
) -> bool {
    for (part, path) in [
        ("user-mode-linux", "/usr/bin/linux.uml"),
        ("lvm2", "/usr/sbin/lvm"),
        ("kmod", "/usr/sbin/modprobe"),
    ] {
        if !Path::new(path).exists() {
            skip(part, "not installed");
            return false;
        }
    }
    let uml = Path::new(env!("CARGO_MANIFEST_DIR")).join("uml");
    let disk = folder.join("disk");
    fs::File::create(&disk).unwrap().set_len(6 << 30).unwrap();
    fs::copy(uml.join("lvm.conf"), folder.join("lvm.conf")).unwrap();
    let mut command = Command::new(uml.join("run"));
    command.env("LVM_SYSTEM_DIR", folder);
    command.args(["-t", &seconds.to_string(), "-d"]).arg(disk).arg("--").arg(uml.join(script));
    detail(&mut command);
    must_end_ok(&mut command);
    true
}

/// The programs of `tests/clients/pion`: the release that the original came
/// with and a later one. None, with a loud word, where there are none; where
/// `./dev` found that they cannot be had, on CI too.
pub fn pions() -> Vec<PathBuf> {
    if std::env::var_os("SELVAGE_TEST_WITHOUT_PION").is_some() {
        say_skipped("pion", "there is no Go here, or its modules cannot be had");
        return Vec::new();
    }
    let folder = from_environment("SELVAGE_TEST_PION", "pion");
    folder
        .map(|folder| ["2.0.7", "2.2.0"].map(|release| folder.join(release)).to_vec())
        .unwrap_or_default()
}

fn from_environment(variable: &str, part: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        skip(part, &format!("{variable} is not set: run ./dev test"));
    }
    path
}

/// A single etcd in a directory of its own. Killed when dropped.
pub struct Etcd {
    endpoint: String,
    _alone: EtcdCluster,
}

impl Etcd {
    /// Starts one, or says loudly why not.
    pub fn start() -> Option<Self> {
        let alone = EtcdCluster::of(1, tempfile::tempdir().unwrap())?;
        let endpoint = url(alone.members[0].client);
        Some(Self { endpoint, _alone: alone })
    }

    /// Its client endpoint.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// Several etcds that are one. Killed when dropped.
pub struct EtcdCluster {
    members: Vec<Member>,
    data: tempfile::TempDir,
}

struct Member {
    /// `None` while it is down.
    child: Option<Child>,
    client: u16,
    peer: u16,
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

impl EtcdCluster {
    /// Starts three that have a leader, or says loudly why not.
    pub fn start() -> Option<Self> {
        // Three writers that wait for a slow disk would be no test of us.
        Self::of(3, tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn of(size: usize, data: tempfile::TempDir) -> Option<Self> {
        let member = || Member { child: None, client: free_port(), peer: free_port() };
        let members = std::iter::repeat_with(member).take(size).collect();
        let mut cluster = Self { members, data };
        for index in 0..size {
            match cluster.spawn(index) {
                Ok(child) => cluster.members[index].child = Some(child),
                Err(error) => {
                    skip("etcd", &error.to_string());
                    return None;
                }
            }
        }
        for index in 0..size {
            cluster.wait_until_it_follows(index);
        }
        Some(cluster)
    }

    fn spawn(&self, index: usize) -> std::io::Result<Child> {
        let member = &self.members[index];
        let (client, peer) = (url(member.client), url(member.peer));
        let all: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(number, member)| format!("member{number}={}", url(member.peer)))
            .collect();
        Command::new("etcd")
            .args(["--name", &format!("member{index}"), "--data-dir"])
            .arg(self.data.path().join(index.to_string()))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    /// Its client endpoints, of members that are down too.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| url(member.client)).collect()
    }

    /// The member that leads, as soon as there is one.
    pub fn leader(&self) -> usize {
        wait_for("a leader of etcd", || {
            (0..self.members.len()).find(|index| self.says(*index, "etcd_server_is_leader 1"))
        })
    }

    /// A member that is up and does not lead.
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        let up = |index: &usize| *index != leader && self.members[*index].child.is_some();
        (0..self.members.len()).find(up).unwrap()
    }

    /// Ends a member as a power cut would.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.members[index].child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a member that was killed with the data it had.
    pub fn restart(&mut self, index: usize) {
        assert!(self.members[index].child.is_none(), "member {index} of etcd is up");
        self.members[index].child = Some(self.spawn(index).unwrap());
    }

    /// Waits until a member has a leader.
    pub fn wait_until_it_follows(&self, index: usize) {
        wait_for("a member of etcd", || self.says(index, "etcd_server_has_leader 1").then_some(()));
    }

    /// Returns whether this line is among the member's metrics.
    fn says(&self, index: usize, line: &str) -> bool {
        let member = &self.members[index];
        member.child.is_some()
            && metrics(member.client).is_ok_and(|text| text.lines().any(|said| said == line))
    }
}

/// Metrics of etcd. Version 1.0, so that the answer comes in one piece.
fn metrics(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The folder of Kubernetes' programs that `./dev kubernetes` makes, or `None`
/// with a loud word. Machines of this host need root too.
pub fn kubernetes() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let folder = std::env::var_os("SELVAGE_TEST_KUBERNETES_DIR")
        .map(PathBuf::from)
        .or_else(|| Some(cache.or_else(home)?.join("selvage/tools/kubernetes")))?;
    let reason = match folder.join(KUBERNETES).join("kubelet").exists() {
        true if nix::unistd::geteuid().is_root() => return Some(folder),
        true => "machines on this host need root".to_owned(),
        false => format!("there is no Kubernetes {KUBERNETES}: run ./dev kubernetes"),
    };
    skip("kubernetes", &reason);
    None
}

/// Version of Kubernetes that tests run.
pub const KUBERNETES: &str = "1.36.4";
/// Version that they upgrade to: one minor later.
pub const KUBERNETES_NEXT: &str = "1.37.1";

/// The same folder, where it has both versions, or `None` with a loud word. The
/// second one takes eight minutes to build, so that CI goes on without it.
pub fn kubernetes_upgrade() -> Option<PathBuf> {
    let folder = kubernetes()?;
    if folder.join(KUBERNETES_NEXT).join("kubelet").exists() {
        return Some(folder);
    }
    let reason = format!("there is no Kubernetes {KUBERNETES_NEXT}: set SELVAGE_TEST_UPGRADE=1");
    assert!(std::env::var("SELVAGE_TEST_UPGRADE").is_err(), "{reason}");
    say_skipped("kubernetes upgrade", &reason);
    None
}
