//! Servers that are controllers. A machine may serve under its own names with
//! a certificate of the same CA, so the CA and a name alone do not tell.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{Error, machine_of, provider};
use crate::identity::Machine;

/// Verifies CA and name of a server, and that its certificate is not that of a
/// machine of another kind.
#[derive(Debug)]
pub(super) struct Controllers(Arc<WebPkiServerVerifier>);

impl Controllers {
    pub(super) fn of(roots: RootCertStore) -> Result<Arc<Self>, Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(|error| Error::Tls(error.to_string()))?;
        Ok(Arc::new(Self(verifier)))
    }
}

/// Refuses the certificate of a machine that is no controller. A server's own
/// certificate names no machine.
pub(super) fn require_controller(certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    match machine_of(certificate) {
        Ok(None | Some(Machine::Controller)) => Ok(()),
        Ok(Some(machine)) => {
            Err(rustls::Error::General(format!("the server is {machine} and not a controller")))
        }
        Err(_) => Err(CertificateError::BadEncoding.into()),
    }
}

impl ServerCertVerifier for Controllers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)?;
        require_controller(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
