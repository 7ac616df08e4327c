//! Real etcd servers, started on free ports and ended with the test.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{blocking, find, free_port, skip, wait_for};

/// Variable with the path of the etcd that is used instead of that in PATH.
pub const GIVEN: &str = "SELVAGE_TEST_ETCD";
/// Time that servers have until they are ready; after that they are started again.
const START_TIMEOUT: Duration = Duration::from_secs(40);
/// Line of the metrics of a member that has a leader.
const FOLLOWS: &str = "etcd_server_has_leader 1";
/// Line of the metrics of the member that leads.
const LEADS: &str = "etcd_server_is_leader 1";

/// Certificates of servers that ask every client for one.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Authority that signed the clients' certificates.
    pub ca: PathBuf,
    /// Certificate of the servers.
    pub cert: PathBuf,
    /// Key of that certificate.
    pub key: PathBuf,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    /// Metrics, without TLS also where clients need it.
    metrics_port: u16,
    /// `None` while it is down.
    process: Option<Child>,
}

impl Member {
    fn new(index: usize) -> Self {
        Self {
            name: format!("m{index}"),
            client_port: free_port(),
            peer_port: free_port(),
            metrics_port: free_port(),
            process: None,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.process.as_ref().expect("the member runs"))
    }

    fn end(&mut self) {
        if let Some(mut child) = self.process.take() {
            // Works on a stopped process as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns whether this line is among its metrics.
    fn says(&self, line: &str) -> bool {
        let said = |text: String| text.lines().any(|said| said == line);
        self.process.is_some() && metrics(self.metrics_port).is_ok_and(said)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
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

/// One or more etcd servers that belong together. Members go before the
/// folder they write to.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    folder: TempDir,
    binary: PathBuf,
    tls: Option<Tls>,
    flags: &'static [&'static str],
    #[cfg(feature = "store")]
    namespaces: std::sync::atomic::AtomicU32,
}

impl Cluster {
    /// Starts so many servers, or says loudly why not.
    pub async fn start(size: usize) -> Option<Self> {
        Self::start_with(size, None, &[]).await
    }

    /// The same with certificates, by which every connection needs one, and with
    /// further flags for the servers.
    pub async fn start_with(
        size: usize,
        tls: Option<Tls>,
        flags: &'static [&'static str],
    ) -> Option<Self> {
        let starting = tokio::task::spawn_blocking(move || Self::launch_all(size, tls, flags));
        starting.await.unwrap()
    }

    /// The same for tests without a runtime.
    #[must_use]
    pub fn start_blocking(size: usize) -> Option<Self> {
        Self::launch_all(size, None, &[])
    }

    fn launch_all(size: usize, tls: Option<Tls>, flags: &'static [&'static str]) -> Option<Self> {
        let given = std::env::var_os(GIVEN).map(PathBuf::from);
        let Some(binary) = given.or_else(|| find("etcd")) else {
            skip("etcd", "it is not installed: run ./dev test");
            return None;
        };
        // A port is free when we look and may be taken when etcd does.
        for attempt in 0.. {
            let mut cluster = Self {
                members: (0..size).map(Member::new).collect(),
                folder: folder(size),
                binary: binary.clone(),
                tls: tls.clone(),
                flags,
                #[cfg(feature = "store")]
                namespaces: Default::default(),
            };
            for index in 0..size {
                cluster.launch(index);
            }
            if cluster.ready() {
                return Some(cluster);
            }
            assert!(attempt < 3, "etcd does not start");
        }
        None
    }

    fn ready(&self) -> bool {
        let deadline = std::time::Instant::now() + START_TIMEOUT;
        let mut all = self.members.iter();
        all.all(|member| {
            while !member.says(FOLLOWS) {
                if std::time::Instant::now() > deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            true
        })
    }

    fn launch(&mut self, index: usize) {
        let peers: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port))
            .collect();
        let url = self.url(index);
        let member = &mut self.members[index];
        let peer = format!("http://127.0.0.1:{}", member.peer_port);
        let metrics = format!("http://127.0.0.1:{}", member.metrics_port);
        let mut command = Command::new(&self.binary);
        if let Some(Tls { ca, cert, key }) = &self.tls {
            command.arg("--trusted-ca-file").arg(ca).arg("--client-cert-auth");
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        let child = command
            .args(["--name", &member.name, "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.folder.path().join(&member.name))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--listen-metrics-urls", &metrics])
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

    fn url(&self, index: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.members[index].client_port)
    }

