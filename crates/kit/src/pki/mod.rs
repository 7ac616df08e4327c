//! Keys and certificates, kept as files: the one thing besides the store that
//! survives a restart.
//!
//! One CA per installation ([`Ca`]), made at the first start, and beside it a
//! second one while it is being replaced ([`Authorities`]). It signs what
//! servers show ([`ServerIdentity`]) and what machines show
//! ([`Ca::sign_machine`]). A machine's certificate names it by exactly one URI,
//! `selvage:` and its path ([`machine_of`]); whatever names a request asks for
//! are ignored, so that a join token decides what a machine is and nobody
//! else.
//!
//! Certificates are short-lived and nothing restarts for a new one: whoever
//! shows a certificate does it through a resolver behind an atomic pointer, so
//! new connections get the new certificate and live ones go on. Renewal falls
//! due when a third of the life is left, which leaves days for a controller
//! that is away.
//!
//! Files are written beside their place, synced and renamed. The CA's
//! directory appears as a whole by one rename: two processes that start at
//! once agree on whose it is, and a crash leaves all of it or nothing. Private
//! keys that others may read are refused, with words that say what to do.
//!
//! The cryptography is aws-lc-rs, always handed over explicitly: no process
//! default is installed or needed. Functions here read and write small files
//! and block for that long.

mod authorities;
mod ca;
mod client;
mod files;
mod kind;
mod machine;
mod person;
mod pin;
mod server;
mod trust;

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::{crypto::CryptoProvider, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use selvage_api::Code;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use self::{
    authorities::Authorities,
    ca::{Ca, Issued, Signed, is_server_name, pem, requested_key},
    client::{KeyRequest, RotatingIdentity, client_config, controller_config},
    machine::{machine_of, shown_certificate},
    person::{certificate_sha256, person_of},
    pin::{Anchor, pin_in_token, without_pin},
    server::{
        ServerIdentity, machine_server_config, server_config, trusting_machine_config,
        trusting_server_config,
    },
    trust::Trust,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Default lifetime of a machine's certificate.
pub const MACHINE_LIFETIME: Duration = Duration::from_secs(30 * DAY.as_secs());
const SERVER_LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
const CA_LIFETIME: Duration = Duration::from_secs(3650 * DAY.as_secs());
/// Certificates begin this much before now: clocks differ.
const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// Errors of keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system says no.
    #[error("{path}: cannot {action}")]
    Io {
        /// The file or directory.
        path: String,
        /// Action that failed.
        action: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A private key others may read.
    #[error("{path}: private key open to others (mode {mode:04o}); run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// A directory in which others may replace the key.
    #[error(
        "{path}: directory of a private key writable by others (mode {mode:04o}); run: chmod 700 {path}"
    )]
    ExposedDirectory {
        /// The directory.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// Half of a pair is gone.
    #[error("{path}: missing, while {other} is there; restore it from a backup")]
    Missing {
        /// The file that should be there.
        path: String,
        /// The file that is.
        other: String,
    },
    /// Something else lives where the CA should be made.
    #[error("{path}: holds no CA and is not empty; no CA is made there")]
    Occupied {
        /// The directory.
        path: String,
    },
    /// Not a certificate in PEM.
    #[error("{place}: not a PEM certificate: {reason}")]
    Certificate {
        /// The file, or what the text was given as.
        place: String,
        /// Reason it is refused.
        reason: String,
    },
    /// Not a private key in PEM. The reason never quotes the key.
    #[error("{place}: not a PEM private key that can be used")]
    Key {
        /// The file, or what the text was given as.
        place: String,
    },
    /// Key and certificate are not a pair.
    #[error("{key}: the private key does not belong to the certificate in {certificate}")]
    Mismatch {
        /// Path of the key.
        key: String,
        /// Path of the certificate.
        certificate: String,
    },
    /// Too late.
    #[error("{place}: the certificate expired at {when}")]
    Expired {
        /// The file, or what the text was given as.
        place: String,
        /// The end.
        when: Timestamp,
    },
    /// Too early, or a wrong clock.
    #[error("{place}: the certificate is not valid before {when}; is this machine's clock right?")]
    NotYetValid {
        /// The file, or what the text was given as.
        place: String,
        /// The beginning.
        when: Timestamp,
    },
    /// The next authority's key cannot be opened with ours.
    #[error(
        "{path}: does not open the key of the CA that follows: it is not that of the other \
         controllers; copy pki/ from one of them"
    )]
    SealedForAnother {
        /// The file with our key.
        path: String,
    },
    /// The certificate may sign nothing.
    #[error("{path}: the certificate is not that of a CA")]
    NotACa {
        /// The file.
        path: String,
    },
    /// The request for a certificate is no good.
    #[error("certificate request: {0}")]
    Request(String),
    /// A server cannot be called that.
    #[error("server name {0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
    /// A machine cannot be called that.
    #[error("machine name {0:?} cannot stand in a certificate")]
    MachineName(String),
    /// A person cannot be called that.
    #[error("name {0:?} of a person cannot stand in a certificate")]
    PersonName(String),
    /// A certificate of our CA that names its machine wrongly.
    #[error("machine certificate: {0}")]
    MachineCertificate(String),
    /// Making a key or signature failed.
    #[error("a key or certificate could not be made")]
    Sign(#[source] rcgen::Error),
    /// Not the digest of a certificate.
    #[error("{0:?} is not a SHA-256 fingerprint: 64 hexadecimal digits are needed")]
    Fingerprint(String),
    /// TLS does not take what it was given.
    #[error("TLS could not be set up: {0}")]
    Tls(String),
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl Error {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Io { .. }
            | Self::Exposed { .. }
            | Self::ExposedDirectory { .. }
            | Self::Missing { .. }
            | Self::Occupied { .. }
            | Self::Certificate { .. }
            | Self::Key { .. }
            | Self::Mismatch { .. }
            | Self::Expired { .. }
            | Self::NotYetValid { .. }
            | Self::SealedForAnother { .. }
            | Self::NotACa { .. } => Code::FailedPrecondition,
            Self::Request(_)
            | Self::ServerName(_)
            | Self::MachineName(_)
            | Self::PersonName(_)
            | Self::Fingerprint(_) => Code::InvalidArgument,
            Self::MachineCertificate(_) => Code::Unauthenticated,
            Self::Sign(_) | Self::Tls(_) => Code::Internal,
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// From when until when, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    from: i64,
    until: i64,
}

impl Validity {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() }
    }

    fn check(self, place: &str, now: Timestamp) -> Result<(), Error> {
        let now = now.as_second();
        if now < self.from {
            let when = timestamp(self.from);
            return Err(Error::NotYetValid { place: place.to_owned(), when });
        }
        if now > self.until {
            let when = timestamp(self.until);
            return Err(Error::Expired { place: place.to_owned(), when });
        }
        Ok(())
    }

    /// Moment at which a third is left.
    fn renew_at(self) -> i64 {
        self.until - (self.until - self.from) / 3
    }
}

