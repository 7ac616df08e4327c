//! An sshd on loopback whose machines are directories, and a controller. Agents
//! are a script, which the test joins for by the service that real ones use.

use std::{
    collections::BTreeMap,
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use selvage_api::selvage::identity::{JoinRequest, identity_service_client::IdentityServiceClient};
use selvage_auth::{Auth, Report};
use selvage_kaas::provider::{
    OperationId, Request,
    ssh::{Ssh, SshMachine, SshOptions},
};
use selvage_kit::identity::{Connection, Identity, Machine, Peer};
use selvage_store::{
    SharedStore,
    embedded::{Embedded, Options},
};

use super::super::maas::open_auth;

const SSHD: &str = "/usr/sbin/sshd";
/// Nothing that a test waits for takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Stand-in for the program of an agent; does nothing until it is ended.
const AGENT: &str = "#!/bin/sh
[ \"$1\" = --version ] && exit 0
mkfifo \"$0.$$\"
read -r _ <\"$0.$$\"
";

/// Numbers the commands that a controller sends, keeps them, and stops where a
/// test wants it to: `before-N` and `after-N` say so in `reached` and wait for
/// `go`.
const GATE: &str = r#"#!/bin/sh
lab=$1
exec 8<"$lab"
flock 8
number=$(($(cat "$lab/count") + 1))
echo "$number" >"$lab/count"
printf '%s\n' "$SSH_ORIGINAL_COMMAND" >>"$lab/commands"
exec 8<&-
if [ -e "$lab/before-$number" ]; then
  echo before >"$lab/reached"
  read -r _ <"$lab/go"
fi
sh -c "$SSH_ORIGINAL_COMMAND"
code=$?
if [ -e "$lab/after-$number" ]; then
  echo after >"$lab/reached"
  read -r _ <"$lab/go"
fi
exit "$code"
"#;

pub(super) struct SshLab {
    pub(super) store: SharedStore,
    pub(super) auth: Auth,
    pub(super) options: SshOptions,
    sshd: Child,
    folder: tempfile::TempDir,
}

pub(super) fn operation(name: &str) -> OperationId {
    OperationId(name.to_owned())
}

pub(super) fn wanted() -> Request {
    Request {
        cluster: "demo".into(),
        name: "web-1".into(),
        instance_type: String::new(),
        version: "1.36.4".into(),
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(super) fn key_pair(path: &Path) {
    run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", path.to_str().unwrap()]);
}

/// Starts sshd on a free port, with a gate that all commands go through.
fn start_sshd(folder: &Path) -> (Child, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for name in ["host", "client"] {
        key_pair(&folder.join(name));
    }
    script(&folder.join("gate"), GATE);
    fs::write(folder.join("count"), "0").unwrap();
    for name in ["reached", "go"] {
        run("mkfifo", &[folder.join(name).to_str().unwrap()]);
    }
    let at = folder.display();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nPidFile none\nUsePAM no\n\
         AuthorizedKeysFile {at}/client.pub\nStrictModes no\nPermitRootLogin prohibit-password\n\
         PasswordAuthentication no\nMaxStartups 100\nForceCommand {at}/gate {at}\n"
    );
    fs::write(folder.join("sshd_config"), config).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    let log = fs::File::create(folder.join("sshd.log")).unwrap();
    let sshd = Command::new(SSHD)
        .args(["-D", "-e", "-f"])
        .arg(folder.join("sshd_config"))
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    until("sshd", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (sshd, port)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a process has this in its command line.
fn is_running(text: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    })
}

impl SshLab {
    /// Nothing where the host has no sshd or the test is not root; on CI that is
    /// a failure.
    pub(super) async fn open(machines: &[&str]) -> Option<Self> {
        let root = run("id", &["-u"]).trim() == "0";
        if !root || !Path::new(SSHD).exists() {
            selvage_testkit::skip("sshd", "it needs openssh-server and root");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("slvssh").tempdir().unwrap();
        let (sshd, port) = start_sshd(folder.path());
        script(&folder.path().join("agent"), AGENT);
        let pinned = fs::read_to_string(folder.path().join("host.pub")).unwrap();
        let machine = |name: &&str| {
            let directory = folder.path().join("machines").join(name).display().to_string();
            let machine = SshMachine {
                address: format!("127.0.0.1:{port}"),
                host_keys: vec![pinned.clone()],
                directory,
                ..SshMachine::default()
            };
            ((*name).to_owned(), machine)
        };
        let options = SshOptions {
            machines: machines.iter().map(machine).collect::<BTreeMap<_, _>>(),
            key_file: Some(folder.path().join("client")),
            controller: "edge.example:8443".into(),
            ..SshOptions::default()
        };
        let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
        let auth = open_auth(&store, folder.path()).await;
        Some(Self { store, auth, options, sshd, folder })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn machine(&self, name: &str) -> PathBuf {
        self.path("machines").join(name)
    }

    /// A controller, as after a start of its process.
    pub(super) async fn provider(&self) -> Arc<Ssh> {
        let (store, auth) = (Arc::clone(&self.store), self.auth.clone());
        let program = self.path("agent");
        Arc::new(Ssh::open(store, auth, self.options.clone(), "", None, program).await.unwrap())
    }

    /// Process of a file of a machine.
    pub(super) fn process(&self, machine: &str, file: &str) -> Option<u32> {
        let pid = fs::read_to_string(self.machine(machine).join(file)).ok()?.trim().parse().ok()?;
        Path::new(&format!("/proc/{pid}/exe")).exists().then_some(pid)
    }

    /// Claims that there are on machines: machine, and the operation.
    pub(super) fn claims(&self) -> Vec<(String, String)> {
        let claim = |name: &String| {
            let text = fs::read_to_string(self.machine(name).join("claim")).ok()?;
            Some((name.clone(), text.split(' ').nth(1)?.to_owned()))
        };
        self.options.machines.keys().filter_map(claim).collect()
    }

    /// Agents that run and have not joined do.
    pub(super) async fn join(&self) {
        for (number, name) in self.options.machines.keys().enumerate() {
            let own = self.machine(name);
            let joined = own.join("data/joined/machine.pem");
            let Ok(token) = fs::read_to_string(own.join("join-token")) else { continue };
            if joined.exists() || self.process(name, "agent.pid").is_none() {
                continue;
            }
            if self.join_by(&token, u8::try_from(number).unwrap() + 1).await.is_ok() {
                fs::create_dir_all(joined.parent().unwrap()).unwrap();
                fs::write(joined, "a certificate").unwrap();
            }
        }
    }

    pub(super) async fn join_by(&self, token: &str, number: u8) -> Result<(), tonic::Status> {
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
        let asked = JoinRequest { token: token.to_owned(), csr: csr.pem().unwrap() };
        let mut request = tonic::Request::new(asked);
        let peer = Peer::Ip([127, 0, 0, number].into());
        request.extensions_mut().insert(Identity::anonymous());
        request.extensions_mut().insert(Connection {
            peer,
            machine: None,
            certificate: None,
            person: None,
            encrypted: true,
        });
        let mut identities = IdentityServiceClient::new(self.auth.identity_service());
        let joined = identities.join(request).await?.into_inner();
        let machine = Machine::parse(&joined.machine).unwrap();
        // Nobody listens there.
        let report = Report { address: format!("127.0.0.{number}:9"), ..Report::default() };
        self.auth.report(&machine, report).await.unwrap();
        Ok(())
    }

    /// Nothing is left on any machine, and no agent is known.
    pub(super) fn check_clean(&self, what: &str) {
        for name in self.options.machines.keys() {
            assert!(!self.machine(name).exists(), "{what}: {name} has files left");
        }
        let listed = self.auth.machines();
        assert!(listed.is_empty(), "{what}: still listed: {listed:?}");
        let machines = self.path("machines").display().to_string() + "/";
        until(&format!("{what}: the end of all processes"), || !is_running(&machines));
    }

    /// Waits until no command of any controller runs.
    pub(super) fn idle(&self) {
        let gate = self.path("gate").display().to_string();
        until("the end of commands", || !is_running(&gate));
    }

    /// Stops the controller's commands at a place, such as `before-3`.
    pub(super) fn stop_at(&self, gate: &str) {
        fs::write(self.path("count"), "0").unwrap();
        fs::write(self.path(gate), "").unwrap();
    }

    /// Waits until a command is at the place; false when nothing came there by
    /// the end of `work`.
    pub(super) async fn reached(&self, work: impl Future<Output = ()>) -> bool {
        let fifo = self.path("reached");
        let reached = tokio::task::spawn_blocking(move || fs::read_to_string(fifo).unwrap());
        tokio::select! {
            _ = reached => true,
            () = work => {
                // Ends the one that waits.
                fs::write(self.path("reached"), "").unwrap();
                false
            }
        }
    }

    /// Lets a command go on that was stopped.
    pub(super) async fn let_go(&self) {
        let fifo = self.path("go");
        tokio::task::spawn_blocking(move || fs::write(fifo, "go\n").unwrap()).await.unwrap();
    }
}

impl Drop for SshLab {
    fn drop(&mut self) {
        for name in self.options.machines.keys() {
            for file in ["supervisor.pid", "agent.pid"] {
                if let Some(pid) = self.process(name, file) {
                    let _ = Command::new("kill").arg("-9").arg(pid.to_string()).status();
                }
            }
        }
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}
