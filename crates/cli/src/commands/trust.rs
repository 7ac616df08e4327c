//! Making sure of a server that is met for the first time. Its CA is trusted
//! because somebody said so, never because it was there.

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    Error,
    connect::{self, Trust},
    endpoint::Endpoint,
    session::Session,
};

/// The CA of that fingerprint, from what the server shows.
pub(crate) async fn pinned(
    endpoint: &Endpoint,
    sha256: &str,
) -> Result<CertificateDer<'static>, Error> {
    let wanted = normal(sha256)?;
    let authorities = authorities(endpoint).await?;
    let shown: Vec<String> = authorities.iter().map(connect::fingerprint).collect();
    match authorities.into_iter().find(|ca| connect::fingerprint(ca) == wanted) {
        Some(ca) => Ok(ca),
        None => {
            let endpoint = endpoint.to_string();
            Err(connect::Error::WrongFingerprint { endpoint, wanted, shown }.into())
        }
    }
}

/// The CA the person says yes to; `None` when this system trusts the server
/// anyway.
pub(crate) async fn asked(
    endpoint: &Endpoint,
    session: &mut Session<'_>,
) -> Result<Option<CertificateDer<'static>>, Error> {
    let known = crate::target::Target::bare(endpoint.clone(), Trust::System);
    match connect::open(&known, &known.endpoint).await {
        Ok(_) => return Ok(None),
        Err(connect::Error::UnknownCa { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    let hint = "name the CA with --ca FILE, or its fingerprint with --ca-sha256 HEX";
    let Some(ca) = authorities(endpoint).await?.pop() else {
        return Err(Error::Invalid {
            message: format!("{endpoint} shows no CA that could be compared"),
            hints: vec!["name the CA with --ca FILE".into()],
        });
    };
    if session.io.prompt.is_some() {
        session.io.say(&format!(
            "{endpoint} is not known here. Its CA says of itself:\n  name     {}\n  sha256   {}\nCompare the fingerprint with what the server printed at its first start.",
            subject(&ca),
            connect::fingerprint(&ca)
        ))?;
    }
    if !session.confirm("Trust this CA from now on?", hint)? {
        return Err(Error::Declined(format!("the CA of {endpoint} is not trusted")));
    }
    Ok(Some(ca))
}

/// The certificates in the server's chain that may sign others.
async fn authorities(endpoint: &Endpoint) -> Result<Vec<CertificateDer<'static>>, Error> {
    let mut chain = connect::chain(endpoint).await?;
    chain.retain(|certificate| {
        X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.is_ca())
    });
    Ok(chain)
}

fn subject(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .map_or_else(|_| "unreadable".into(), |(_, parsed)| parsed.subject().to_string())
}

/// Fingerprints come with colons and in capitals too.
fn normal(sha256: &str) -> Result<String, Error> {
    let plain: String =
        sha256.chars().filter(|c| !matches!(c, ':' | ' ')).collect::<String>().to_lowercase();
    match hex::decode(&plain) {
        Ok(bytes) if bytes.len() == 32 => Ok(plain),
        _ => Err(Error::invalid("--ca-sha256 must be 64 hexadecimal digits")),
    }
}

/// A certificate as PEM.
pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    let base64 = BASE64.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in base64.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
