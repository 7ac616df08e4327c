//! Certificates of a process that has the CA itself.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use selvage_kit::{
    identity::Machine,
    pki::{self, Ca, KeyRequest, RotatingIdentity},
};

/// Certificate that this process shows to others, signed by its own CA.
pub struct IssuedIdentity {
    machine: Machine,
    ca: Arc<Ca>,
    identity: RotatingIdentity,
    tls: Arc<rustls::ClientConfig>,
    controller_tls: Arc<rustls::ClientConfig>,
}

impl fmt::Debug for IssuedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IssuedIdentity").field(&self.machine).finish()
    }
}

impl IssuedIdentity {
    /// Interval of checks for a due renewal.
    pub const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

    /// Issues a certificate and keeps it at `path`: a new one at every start,
    /// for the CA may be another.
    pub fn issue(path: &Path, ca: Arc<Ca>, machine: Machine) -> Result<Self, pki::Error> {
        let request = KeyRequest::new()?;
        let signed = ca.sign_machine(request.csr_pem(), &machine)?;
        let identity = RotatingIdentity::create(path, &request, &signed.certificate_pem)?;
        let tls = Arc::new(pki::client_config(ca.pem(), Some(&identity))?);
        let controller_tls = Arc::new(pki::controller_config(ca.pem(), Some(&identity))?);
        Ok(Self { machine, ca, identity, tls, controller_tls })
    }

    /// TLS configuration of clients that show this certificate to any machine.
    pub fn client_tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// TLS configuration of clients that show this certificate to controllers,
    /// and to nobody who is none.
    pub fn controller_tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.controller_tls)
    }

    /// Renews the certificate if that is due.
    pub fn renew_if_due(&self) -> Result<(), pki::Error> {
        if !self.identity.needs_renewal() {
            return Ok(());
        }
        let request = KeyRequest::new()?;
        let signed = self.ca.sign_machine(request.csr_pem(), &self.machine)?;
        self.identity.renew(&request, &signed.certificate_pem)
    }
}
