//! The signer of the certificates of machines and people.

use std::{error::Error as StdError, time::Duration};

use jiff::Timestamp;
use selvage_kit::{identity::Machine, pki::Authorities};

/// A certificate authority.
pub trait CertificateAuthority: Send + Sync + 'static {
    /// Signs the key of the request in the name of the machine, which also
    /// serves under these DNS names and addresses. Whatever names the request
    /// carries are not looked at.
    fn sign(&self, csr_pem: &str, machine: &Machine, names: &[String])
    -> Result<Signed, SignError>;

    /// Signs the key of the request in the name of a person, for clients alone.
    fn sign_person(
        &self,
        csr_pem: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Signed, SignError>;

    /// The authority's own certificate; of several that are believed, all.
    fn ca_pem(&self) -> String;

    /// SHA-256 of the certificate of the one that signs, lower-case hexadecimal.
    fn ca_sha256(&self) -> String;

    /// Certificates to show after one that was signed now, PEM. Empty: the
    /// authority's own certificate.
    fn chain_pem(&self) -> String {
        String::new()
    }

    /// The authorities, where they can be replaced.
    fn authorities(&self) -> Option<Authorities> {
        None
    }
}

/// A new certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The leaf, PEM.
    pub certificate_pem: String,
    /// Until when it is good.
    pub not_after: Timestamp,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is not one; the text says what is wrong with it.
    #[error("{0}")]
    BadRequest(String),
    /// The authority itself failed.
    #[error("the certificate authority failed")]
    Failed(#[source] Box<dyn StdError + Send + Sync>),
}
