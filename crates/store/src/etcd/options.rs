//! Options of an etcd cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity};

use crate::{Error, Result};

/// Endpoints of etcd and credentials for it.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`, one or more.
    pub endpoints: Vec<String>,
    /// Every key lies below this; other keys in the same etcd are left alone.
    pub namespace: String,
    pub tls: Option<TlsOptions>,
    pub credentials: Option<Credentials>,
    pub connect_timeout: Duration,
    /// Timeout of one call, retries on other endpoints included.
    pub request_timeout: Duration,
    /// Interval at which a connection with calls or watches on it is probed.
    /// Servers hang up on probes that come more often than they are set to
    /// allow, which is every five seconds unless somebody changed it.
    pub keep_alive: Duration,
}

/// Files in PEM form.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// CA certificates to trust; without any, no server is trusted.
    pub ca: Option<PathBuf>,
    /// Certificate of this client; needs `key`.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            namespace: "selvage/".to_owned(),
            tls: None,
            credentials: None,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(6),
        }
    }
}

impl EtcdOptions {
    pub(super) fn validate(&self) -> Result<()> {
        if self.endpoints.is_empty() {
            return Err(Error::invalid("endpoints", "name at least one"));
        }
        if self.namespace.is_empty() {
            return Err(Error::invalid("namespace", "must not be empty"));
        }
        for endpoint in &self.endpoints {
            let known = endpoint.starts_with("http://") || endpoint.starts_with("https://");
            if !known {
                let reason = format!("{endpoint:?} starts with neither http:// nor https://");
                return Err(Error::invalid("endpoints", reason));
            }
            if self.tls.is_some() && endpoint.starts_with("http://") {
                let reason = format!("{endpoint:?} is without TLS although tls is set");
                return Err(Error::invalid("endpoints", reason));
            }
        }
        Ok(())
    }

    pub(super) fn connect_options(&self) -> Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(self.keep_alive, self.connect_timeout)
            // A server takes pings on an idle connection for an attack.
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(Credentials { user, password }) = &self.credentials {
            options = options.with_user(user, password);
        }
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.load()?);
        }
        Ok(options)
    }
}

impl TlsOptions {
    fn load(&self) -> Result<etcd_client::TlsOptions> {
        let mut tls = etcd_client::TlsOptions::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read("tls.ca", ca)?));
        }
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let (cert, key) = (read("tls.cert", cert)?, read("tls.key", key)?);
                Ok(tls.identity(Identity::from_pem(cert, key)))
            }
            (None, None) => Ok(tls),
            (Some(_), None) => Err(Error::invalid("tls.key", "must be set together with tls.cert")),
            (None, Some(_)) => Err(Error::invalid("tls.cert", "must be set together with tls.key")),
        }
    }
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| Error::io(format!("{field}: reading {}", path.display()), error))
}
