//! Servers that are controllers. A machine may serve under its own names with
//! a certificate of the same CA, so the CA and a name alone do not tell.

use rustls::CertificateError;
use rustls_pki_types::CertificateDer;

use super::machine_of;
use crate::identity::Machine;

/// Kind of server that a client means to talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Any server of our authorities.
    Anyone,
    /// A controller.
    Controller,
}

impl Expected {
    /// Refuses a server that is of another kind.
    pub(super) fn require(self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match self {
            Self::Anyone => Ok(()),
            Self::Controller => require_controller(certificate),
        }
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
