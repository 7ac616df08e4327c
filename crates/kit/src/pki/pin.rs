//! Meeting a server of which only the CA's digest is known.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{
    Error, chain, controller_config, fingerprint, kind::require_controller, parse, provider,
};

/// Separator between a join token and the digest of its CA.
const SEPARATOR: char = '.';

/// The digest of the CA that a join token carries at its end.
pub fn pin_in_token(token: &str) -> Option<&str> {
    let (_, pin) = token.rsplit_once(SEPARATOR)?;
    normal(pin).is_ok().then_some(pin)
}

/// The join token without it.
pub fn without_pin(token: &str) -> &str {
    match pin_in_token(token) {
        Some(pin) => &token[..token.len() - pin.len() - SEPARATOR.len_utf8()],
        None => token,
    }
}

/// Fingerprints come with colons and in capitals too.
fn normal(sha256: &str) -> Result<String, Error> {
    let plain: String = sha256.chars().filter(|c| !matches!(c, ':' | ' ')).collect();
    let plain = plain.to_ascii_lowercase();
    match hex::decode(&plain) {
        Ok(bytes) if bytes.len() == 32 => Ok(plain),
        _ => Err(Error::Fingerprint(sha256.to_owned())),
    }
}

/// Trust in the CA of a machine that joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anchor {
    /// By its SHA-256 digest, hexadecimal.
    Digest(String),
    /// By its certificate, PEM.
    Certificate(String),
}

impl Anchor {
    /// TLS towards servers of that CA and no other.
    pub fn config(&self) -> Result<ClientConfig, Error> {
        match self {
            Self::Digest(sha256) => pinned_config(sha256),
            Self::Certificate(pem) => controller_config(pem, None),
        }
    }

    /// Returns whether this CA is among those that a controller says are its
    /// own: while it is being replaced there are two.
    pub fn is_among(&self, ca_pem: &str) -> Result<bool, Error> {
        let shown = chain("CA certificate", ca_pem.as_bytes())?;
        match self {
            Self::Digest(sha256) => {
                let wanted = normal(sha256)?;
                Ok(shown.iter().any(|one| fingerprint(one) == wanted))
            }
            Self::Certificate(pem) => {
                let known = chain("CA certificate", pem.as_bytes())?;
                Ok(shown.iter().any(|one| known.contains(one)))
            }
        }
    }
}

/// TLS towards servers that show, and have their certificate from, the CA of
/// this SHA-256 digest. Only to ask for that CA's certificate: everything
/// later trusts the certificate itself.
fn pinned_config(sha256: &str) -> Result<ClientConfig, Error> {
    let pinned = Pinned { sha256: normal(sha256)?, provider: provider() };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| Error::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Pinned {
    sha256: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let ca = intermediates.iter().find(|shown| fingerprint(shown) == self.sha256);
        let ca = ca.filter(|shown| parse("CA", shown).is_ok_and(|parsed| parsed.is_ca()));
        let Some(ca) = ca else {
            let why =
                format!("the server's CA is not the one with the fingerprint {}", self.sha256);
            return Err(rustls::Error::General(why));
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)?;
        // A join token is for a controller, and for no other machine of its CA.
        require_controller(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_may_carry_its_ca() {
        let pin = "ab".repeat(32);
        let token = format!("slvj_secret.{pin}");
        assert_eq!((pin_in_token(&token), without_pin(&token)), (Some(&*pin), "slvj_secret"));
        for plain in ["slvj_secret", "slvj_secret.", "slvj_secret.abc", ""] {
            assert_eq!((pin_in_token(plain), without_pin(plain)), (None, plain));
        }
    }

    #[test]
    fn fingerprints_as_people_write_them() {
        let shown = ["AB"; 32].join(":");
        assert_eq!(normal(&shown).unwrap(), "ab".repeat(32));
        for wrong in ["", "ab", &"zz".repeat(32), &"ab".repeat(33)] {
            assert!(pinned_config(wrong).unwrap_err().to_string().contains("64 hexadecimal"));
        }
    }
}
