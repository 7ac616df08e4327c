//! Certificates of a process that has the CA itself.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;

use selvage_kit::{
    identity::Machine,
    pki::{self, Authorities, KeyRequest, RotatingIdentity},
};

/// Certificate that this process shows to others, signed by its own CA.
pub struct IssuedIdentity {
    machine: Machine,
    authorities: Authorities,
    /// Those that there were when the certificate was issued.
    under: Mutex<String>,
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
    /// Interval of checks for a due renewal: soon after the authorities changed.
    pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);

    /// Issues a certificate and keeps it at `path`: a new one at every start,
    /// for the CA may be another.
    pub fn issue(
        path: &Path,
        authorities: Authorities,
        machine: Machine,
    ) -> Result<Self, pki::Error> {
        let (request, under) = (KeyRequest::new()?, Mutex::new(authorities.pem()));
        let chain = sign(&authorities, &request, &machine)?;
        let identity = RotatingIdentity::create(path, &request, &chain)?;
        let tls = Arc::new(authorities.trust().client_config(Some(&identity))?);
        let controller_tls = Arc::new(authorities.trust().controller_config(Some(&identity))?);
        Ok(Self { machine, authorities, under, identity, tls, controller_tls })
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

    /// Renews the certificate if that is due, or if the authorities changed.
    pub fn renew_if_due(&self) -> Result<(), pki::Error> {
        let now = self.authorities.pem();
        if *self.under.lock() == now && !self.identity.needs_renewal() {
            return Ok(());
        }
        let request = KeyRequest::new()?;
        let chain = sign(&self.authorities, &request, &self.machine)?;
        self.identity.renew(&request, &chain)?;
        *self.under.lock() = now;
        Ok(())
    }
}

/// A new certificate with those that lead from it to the authorities.
fn sign(
    authorities: &Authorities,
    request: &KeyRequest,
    machine: &Machine,
) -> Result<String, pki::Error> {
    let signed = authorities.signer().sign_machine(request.csr_pem(), machine)?;
    Ok(format!("{}{}", signed.certificate_pem, authorities.chain_pem()))
}
