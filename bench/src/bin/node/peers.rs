//! Peers that the agent is measured beside: a containerd with real containers, and
//! the exporters that people run today.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use containerd_client::{
    services::v1::{MetricsRequest, tasks_client::TasksClient},
    with_namespace,
};
use futures::{StreamExt, TryStreamExt, stream};
use hyper_util::rt::TokioIo;
use selvage_bench::cost::Group;
use tokio::net::UnixStream;
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

use crate::image::{self, COMMAND, IMAGE};

/// Namespace of the containers.
pub(crate) const NAMESPACE: &str = "selvage-bench";

/// State of `runc`, wherever containerd has its own.
const REMEMBERED: &str = "/run/containerd/runc/selvage-bench";

/// As large as containerd makes an answer.
const LARGEST_ANSWER: usize = 64 << 20;

/// Timeout of a first answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) group: Group,
}

impl Daemon {
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self> {
        let group = Group::new(name)?;
        Ok(Self { child: group.spawn(command)?, group })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something gives an answer.
pub(crate) async fn answer<T, F>(what: &str, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(START_TIMEOUT, asking).await;
    waited.with_context(|| format!("{what} did not answer within {START_TIMEOUT:?}"))
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// An exporter for Prometheus, and its page.
pub(crate) struct Exporter {
    pub(crate) daemon: Daemon,
    pub(crate) url: String,
}

impl Exporter {
    pub(crate) async fn node_exporter(http: &reqwest::Client) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new("prometheus-node-exporter");
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        Self::start("node-exporter", &mut command, port, http).await
    }

    pub(crate) async fn cadvisor(program: &Path, http: &reqwest::Client) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args(["-listen_ip", "127.0.0.1", "-port", &port.to_string()]);
        Self::start("cadvisor", &mut command, port, http).await
    }

    async fn start(
        name: &str,
        command: &mut Command,
        port: u16,
        http: &reqwest::Client,
    ) -> Result<Self> {
        let daemon = Daemon::start(name, command)?;
        let url = format!("http://127.0.0.1:{port}/metrics");
        answer(name, || async { http.get(&url).send().await.ok()?.error_for_status().ok() })
            .await?;
        Ok(Self { daemon, url })
    }
}

/// A containerd of our own. Everything of it goes when it is dropped.
pub(crate) struct Containerd {
    pub(crate) daemon: Daemon,
    channel: Channel,
    folder: PathBuf,
    _containers: Containers,
}

impl Containerd {
    pub(crate) async fn start(folder: &Path) -> Result<Self> {
        let at = folder.display();
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{at}/sock\"\n[ttrpc]\naddress = \"{at}/ttrpc\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{at}/opt\"\n"
        );
        // Of a run that was killed.
        let _ = fs::remove_dir_all(REMEMBERED);
        let file = folder.join("config.toml");
        fs::write(&file, config)?;
        let daemon = Daemon::start("containerd", Command::new("containerd").arg("-c").arg(&file))?;
        let socket = folder.join("sock");
        let endpoint = Endpoint::from_static("http://containerd.invalid");
        let channel = answer("containerd", || async {
            let socket = socket.clone();
            let connect = tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connect).await.ok()
        })
        .await?;
        let containers = Containers::new(folder, NAMESPACE);
        let started = Self { daemon, channel, folder: folder.to_owned(), _containers: containers };
        let tar = folder.join("image.tar");
        image::write(&tar)?;
        started.ctr().args(["images", "import"]).arg(&tar).check().await?;
        Ok(started)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }

    fn ctr(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("ctr");
        command.arg("-a").arg(self.socket()).args(["-n", NAMESPACE]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Makes and starts a container, as people do.
    pub(crate) async fn run(&self, name: &str) -> Result<()> {
        let fifos = self.folder.join("fifos");
        let mut run = self.ctr();
        run.args(["run", "--detach", "--fifo-dir"]).arg(fifos);
        run.args([IMAGE, name]).args(COMMAND).check().await
    }

    /// As many containers as these.
    pub(crate) async fn run_all(&self, count: usize) -> Result<()> {
        let names: Vec<String> = (0..count).map(|number| format!("c{number:03}")).collect();
        let running = names.iter().map(|name| self.run(name));
        stream::iter(running).buffer_unordered(4).try_for_each(|()| async { Ok(()) }).await
    }

    fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Asks for the measurements of all, in one call; how many there are.
    pub(crate) async fn metrics(&self) -> Result<usize> {
        let request = with_namespace!(MetricsRequest { filters: Vec::new() }, NAMESPACE);
        Ok(self.tasks().metrics(request).await?.into_inner().metrics.len())
    }

    /// Processes that containerd keeps beside containers.
    pub(crate) fn helpers(&self) -> Result<Vec<u32>> {
        let address = self.socket().display().to_string();
        let of_ours = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("containerd-shim") && line.contains(&address)
        };
        let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
        let pids = names.filter_map(|name| name.to_str()?.parse().ok());
        Ok(pids.filter(of_ours).collect())
    }
}

