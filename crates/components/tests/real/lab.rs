//! Machines for one test, with nothing left of them afterwards.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use selvage_api::selvage::kubernetes::{
    GetMemberRequest, MemberStatus, member_service_client::MemberServiceClient,
};
use selvage_components::machine::{self, Launcher, Machine, Settings};
use selvage_runtime::ImageBuilder;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

pub(crate) const VERSION: &str = "1.36.4";

/// A busy machine starts an API server slowly.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Machines and the folder that they are in.
pub(crate) struct Lab {
    pub(crate) launcher: Launcher,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) artifacts: PathBuf,
    number: u8,
    bridge: String,
}

/// The folder of programs, or why there is none.
fn programs() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .ok_or("HOME is not set")?;
    let folder = std::env::var_os("SELVAGE_TEST_KUBERNETES_DIR")
        .map_or_else(|| cache.join("selvage/tools/kubernetes"), PathBuf::from);
    if !folder.join(VERSION).join("kubelet").exists() {
        return Err(format!("there is no Kubernetes {VERSION}: run ./dev kubernetes"));
    }
    machine::obstacle().map_or(Ok(folder), Err)
}

impl Lab {
    /// Nothing where the host lacks something; on CI that is a failure.
    pub(crate) fn open(number: u8) -> Option<Self> {
        let programs = match programs() {
            Ok(programs) => programs,
            Err(reason) => {
                selvage_testkit::skip("kubernetes", &reason);
                return None;
            }
        };
        let lab = Self::empty(number);
        let artifacts = &lab.artifacts;
        for entry in fs::read_dir(&programs).unwrap().flatten() {
            std::os::unix::fs::symlink(entry.path(), artifacts.join(entry.file_name())).unwrap();
        }
        let images = artifacts.join("images");
        fs::create_dir(&images).unwrap();
        let busybox = fs::read("/bin/busybox").unwrap();
        let names = ["sh", "sleep", "httpd", "wget", "nslookup", "cat", "echo", "nc"];
        let image = ImageBuilder::busybox(&busybox, &names).unwrap().command(["/bin/sh"]);
        image.write("localhost/busybox:1", &images.join("busybox.tar")).unwrap();
        Some(lab)
    }

    /// The same without Kubernetes' programs.
    pub(crate) fn without_programs(number: u8) -> Option<Self> {
        match machine::obstacle() {
            None => Some(Self::empty(number)),
            Some(reason) => {
                selvage_testkit::skip("machines", &reason);
                None
            }
        }
    }

    fn empty(number: u8) -> Self {
        let folder = tempfile::Builder::new().prefix("slv").tempdir().unwrap();
        let artifacts = folder.path().join("artifacts");
        fs::create_dir(&artifacts).unwrap();
        let bridge = format!("slvt{number}x{}", std::process::id() % 100_000);
        let launcher = Launcher::new(Settings {
            root: folder.path().join("machines"),
            program: example(),
            bridge: bridge.clone(),
            gateway: Ipv4Addr::new(10, 231, number, 1),
        });
        Self { launcher, folder, artifacts, number, bridge }
    }

