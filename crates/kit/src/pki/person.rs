//! Certificates of people, for clients that can show nothing else. They serve
//! nobody, and count only as long as identity knows them by their digest.

use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::{
    Error, fingerprint,
    machine::{SCHEME, own_path},
};
use crate::identity::PersonCertificate;

/// First word of the names in them. It is none of a machine, so that whoever
/// does not know of people's certificates refuses them.
const PERSON: &str = "person/";

/// The URI that names a person's certificate. The name is that of a user, with
/// that of the certificate behind a plus sign.
pub(super) fn uri(name: &str) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(Error::PersonName(name.to_owned()));
    }
    Ok(format!("{SCHEME}{PERSON}{name}"))
}

/// A person's certificate; `None` when it is none. Whether it is genuine is for
/// the handshake to say, whether it still counts for identity.
pub fn person_of(certificate_der: &[u8]) -> Result<Option<PersonCertificate>, Error> {
    let found = own_path(certificate_der)?;
    let person = found.is_some_and(|path| path.starts_with(PERSON));
    Ok(person.then(|| PersonCertificate { sha256: fingerprint(certificate_der) }))
}

/// SHA-256 of a certificate in PEM, as [`PersonCertificate`] has it.
pub fn certificate_sha256(pem: &str) -> Result<String, Error> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| {
        Error::Certificate { place: "certificate".into(), reason: error.to_string() }
    })?;
    Ok(fingerprint(&der))
}
