//! The real parts that tests talk to. `./dev test` installs them.

use std::{
    io::Write,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::process::wait_for;

/// Says loudly that a test did not run. On CI a missing part is a failure.
pub fn skip(part: &str, reason: &str) {
    assert!(std::env::var("CI").is_err(), "{part} is missing on CI: {reason}");
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

fn from_environment(variable: &str, part: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        skip(part, &format!("{variable} is not set: run ./dev test"));
    }
    path
}

/// A single etcd in a directory of its own. Killed when dropped.
pub struct Etcd {
    child: Child,
    endpoint: String,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// Starts one, or says loudly why not.
    pub fn start() -> Option<Self> {
        let data = tempfile::tempdir().unwrap();
        let (client, peer) = (free_port(), free_port());
        let (client, peer) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let spawned = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(data.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                skip("etcd", &error.to_string());
                return None;
            }
        };
        let address = client.trim_start_matches("http://").to_owned();
        wait_for("etcd", || std::net::TcpStream::connect(&address).ok());
        Some(Self { child, endpoint: client, _data: data })
    }

    /// Its client endpoint.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