impl Containerd {
    /// Sockets of its helpers: in a folder that all containerds share.
    fn shim_sockets(&self) -> Vec<PathBuf> {
        let bundles = self.folder.join("state/io.containerd.runtime.v2.task").join(NAMESPACE);
        let bundles = fs::read_dir(bundles).into_iter().flatten().flatten();
        let addresses = bundles.filter_map(|entry| {
            let address = fs::read_to_string(entry.path().join("address")).ok()?;
            Some(PathBuf::from(address.trim().strip_prefix("unix://")?))
        });
        addresses.collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Nobody starts anything any more; then what it has started.
        let _ = self.daemon.child.kill();
        let _ = self.daemon.child.wait();
        self.daemon.group.end();
        for socket in self.shim_sockets() {
            let _ = fs::remove_file(socket);
        }
        let _ = fs::remove_dir_all(REMEMBERED);
    }
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Containers by their control group, and where their files are. When this is
/// dropped they are killed, whoever runs them, and nothing of them stays
/// mounted.
pub(crate) struct Containers {
    folder: PathBuf,
    group: String,
}

impl Containers {
    pub(crate) fn new(folder: &Path, group: &str) -> Self {
        Self { folder: folder.to_owned(), group: group.to_owned() }
    }

    /// Its groups in all trees, the innermost first.
    fn groups(&self) -> Vec<PathBuf> {
        fn below(folder: PathBuf, found: &mut Vec<PathBuf>) {
            for inner in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
                    below(inner.path(), found);
                }
            }
            found.push(folder);
        }
        let root = PathBuf::from("/sys/fs/cgroup");
        let trees = fs::read_dir(&root).into_iter().flatten().flatten().map(|tree| tree.path());
        let mut found = Vec::new();
        for group in trees.chain([root]).map(|tree| tree.join(&self.group)) {
            if group.is_dir() {
                below(group, &mut found);
            }
        }
        found
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        // What is killed leaves its group only when the kernel is done with it.
        for _ in 0..250 {
            let groups = self.groups();
            if groups.is_empty() {
                break;
            }
            for group in groups {
                let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                pids.lines().filter_map(|pid| pid.parse().ok()).for_each(kill);
                let _ = fs::remove_dir(group);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for mount in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)) {
            if Path::new(mount).starts_with(&self.folder) {
                let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

/// Runs a command and says what it said when it fails.
pub(crate) trait Check {
    async fn check(&mut self) -> Result<()>;
}

impl Check for tokio::process::Command {
    async fn check(&mut self) -> Result<()> {
        let output = self.output().await.context("starting a program")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{:?} failed: {}", self.as_std().get_program(), said.trim());
        }
        Ok(())
    }
}

/// Programs that wait, so that there are as many processes as wanted.
pub(crate) struct Crowd(Vec<Child>);

impl Crowd {
    pub(crate) fn fill_up_to(wanted: usize) -> Result<Self> {
        let mut crowd = Self(Vec::new());
        let there = selvage_bench::cost::processes()?;
        for _ in there..wanted {
            crowd.0.push(Command::new("sleep").arg("1000000").stdin(Stdio::null()).spawn()?);
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
