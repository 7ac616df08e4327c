//! Authorities that are believed at this moment. They change while listeners
//! and clients run, so what checks a certificate asks here at every handshake.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    server::{
        NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::time::Instant;

use super::{
    Error, RotatingIdentity, chain,
    client::{showing, versions},
    fingerprint,
    kind::Expected,
    machine_of, parse, provider,
};
use crate::identity::{Machine, ShownCertificate};

/// Time within which connections of an authority that was dropped come to their
/// end. None is made any more.
const GRACE: Duration = Duration::from_secs(30);

/// Authorities that are believed. Clones share them.
#[derive(Clone)]
pub struct Trust(Arc<Inner>);

struct Inner {
    now: ArcSwap<Roots>,
    hints: Hints,
}

struct Roots {
    pem: String,
    certificates: Vec<CertificateDer<'static>>,
    /// Names of the authorities, DER.
    subjects: Vec<Box<[u8]>>,
    /// Names of those that were dropped, and when.
    dropped: Vec<(Box<[u8]>, Instant)>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trust").field(&self.fingerprints()).finish()
    }
}

impl Trust {
    /// Believes the authorities whose certificates these are.
    pub fn of(ca_pem: &str) -> Result<Self, Error> {
        let roots = Roots::of(ca_pem)?;
        let hints = Hints::new(&roots);
        Ok(Self(Arc::new(Inner { now: ArcSwap::from_pointee(roots), hints })))
    }

    /// Believes these from the next handshake on, and no others.
    pub fn replace(&self, ca_pem: &str) -> Result<(), Error> {
        let mut roots = Roots::of(ca_pem)?;
        roots.dropped = self.0.now.load().dropped_by(&roots);
        self.0.hints.append(&roots);
        self.0.now.store(Arc::new(roots));
        Ok(())
    }

    /// Certificates of the authorities, PEM.
    pub fn pem(&self) -> String {
        self.0.now.load().pem.clone()
    }

    /// Digests of these certificates.
    pub fn fingerprints(&self) -> Vec<String> {
        self.0.now.load().certificates.iter().map(|der| fingerprint(der)).collect()
    }

    /// The authority of that digest, if it is believed.
    pub fn authority(&self, sha256: &str) -> Option<CertificateDer<'static>> {
        let roots = self.0.now.load();
        roots.certificates.iter().find(|der| fingerprint(der) == sha256).cloned()
    }

    /// Returns whether the authority of a certificate that was verified before is
    /// believed still, or was a moment ago.
    pub fn believes(&self, certificate: &ShownCertificate) -> bool {
        let roots = self.0.now.load();
        let issuer = &certificate.issuer;
        roots.subjects.contains(issuer)
            || roots.dropped.iter().any(|(name, at)| name == issuer && at.elapsed() < GRACE)
    }

    /// Returns whether a certificate is one of the authority that signs, which is
    /// the first.
    pub fn is_current(&self, certificate: &ShownCertificate) -> bool {
        self.0.now.load().subjects.first() == Some(&certificate.issuer)
    }

    /// Checks a certificate with those that lead to an authority, the way a
    /// handshake does; returns the machine that it names.
    pub fn machine_of_chain(
        &self,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<Option<Machine>, Error> {
        let wrong = |reason: &str| Error::MachineCertificate(reason.to_owned());
        let (certificate, rest) = chain.split_first().ok_or_else(|| wrong("there is none"))?;
        let now = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let verified = self.clients().verify_client_cert(certificate, rest, now);
        verified.map_err(|error| wrong(&error.to_string()))?;
        machine_of(certificate)
    }

    /// TLS 1.2 and 1.3 towards servers of these authorities and no others. With
    /// an identity the client shows it, always the newest one.
    pub fn client_config(
        &self,
        identity: Option<&RotatingIdentity>,
    ) -> Result<ClientConfig, Error> {
        self.towards(Expected::Anyone, identity)
    }

    /// The same towards controllers only: whoever shows the certificate of
    /// another machine is hung up on.
    pub fn controller_config(
        &self,
        identity: Option<&RotatingIdentity>,
    ) -> Result<ClientConfig, Error> {
        self.towards(Expected::Controller, identity)
    }

    fn towards(
        &self,
        expected: Expected,
        identity: Option<&RotatingIdentity>,
    ) -> Result<ClientConfig, Error> {
        let verifier = Arc::new(Servers { trust: self.clone(), expected });
        let builder = versions()?.dangerous().with_custom_certificate_verifier(verifier);
        Ok(showing(builder, identity))
    }

    /// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1. Clients may show a certificate; if
    /// they do it must be of one of these authorities, or there is no
    /// connection.
    pub(super) fn server_config(
        &self,
        shown: Arc<dyn ResolvesServerCert>,
    ) -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| Error::Tls(error.to_string()))?
            .with_client_cert_verifier(Arc::new(Clients(self.clone())))
            .with_cert_resolver(shown);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A resumed session carries the client certificate of the first one and
        // does not look at its date again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn servers(&self) -> Arc<WebPkiServerVerifier> {
        Arc::clone(&self.0.now.load().servers)
    }

    fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0.now.load().clients)
    }
}

