//! Settings of a daemon's listeners, its state and its logins.

use std::path::PathBuf;

use selvage_auth::OidcProvider;
use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

/// The port that everything answers on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    /// Address to bind.
    pub(crate) address: String,
    /// Port to bind; 0 takes a free one.
    pub(crate) port: u16,
    /// Origins, such as `https://portal.example`, whose pages may call this
    /// server from a browser.
    pub(crate) origins: Vec<String>,
    /// Connections that may be open at the same time.
    pub(crate) connections: usize,
    /// Calls with one reply that may run at the same time.
    pub(crate) calls_in_flight: usize,
    /// Streams that may be open at the same time.
    pub(crate) streams_in_flight: usize,
    /// Time that calls in flight may go on after the signal to stop.
    pub(crate) drain: Duration,
}

impl Default for Listen {
    fn default() -> Self {
        let limits = selvage_kit::serve::Limits::default();
        Self {
            address: "127.0.0.1".into(),
            port: 8443,
            origins: Vec::new(),
            connections: limits.connections,
            calls_in_flight: limits.calls_in_flight,
            streams_in_flight: limits.streams_in_flight,
            drain: Duration(limits.drain),
        }
    }
}

/// The server's certificate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// Names and addresses, besides those of this machine, by which clients
    /// reach it. For the certificate that Selvage makes itself.
    pub(crate) names: Vec<String>,
    /// A certificate chain of your own, PEM. Read again when it changes.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key, PEM.
    pub(crate) key: Option<PathBuf>,
}

/// Store of the state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    /// `embedded` or `etcd`.
    pub(crate) kind: StoreKind,
    /// etcd: its endpoints, `https://host:2379`.
    pub(crate) endpoints: Vec<String>,
    /// etcd: what all keys begin with.
    pub(crate) namespace: String,
    /// etcd: the CA of its servers, PEM.
    pub(crate) ca: Option<PathBuf>,
    /// etcd: our client certificate, PEM.
    pub(crate) certificate: Option<PathBuf>,
    /// etcd: its key, PEM.
    pub(crate) key: Option<PathBuf>,
    /// etcd: user name, where it asks for one.
    pub(crate) username: String,
    /// etcd: file with the user's password.
    pub(crate) password_file: Option<SecretFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreKind {
    Embedded,
    Etcd,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            endpoints: Vec::new(),
            namespace: "selvage/".into(),
            ca: None,
            certificate: None,
            key: None,
            username: String::new(),
            password_file: None,
        }
    }
}

/// Logins of people.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// A session ends when it was not used for so long.
    pub(crate) idle: Duration,
    /// A session ends after so long in any case.
    pub(crate) absolute: Duration,
    /// Lets users log in with a password.
    pub(crate) password_login: bool,
    /// The address by which browsers reach this server, for OIDC's way back.
    pub(crate) public_url: String,
    /// OIDC providers.
    pub(crate) oidc: Vec<OidcProvider>,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            idle: Duration(std::time::Duration::from_secs(3600)),
            absolute: Duration(std::time::Duration::from_secs(12 * 3600)),
            password_login: true,
            public_url: String::new(),
            oidc: Vec::new(),
        }
    }
}
