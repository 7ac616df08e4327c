//! Real etcd servers, started on free ports and ended with the test. Suites
//! take this file in by its path.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selvage_store::etcd::{Etcd, EtcdOptions, TlsOptions};
use tempfile::TempDir;

/// Returns the path of etcd, or nothing after saying why the test is left out. On CI
/// that is a failure: there the real thing must be tested.
#[allow(clippy::print_stderr)]
pub(crate) fn binary() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/local/bin")])
        .map(|folder| folder.join("etcd"))
        .find(|candidate| candidate.is_file());
    if found.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "etcd is needed on CI");
        eprintln!("SKIPPED: etcd: no etcd server found in PATH");
    }
    found
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) struct Member {
    name: String,
    scheme: &'static str,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl Member {
    fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.client_port)
    }

    fn pid(&self) -> Pid {
        let child = self.process.as_ref().expect("the member runs");
        Pid::from_raw(child.id().try_into().unwrap())
    }

    fn end(&mut self) {
        if let Some(mut child) = self.process.take() {
            // Works on a stopped process as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

/// One or more etcd servers that belong together. Members go before the
/// folder they write to.
pub(crate) struct Cluster {
    members: Vec<Member>,
    folder: TempDir,
    binary: PathBuf,
    tls: Option<TlsOptions>,
    flags: &'static [&'static str],
    namespaces: AtomicU32,
}

impl Cluster {
    pub(crate) async fn start(size: usize) -> Option<Self> {
        Self::start_with(size, None).await
    }

    /// With certificates, every connection needs one.
    pub(crate) async fn start_with(size: usize, tls: Option<TlsOptions>) -> Option<Self> {
        Self::start_as(size, tls, &[]).await
    }

    /// The same with further flags for the servers.
    pub(crate) async fn start_as(
        size: usize,
        tls: Option<TlsOptions>,
        flags: &'static [&'static str],
    ) -> Option<Self> {
        let binary = binary()?;
        // The port is free when we look and may be taken when etcd does.
        for attempt in 0.. {
            let mut cluster = Self { flags, ..Self::prepare(binary.clone(), size, tls.clone()) };
            for index in 0..size {
                cluster.launch(index);
            }
            if cluster.ready(Duration::from_secs(40)).await {
                return Some(cluster);
            }
            assert!(attempt < 3, "etcd does not start");
        }
        None
    }

    fn prepare(binary: PathBuf, size: usize, tls: Option<TlsOptions>) -> Self {
        let member = |index| Member {
            name: format!("m{index}"),
            scheme: if tls.is_some() { "https" } else { "http" },
            client_port: free_port(),
            peer_port: free_port(),
            process: None,
        };
        Self {
            members: (0..size).map(member).collect(),
            folder: tempfile::tempdir().unwrap(),
            binary,
            tls,
            flags: &[],
            namespaces: AtomicU32::new(0),
        }
    }

    fn launch(&mut self, index: usize) {
        let peers: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port))
            .collect();
        let member = &mut self.members[index];
        let peer = format!("http://127.0.0.1:{}", member.peer_port);
        let mut command = Command::new(&self.binary);
        if let Some(TlsOptions { ca: Some(ca), cert: Some(cert), key: Some(key) }) = &self.tls {
            command.arg("--trusted-ca-file").arg(ca).arg("--client-cert-auth");
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        let child = command
            .args(["--name", &member.name, "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.folder.path().join(&member.name))
            .args(["--listen-client-urls", &member.url()])
            .args(["--advertise-client-urls", &member.url()])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.join(",")])
            .args(["--initial-cluster-token", "selvage-test"])
            // Tests look for dead connections more often than a server likes.
            .args(["--grpc-keepalive-min-time", "100ms"])
            .args(self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        member.process = Some(child);
    }

    async fn ready(&self, timeout: Duration) -> bool {
        let ready = async {
            for index in 0..self.members.len() {
                self.answers(index).await;
            }
        };
        tokio::time::timeout(timeout, ready).await.is_ok()
    }

    async fn answers(&self, index: usize) {
        while Etcd::connect(self.options_for(&[index])).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn options(&self) -> EtcdOptions {
        self.options_for(&(0..self.members.len()).collect::<Vec<_>>())
    }

    fn options_for(&self, members: &[usize]) -> EtcdOptions {
        EtcdOptions {
            tls: self.tls.clone(),
            endpoints: members.iter().map(|index| self.members[*index].url()).collect(),
            keep_alive: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(12),
            ..EtcdOptions::default()
        }
    }

    /// A store of its own: nothing in it yet.
    pub(crate) async fn store(&self) -> Arc<Etcd> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        self.store_in(&format!("test-{number}/")).await
    }

    pub(crate) async fn store_in(&self, namespace: &str) -> Arc<Etcd> {
        let options = EtcdOptions { namespace: namespace.to_owned(), ..self.options() };
        Etcd::connect(options).await.unwrap()
    }

    pub(crate) fn kill(&mut self, index: usize) {
        self.members[index].end();
    }

    /// Starts a member and does not wait for it.
    pub(crate) fn restart_unseen(&mut self, index: usize) {
        self.launch(index);
    }

    pub(crate) async fn restart(&mut self, index: usize) {
        self.launch(index);
        let restarted = self.answers(index);
        tokio::time::timeout(Duration::from_secs(120), restarted).await.expect("it is back");
    }

    /// Copies what a member that does not run has on disk.
    pub(crate) fn copy(&self, index: usize) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&self.folder.path().join(&self.members[index].name), copy.path());
        copy
    }

    /// Gives a member that does not run such a copy instead of what it has.
    pub(crate) fn put_back(&self, index: usize, copy: &TempDir) {
        let place = self.folder.path().join(&self.members[index].name);
        std::fs::remove_dir_all(&place).unwrap();
        copy_tree(copy.path(), &place);
    }

    /// Cuts a member off: it neither answers nor hears until `resume`.
    pub(crate) fn freeze(&self, index: usize) {
        kill(self.members[index].pid(), Signal::SIGSTOP).unwrap();
    }

    pub(crate) fn resume(&self, index: usize) {
        kill(self.members[index].pid(), Signal::SIGCONT).unwrap();
    }
}

fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