    /// Client endpoints of all members, of those that are down too.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|index| self.url(index)).collect()
    }

    /// The member that leads, as soon as there is one.
    #[must_use]
    pub fn leader(&self) -> usize {
        blocking::wait_for("a leader of etcd", || {
            self.members.iter().position(|member| member.says(LEADS))
        })
    }

    /// A member that is up and does not lead.
    #[must_use]
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        let up = |index: &usize| *index != leader && self.members[*index].process.is_some();
        (0..self.members.len()).find(up).unwrap()
    }

    /// Ends a member as a power cut would.
    pub fn kill(&mut self, index: usize) {
        self.members[index].end();
    }

    /// Starts a member that was killed, with the data it had, and does not wait for it.
    pub fn restart_unseen(&mut self, index: usize) {
        assert!(self.members[index].process.is_none(), "member {index} of etcd is up");
        self.launch(index);
    }

    /// The same, and waits until it follows.
    pub async fn restart(&mut self, index: usize) {
        self.restart_unseen(index);
        let member = &self.members[index];
        wait_for("a member of etcd", async || member.says(FOLLOWS).then_some(())).await;
    }

    /// Waits until a member has a leader.
    pub fn wait_until_it_follows(&self, index: usize) {
        let member = &self.members[index];
        blocking::wait_for("a member of etcd", || member.says(FOLLOWS).then_some(()));
    }

    /// Copies what a member that does not run has on disk.
    #[must_use]
    pub fn copy(&self, index: usize) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_private(&self.data(index), copy.path());
        copy
    }

    /// Gives a member that does not run such a copy instead of what it has.
    pub fn put_back(&self, index: usize, copy: &TempDir) {
        fs::remove_dir_all(self.data(index)).unwrap();
        copy_private(copy.path(), &self.data(index));
    }

    fn data(&self, index: usize) -> PathBuf {
        self.folder.path().join(&self.members[index].name)
    }

    /// Cuts a member off: it neither answers nor hears until `resume`.
    pub fn freeze(&self, index: usize) {
        kill_process(self.members[index].pid(), Signal::STOP).unwrap();
    }

    /// Lets a member go on that was cut off.
    pub fn resume(&self, index: usize) {
        kill_process(self.members[index].pid(), Signal::CONT).unwrap();
    }
}

/// Folder for the data of so many members. Several that wait for one slow disk
/// would be no test of us.
fn folder(size: usize) -> TempDir {
    let memory = if size > 1 { tempfile::tempdir_in("/dev/shm").ok() } else { None };
    memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Copies a folder so that only the owner can read it.
pub fn copy_private(from: &Path, to: &Path) {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_private(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[cfg(feature = "store")]
mod store {
    use std::{
        sync::{Arc, atomic::Ordering},
        time::Duration,
    };

    use selvage_store::etcd::{Etcd, EtcdOptions, TlsOptions};

    use super::{Cluster, Tls};

    impl From<TlsOptions> for Tls {
        fn from(TlsOptions { ca, cert, key }: TlsOptions) -> Self {
            Self { ca: ca.unwrap(), cert: cert.unwrap(), key: key.unwrap() }
        }
    }

    impl Cluster {
        /// Options by which a store finds all members and soon sees that one is gone.
        #[must_use]
        pub fn options(&self) -> EtcdOptions {
            let tls = self.tls.as_ref().map(|tls| TlsOptions {
                ca: Some(tls.ca.clone()),
                cert: Some(tls.cert.clone()),
                key: Some(tls.key.clone()),
            });
            EtcdOptions {
                tls,
                endpoints: self.endpoints(),
                keep_alive: Duration::from_millis(500),
                connect_timeout: Duration::from_secs(1),
                request_timeout: Duration::from_secs(12),
                ..EtcdOptions::default()
            }
        }

        /// A store of its own: nothing in it yet.
        pub async fn store(&self) -> Arc<Etcd> {
            let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
            self.store_in(&format!("test-{number}/")).await
        }

        /// The store in a namespace.
        pub async fn store_in(&self, namespace: &str) -> Arc<Etcd> {
            let options = EtcdOptions { namespace: namespace.to_owned(), ..self.options() };
            Etcd::connect(options).await.unwrap()
        }
    }
}
