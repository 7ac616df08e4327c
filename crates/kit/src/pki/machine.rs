//! Names of machines inside certificates.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::GeneralName;

use super::{Error, ca::pem, parse};
use crate::identity::{Machine, ShownCertificate};

pub(super) const SCHEME: &str = "selvage:";
/// Characters that a URI's path may not hold as they are, the slash being our
/// separator.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The URI that names the machine.
pub(super) fn uri(machine: &Machine) -> Result<String, Error> {
    let path = machine.to_string();
    // A name with a slash in it would come back as another machine.
    match Machine::parse(&path) {
        Ok(read) if read == *machine => {
            Ok(format!("{SCHEME}{}", utf8_percent_encode(&path, ESCAPED)))
        }
        _ => Err(Error::MachineName(path)),
    }
}

/// The machine that a certificate names; `None` when it names none. Whether
/// the certificate is genuine is for the handshake to say.
pub fn machine_of(certificate_der: &[u8]) -> Result<Option<Machine>, Error> {
    let wrong = |reason: &str| Error::MachineCertificate(reason.to_owned());
    let Some(found) = own_path(certificate_der)? else { return Ok(None) };
    let path = percent_decode_str(&found)
        .decode_utf8()
        .map_err(|_| wrong("the machine's name is not valid UTF-8"))?;
    let machine = Machine::parse(&path).map_err(|error| wrong(&error.to_string()))?;
    // One machine, one spelling: else a slash could hide behind its escape.
    if uri(&machine)? != format!("{SCHEME}{found}") {
        return Err(wrong("the machine's name is not spelled as we spell it"));
    }
    Ok(Some(machine))
}

/// Facts of a certificate that was shown.
pub fn shown_certificate(certificate: &CertificateDer<'_>) -> Result<ShownCertificate, Error> {
    let parsed = parse("machine certificate", certificate)?;
    Ok(ShownCertificate {
        pem_sha256: hex::encode(Sha256::digest(pem(certificate))),
        issuer: parsed.issuer().as_raw().into(),
    })
}

/// The one name of ours in a certificate, without its scheme.
pub(super) fn own_path(certificate_der: &[u8]) -> Result<Option<String>, Error> {
    let wrong = |reason: &str| Error::MachineCertificate(reason.to_owned());
    let certificate = parse("machine certificate", certificate_der)?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| wrong("its alternative names cannot be read"))?;
    let mut paths =
        names.iter().flat_map(|extension| &extension.value.general_names).filter_map(|name| {
            match name {
                GeneralName::URI(uri) => uri.strip_prefix(SCHEME),
                _ => None,
            }
        });
    let found = paths.next().map(str::to_owned);
    if paths.next().is_some() {
        return Err(wrong("it names more than one machine"));
    }
    Ok(found)
}
