//! Certificates and trust of a listener.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Authorities, Ca, Error, Loaded, RotatingIdentity, Trust,
    files::{self, Stamp},
    fingerprint, load, timestamp,
};
use crate::clock::{Clock, SystemClock};

/// Interval at which files and dates are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

enum Source {
    /// With the authorities that there were when it was issued.
    Issued {
        authorities: Authorities,
        names: Vec<String>,
        under: Mutex<String>,
    },
    Files {
        certificate: PathBuf,
        key: PathBuf,
        seen: Mutex<Option<(Stamp, Stamp)>>,
    },
}

/// A listener's certificate, which renews itself or follows its files.
pub struct ServerIdentity {
    source: Source,
    clock: Arc<dyn Clock>,
    current: Arc<Current>,
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerIdentity").field("current", &self.current).finish_non_exhaustive()
    }
}

impl ServerIdentity {
    /// A certificate of our own CA for these names. It lives in memory and is
    /// made anew at every start, when a third of its life is left and when the
    /// authorities change.
    pub fn issued<A>(ca: A, names: Vec<String>) -> Result<Self, Error>
    where
        A: TryInto<Authorities>,
        Error: From<A::Error>,
    {
        let authorities: Authorities = ca.try_into()?;
        let clock = Arc::clone(authorities.signer().clock());
        let under = Mutex::new(authorities.pem());
        let source = Source::Issued { authorities, names, under };
        let current = Current::new(source.load(clock.as_ref())?);
        Ok(Self { source, clock, current })
    }

    /// A certificate the operator keeps in files. A change of the files is
    /// seen within seconds.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let source = Source::Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            seen: Mutex::new(None),
        };
        let stamps = source.stamps()?;
        let current = Current::new(source.load(clock.as_ref())?);
        if let Source::Files { seen, .. } = &source {
            *seen.lock() = stamps;
        }
        Ok(Self { source, clock, current })
    }

    /// The certificate shown now.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.current.0.load().certified.cert[0].clone()
    }

    /// Its last second, since 1970.
    pub fn not_after(&self) -> i64 {
        self.current.0.load().validity.until
    }

    /// Renews or reloads if that is due; tells whether it was. An error
    /// leaves the certificate as it is, and is reported once per change of
    /// the files.
    pub fn refresh(&self) -> Result<bool, Error> {
        let due = match &self.source {
            Source::Issued { authorities, under, .. } => {
                // Before issuing: what changes meanwhile is seen next time.
                let now = authorities.pem();
                let changed = std::mem::replace(&mut *under.lock(), now.clone()) != now;
                changed || self.clock.now().as_second() >= self.current.0.load().validity.renew_at()
            }
            Source::Files { seen, .. } => {
                // Before reading: what changes while we read is seen next time.
                let stamps = self.source.stamps()?;
                std::mem::replace(&mut *seen.lock(), stamps) != stamps
            }
        };
        if due {
            self.current.0.store(Arc::new(self.source.load(self.clock.as_ref())?));
        }
        Ok(due)
    }

    /// Keeps the certificate fresh until cancelled.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut failing = false;
        while cancel.run_until_cancelled(tokio::time::sleep(RELOAD_INTERVAL)).await.is_some() {
            let identity = Arc::clone(&self);
            let refreshed = tokio::task::spawn_blocking(move || identity.refresh()).await;
            match refreshed {
                Ok(Ok(true)) => info!(
                    sha256 = fingerprint(&self.certificate()),
                    not_after = %timestamp(self.not_after()),
                    "server certificate renewed"
                ),
                Ok(Ok(false)) => failing = false,
                // A file that stays away is one event, not one every poll.
                Ok(Err(Error::Io { .. })) if failing => {}
                Ok(Err(error)) => {
                    failing = true;
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    warn!(%error, source, "server certificate not renewed, the old one stays");
                }
                Err(error) => warn!(%error, "server certificate not examined"),
            }
        }
    }
}

impl Source {
    fn stamps(&self) -> Result<Option<(Stamp, Stamp)>, Error> {
        match self {
            Self::Issued { .. } => Ok(None),
            Self::Files { certificate, key, .. } => {
                Ok(Some((Stamp::of(certificate)?, Stamp::of(key)?)))
            }
        }
    }

    fn load(&self, clock: &dyn Clock) -> Result<Loaded, Error> {
        match self {
            Self::Issued { authorities, names, .. } => {
                let issued = authorities.issue_server(names)?;
                let label = "server certificate";
                load(
                    (label, issued.chain_pem.as_bytes()),
                    (label, issued.key_pem.as_bytes()),
                    clock.now(),
                )
            }
            Self::Files { certificate, key, .. } => {
                let chain = files::read(certificate)?;
                let private = files::read_private(key, files::OWNER_AND_GROUP)?;
                let (certificate, key) =
                    (certificate.display().to_string(), key.display().to_string());
                load((&certificate, &chain), (&key, &private), clock.now())
            }
        }
    }
}

/// The identity shown to new connections.
struct Current(ArcSwap<Loaded>);

impl Current {
    fn new(loaded: Loaded) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(loaded)))
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {}", fingerprint(&self.0.load().certified.cert[0]))
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().certified))
    }
}

/// TLS of a listener that shows this certificate. Clients may show one too; if
/// they do it must be of `clients`, or there is no connection.
pub fn server_config(identity: &ServerIdentity, clients: &Ca) -> Result<Arc<ServerConfig>, Error> {
    trusting_server_config(identity, &Trust::of(clients.pem())?)
}

/// The same for clients of whatever authorities are believed at the moment.
pub fn trusting_server_config(
    identity: &ServerIdentity,
    clients: &Trust,
) -> Result<Arc<ServerConfig>, Error> {
    clients.server_config(Arc::clone(&identity.current) as Arc<dyn ResolvesServerCert>)
}

/// The same for a machine that got its certificate from a CA elsewhere, whose
/// certificate this is.
pub fn machine_server_config(
    identity: &RotatingIdentity,
    ca_pem: &str,
) -> Result<Arc<ServerConfig>, Error> {
    trusting_machine_config(identity, &Trust::of(ca_pem)?)
}

/// The same for whatever authorities the machine believes at the moment.
pub fn trusting_machine_config(
    identity: &RotatingIdentity,
    clients: &Trust,
) -> Result<Arc<ServerConfig>, Error> {
    clients.server_config(identity.shown_to_clients())
}