    pub(crate) fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 231, self.number, host)
    }

    /// Starts a machine; the same one again after it was stopped.
    pub(crate) async fn start(&self, name: &str, host: u8) -> Agent {
        let name = format!("{name}-{}", self.bridge);
        let machine = Machine {
            name: name.clone(),
            address: self.address(host),
            command: [
                example().to_str().unwrap(),
                "agent",
                "/var/lib/agent.sock",
                "/var/lib/selvage",
                self.artifacts.to_str().unwrap(),
                &machine::cgroup(&name),
            ]
            .map(str::to_owned)
            .to_vec(),
            environment: [].into(),
            visible: Vec::new(),
        };
        self.launcher.start(&machine).await.unwrap();
        Agent { name, address: machine.address, socket: self.socket(&machine.name) }
    }

    /// Lets the host route packets of the machines to other networks.
    pub(crate) fn route(&self) {
        let path = format!("/proc/sys/net/ipv4/conf/{}/forwarding", self.bridge);
        fs::write(path, "1").unwrap();
    }

    /// Runs a program in the machine; all that it prints.
    pub(crate) fn enter(&self, agent: &Agent, arguments: &[&str]) -> String {
        let path = self.launcher.inside(&agent.name, "").unwrap();
        let pid = path.iter().nth(2).unwrap().to_str().unwrap().to_owned();
        output("nsenter", &[&["-t", &pid, "-m", "-n", "--"], arguments].concat())
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join("machines").join(name).join("files/var-lib/agent.sock")
    }

    /// Standard error of the machine.
    pub(crate) fn log(&self, agent: &Agent) -> String {
        let path = self.folder.path().join("machines").join(&agent.name).join("log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Removes all machines and looks whether anything is left.
    pub(crate) async fn close(self) {
        let own = output("ip", &["-o", "link", "show", "master", &self.bridge]);
        let own: Vec<String> = own.lines().filter_map(link_name).collect();
        for machine in self.launcher.list() {
            self.launcher.remove(&machine.name).await.unwrap();
        }
        let links = output("ip", &["-o", "link"]);
        let left: Vec<String> = links.lines().filter_map(link_name).collect();
        assert!(!own.is_empty() && !left.contains(&self.bridge), "{own:?} {left:?}");
        assert!(own.iter().all(|link| !left.contains(link)), "{own:?} {left:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.folder.path().to_str().unwrap()), "{mounts}");
        let machines = self.folder.path().join("machines");
        assert!(!machines.exists(), "{}", machines.display());
        assert_eq!(groups(&self.bridge), [] as [PathBuf; 0]);
    }
}

/// Name of a link in a line of `ip -o link`.
fn link_name(line: &str) -> Option<String> {
    let name = line.split(": ").nth(1)?;
    Some(name.split('@').next()?.to_owned())
}

/// Control groups whose name holds a text.
fn groups(text: &str) -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let machines = hierarchies.map(|entry| entry.path().join("selvage-machines"));
    machines
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains(text))
        .collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        // After a failure: nothing of it may stay. This thread drives tasks
        // already, and may not wait.
        let launcher = &self.launcher;
        let remove = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                for machine in launcher.list() {
                    if let Err(error) = launcher.remove(&machine.name).await {
                        eprintln!("{}: {error}", machine.name);
                    }
                }
            });
        };
        std::thread::scope(|scope| {
            scope.spawn(remove);
        });
    }
}

fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/machine")
}

pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text + &String::from_utf8_lossy(&output.stderr)
}

/// An agent in a machine.
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    socket: PathBuf,
}

impl Agent {
    pub(crate) async fn connect(&self) -> MemberServiceClient<Channel> {
        let end = Instant::now() + LONG;
        loop {
            let socket = self.socket.clone();
            let connector = tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://agent");
            match endpoint.connect_with_connector(connector).await {
                Ok(channel) => return MemberServiceClient::new(channel),
                Err(error) if Instant::now() > end => panic!("{}: {error}", self.name),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(crate) async fn status(&self) -> MemberStatus {
        let mut client = self.connect().await;
        let answer = client.get_member(GetMemberRequest {}).await.unwrap();
        answer.into_inner().messages.remove(0)
    }

    /// Main process of a component, as the host numbers it. Others in its control
    /// group come and go, such as those that containerd starts a pod with.
    pub(crate) fn process(&self, component: &str) -> Option<i32> {
        let group = format!("{}/system/{component}", machine::cgroup(&self.name));
        let own = groups_of_processes().filter(|(_, own)| own.ends_with(&group));
        own.map(|(pid, _)| pid).filter(|pid| program(*pid).as_deref() == Some(component)).min()
    }

    /// Control group of a container of a pod.
    pub(crate) fn group_of(&self, container: &str) -> Option<String> {
        groups_of_processes().map(|(_, group)| group).find(|group| group.contains(container))
    }
}

/// All processes of the host, with a control group of each in every hierarchy.
fn groups_of_processes() -> impl Iterator<Item = (i32, String)> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.flat_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let groups = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        groups.map(|group| (pid, group.to_owned())).collect::<Vec<_>>()
    })
}

/// File name of the program that a process runs.
fn program(pid: i32) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let path = Path::new(line.split('\0').next()?);
    Some(path.file_name()?.to_str()?.to_owned())
}

pub(crate) fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Waits until something is there; says what was seen last if it never is.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + LONG;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if Instant::now() > end => panic!("waited in vain for {what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

pub(crate) fn kubectl(artifacts: &Path) -> PathBuf {
    artifacts.join(VERSION).join("kubectl")
}
