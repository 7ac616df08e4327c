//! Keys and certificates: who is believed, what is refused and in which words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod files;
mod handshake;
mod names;
mod rotation;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use selvage_kit::{
    clock::ManualClock,
    identity::Machine,
    pki::{
        Ca, Error, Issued, KeyRequest, RotatingIdentity, ServerIdentity, client_config,
        controller_config, machine_server_config, server_config,
    },
};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Fixture {
    dir: TempDir,
    ca: Arc<Ca>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Arc::new(Ca::open_or_create(&dir.path().join("ca")).unwrap());
        Self { dir, ca }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn identity(&self) -> ServerIdentity {
        ServerIdentity::issued(Arc::clone(&self.ca), names(&["localhost", "127.0.0.1"])).unwrap()
    }

    fn server(&self) -> Arc<ServerConfig> {
        server_config(&self.identity(), &self.ca).unwrap()
    }

    fn machine(&self, name: &str, machine: &Machine) -> RotatingIdentity {
        let request = KeyRequest::new().unwrap();
        let signed = self.ca.sign_machine(request.csr_pem(), machine).unwrap();
        RotatingIdentity::create(&self.path(name), &request, &signed.certificate_pem).unwrap()
    }

    fn client(&self, identity: Option<&RotatingIdentity>) -> ClientConfig {
        client_config(self.ca.pem(), identity).unwrap()
    }

    fn files(&self, issued: &Issued) -> (PathBuf, PathBuf) {
        let (certificate, key) = (self.path("tls.crt"), self.path("tls.key"));
        put(&certificate, issued.chain_pem.as_bytes(), 0o644);
        put(&key, issued.key_pem.as_bytes(), 0o600);
        (certificate, key)
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn node(name: &str) -> Machine {
    Machine::Node { name: name.into() }
}

fn put(path: &Path, content: &[u8], mode: u32) {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, content).unwrap();
    chmod(&fresh, mode);
    fs::rename(fresh, path).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[allow(clippy::disallowed_methods, reason = "certificates are made by the time of the machine")]
fn days_ago(days: u32) -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::now() - DAY * days))
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Text of the error, without the directory of the test.
fn text(fixture: &Fixture, error: Error) -> String {
    error.to_string().replace(&format!("{}/", fixture.dir.path().display()), "")
}