fn parse<'a>(place: &str, der: &'a [u8]) -> Result<X509Certificate<'a>, Error> {
    let error = |reason: String| Error::Certificate { place: place.to_owned(), reason };
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(error("bytes after its end".to_owned())),
        Err(reason) => Err(error(reason.to_string())),
    }
}

fn chain(place: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let error = |reason: String| Error::Certificate { place: place.to_owned(), reason };
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|reason| error(reason.to_string()))?;
    if chain.is_empty() { Err(error("no certificate in it".to_owned())) } else { Ok(chain) }
}

/// Certificates of a text, PEM; there is at least one.
pub(crate) fn certificates(place: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    chain(place, pem.as_bytes())
}

/// The public key of a certificate, as its algorithm writes keys.
pub(crate) fn public_key(certificate: &[u8]) -> Result<Vec<u8>, Error> {
    let parsed = parse("certificate", certificate)?;
    Ok(parsed.public_key().subject_public_key.data.to_vec())
}

/// A certificate with its key, ready to be shown.
struct Loaded {
    certified: Arc<CertifiedKey>,
    validity: Validity,
}

/// Puts a chain and its key together, provided that they fit and are valid.
fn load(certificate: (&str, &[u8]), key: (&str, &[u8]), now: Timestamp) -> Result<Loaded, Error> {
    let chain = chain(certificate.0, certificate.1)?;
    let validity = Validity::of(&parse(certificate.0, &chain[0])?);
    validity.check(certificate.0, now)?;
    // Whatever the parser has to say might quote the key.
    let unusable = || Error::Key { place: key.0.to_owned() };
    let private = PrivateKeyDer::from_pem_slice(key.1).map_err(|_| unusable())?;
    match CertifiedKey::from_der(chain, private, &provider()) {
        Ok(certified) => Ok(Loaded { certified: Arc::new(certified), validity }),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(Error::Mismatch { key: key.0.to_owned(), certificate: certificate.0.to_owned() })
        }
        Err(_) => Err(unusable()),
    }
}

/// Replaces a file that is for its owner alone; it is never seen half written.
pub fn replace_private(path: &std::path::Path, content: &[u8]) -> Result<(), Error> {
    files::replace(path, 0o600, content)
}

/// Returns whether a certificate that was verified is one of this authority.
/// Each of ours has a name that no other has.
pub fn is_signed_by(certificate: &[u8], authority: &[u8]) -> bool {
    match (parse("certificate", certificate), parse("CA certificate", authority)) {
        (Ok(certificate), Ok(authority)) => {
            certificate.issuer().as_raw() == authority.subject().as_raw()
        }
        _ => false,
    }
}

/// Digest of a certificate, by which it is told from others.
pub fn fingerprint(der: &[u8]) -> String {
    hex::encode(Sha256::digest(der))
}
