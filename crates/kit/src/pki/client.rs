//! Certificates and trust of our own clients.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use rustls::{
    ClientConfig, ConfigBuilder, SignatureScheme, WantsVerifier,
    client::{ResolvesClientCert, WantsClientCert},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use zeroize::Zeroizing;

use super::{
    Error, Loaded, Trust, chain, files, fingerprint, is_signed_by, load, machine_of, parse,
    provider,
};
use crate::{
    clock::{Clock, SystemClock},
    identity::Machine,
};

/// A new key and the request to have it signed. The key stays here.
pub struct KeyRequest {
    key: KeyPair,
    csr_pem: String,
}

impl fmt::Debug for KeyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRequest").field("csr_pem", &self.csr_pem).finish_non_exhaustive()
    }
}

impl KeyRequest {
    /// Makes a key. The request names nobody: the signer knows who asks.
    pub fn new() -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(Error::Sign)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(Error::Sign)?;
        Ok(Self { csr_pem: request.pem().map_err(Error::Sign)?, key })
    }

    /// The private key, for what signs with it in this process.
    pub(crate) fn key_der(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.key.serialize_der())
    }

    /// Certificate signing request, for the signer.
    pub fn csr_pem(&self) -> &str {
        &self.csr_pem
    }
}

/// A machine's certificate with its key in one file, which is replaced as a
/// whole: there is never a new key beside an old certificate. What follows the
/// certificate in the file is shown with it.
pub struct RotatingIdentity {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    current: Arc<Current>,
}

impl fmt::Debug for RotatingIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RotatingIdentity")
            .field("path", &self.path)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl RotatingIdentity {
    /// Keeps a first certificate, the answer to the request.
    pub fn create(path: &Path, request: &KeyRequest, certificate_pem: &str) -> Result<Self, Error> {
        Self::create_with(path, request, certificate_pem, Arc::new(SystemClock))
    }

    /// The same, with a clock.
    pub fn create_with(
        path: &Path,
        request: &KeyRequest,
        certificate_pem: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let content = combine(request, certificate_pem)?;
        read(path, content.as_bytes(), clock.as_ref())?;
        files::replace(path, 0o600, content.as_bytes())?;
        Self::open_with(path, clock)
    }

    /// Reads what [`RotatingIdentity::create`] or a renewal wrote.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, Arc::new(SystemClock))
    }

    /// The same, with a clock.
    pub fn open_with(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let content = files::read_private(path, files::OWNER_ONLY)?;
        let (loaded, machine) = read(path, &content, clock.as_ref())?;
        let current = Arc::new(Current(ArcSwap::from_pointee(ClientIdentity { loaded, machine })));
        Ok(Self { path: path.to_owned(), clock, current })
    }

    /// The same certificate, for a listener to show.
    pub(super) fn shown_to_clients(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>
    }

    /// Identity of this machine.
    pub fn machine(&self) -> Machine {
        self.current.0.load().machine.clone()
    }

    /// Returns whether the certificate is one of this authority.
    pub fn is_signed_by(&self, authority: &[u8]) -> bool {
        is_signed_by(&self.current.0.load().loaded.certified.cert[0], authority)
    }

    /// The certificate's last second, since 1970.
    pub fn not_after(&self) -> i64 {
        self.current.0.load().loaded.validity.until
    }

    /// Moment at which a third of its life is left, in seconds since 1970.
    pub fn renew_at(&self) -> i64 {
        self.current.0.load().loaded.validity.renew_at()
    }

    /// Returns whether that moment has come.
    pub fn needs_renewal(&self) -> bool {
        self.clock.now().as_second() >= self.renew_at()
    }

    /// Takes the answer to a request: to disk first, then to new connections.
    pub fn renew(&self, request: &KeyRequest, certificate_pem: &str) -> Result<(), Error> {
        let content = combine(request, certificate_pem)?;
        let (loaded, machine) = read(&self.path, content.as_bytes(), self.clock.as_ref())?;
        let before = self.machine();
        if machine != before {
            let reason = format!("it names {machine} where {before} was asked for");
            return Err(Error::MachineCertificate(reason));
        }
        files::replace(&self.path, 0o600, content.as_bytes())?;
        self.current.0.store(Arc::new(ClientIdentity { loaded, machine }));
        Ok(())
    }
}

fn combine(request: &KeyRequest, certificate_pem: &str) -> Result<Zeroizing<String>, Error> {
    let label = "signed certificate";
    let chain = chain(label, certificate_pem.as_bytes())?;
    if parse(label, &chain[0])?.public_key().raw != request.key.subject_public_key_info() {
        return Err(Error::Mismatch {
            key: "certificate request".to_owned(),
            certificate: label.to_owned(),
        });
    }
    let key = Zeroizing::new(request.key.serialize_pem());
    Ok(Zeroizing::new(format!("{}{certificate_pem}", *key)))
}

fn read(path: &Path, content: &[u8], clock: &dyn Clock) -> Result<(Loaded, Machine), Error> {
    let place = path.display().to_string();
    let loaded = load((&place, content), (&place, content), clock.now())?;
    let machine = machine_of(&loaded.certified.cert[0])?
        .ok_or_else(|| Error::MachineCertificate("it names no machine".to_owned()))?;
    Ok((loaded, machine))
}

struct ClientIdentity {
    loaded: Loaded,
    machine: Machine,
}

struct Current(ArcSwap<ClientIdentity>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.load();
        let digest = fingerprint(&shown.loaded.certified.cert[0]);
        write!(f, "certificate {digest} of {}", shown.machine)
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().loaded.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().loaded.certified))
    }
}

/// TLS 1.2 and 1.3 towards servers of this CA and no other. With an identity
/// the client shows it, always the newest one.
pub fn client_config(
    ca_pem: &str,
    identity: Option<&RotatingIdentity>,
) -> Result<ClientConfig, Error> {
    Trust::of(ca_pem)?.client_config(identity)
}

/// The same towards controllers only: whoever shows the certificate of another
/// machine is hung up on.
pub fn controller_config(
    ca_pem: &str,
    identity: Option<&RotatingIdentity>,
) -> Result<ClientConfig, Error> {
    Trust::of(ca_pem)?.controller_config(identity)
}

pub(super) fn versions() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| Error::Tls(error.to_string()))
}

pub(super) fn showing(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&RotatingIdentity>,
) -> ClientConfig {
    let mut config = match identity {
        Some(identity) => {
            let current = Arc::clone(&identity.current) as Arc<dyn ResolvesClientCert>;
            builder.with_client_cert_resolver(current)
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}