impl Roots {
    /// Names that are not among the next ones.
    fn dropped_by(&self, next: &Self) -> Vec<(Box<[u8]>, Instant)> {
        let now = Instant::now();
        let gone = self.subjects.iter().filter(|name| !next.subjects.contains(name));
        let gone = gone.map(|name| (name.clone(), now));
        let before = self.dropped.iter().filter(|(_, at)| at.elapsed() < GRACE);
        before.cloned().chain(gone).collect()
    }

    fn of(ca_pem: &str) -> Result<Self, Error> {
        let place = "CA certificate";
        let certificates = chain(place, ca_pem.as_bytes())?;
        let subjects = certificates
            .iter()
            .map(|der| Ok::<_, Error>(Box::from(parse(place, der)?.subject().as_raw())));
        let subjects = subjects.collect::<Result<_, _>>()?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| Error::Certificate {
                place: place.to_owned(),
                reason: error.to_string(),
            })?;
        }
        let (roots, tls) = (Arc::new(roots), |error: String| Error::Tls(error));
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .build()
            .map_err(|error| tls(error.to_string()))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(error.to_string()))?;
        Ok(Self {
            pem: ca_pem.to_owned(),
            certificates,
            subjects,
            dropped: Vec::new(),
            servers,
            clients,
        })
    }
}

/// Names of authorities that clients are told, so that a browser offers its
/// certificates of these and no others. They are lent for as long as the
/// verifier lives, so each change is kept behind the one before.
struct Hints {
    subjects: Vec<DistinguishedName>,
    next: OnceLock<Box<Hints>>,
}

impl Hints {
    fn new(roots: &Roots) -> Self {
        Self { subjects: roots.clients.root_hint_subjects().to_vec(), next: OnceLock::new() }
    }

    fn newest(&self) -> &Self {
        let mut newest = self;
        while let Some(next) = newest.next.get() {
            newest = next;
        }
        newest
    }

    fn append(&self, roots: &Roots) {
        let mut hints = Box::new(Self::new(roots));
        // Somebody else may have appended at this moment.
        while let Err(mine) = self.newest().next.set(hints) {
            hints = mine;
        }
    }
}

/// Checks servers.
#[derive(Debug)]
struct Servers {
    trust: Trust,
    expected: Expected,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let servers = self.trust.servers();
        let verified =
            servers.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)?;
        self.expected.require(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.servers().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.servers().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.servers().supported_verify_schemes()
    }
}

/// Checks clients that show a certificate.
#[derive(Debug)]
struct Clients(Trust);

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.0.0.hints.newest().subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.clients().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.clients().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.clients().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clients().supported_verify_schemes()
    }
}
