//! The caller of a method, as the listener left it in the request's extensions.

use std::sync::Arc;

use http::Extensions;
use selvage_kit::identity::{Connection, Identity, Kind, Machine, Peer, Role, ShownCertificate};

use crate::error::{Error, Result};

/// The caller of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) peer: Option<Peer>,
    pub(crate) machine: Option<Machine>,
    /// The certificate of that machine.
    pub(crate) certificate: Option<Arc<ShownCertificate>>,
}

impl Caller {
    /// Whoever the listener did not vouch for is nobody.
    pub(crate) fn of_extensions(extensions: &Extensions) -> Self {
        let connection = extensions.get::<Connection>();
        Self {
            identity: extensions.get().cloned().unwrap_or_else(Identity::anonymous),
            peer: connection.map(|connection| connection.peer.clone()),
            machine: connection.and_then(|connection| connection.machine.clone()),
            certificate: connection.and_then(|connection| connection.certificate.clone()),
        }
    }

    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Self {
        Self::of_extensions(request.extensions())
    }

    pub(crate) fn is_administrator(&self) -> bool {
        self.identity.has_role(Role::Admin)
    }

    pub(crate) fn require_administrator(&self, what: &str) -> Result<()> {
        if self.is_administrator() {
            return Ok(());
        }
        self.require_known()?;
        Err(Error::Denied(format!("only an administrator may {what}")))
    }

    pub(crate) fn require_known(&self) -> Result<()> {
        match self.identity.kind {
            Kind::Anonymous => Err(Error::NotLoggedIn),
            _ => Ok(()),
        }
    }

    /// The caller's name, if it is a person with a session.
    pub(crate) fn username(&self) -> Option<&str> {
        matches!(self.identity.kind, Kind::User { .. }).then_some(self.identity.name.as_str())
    }

    /// The id of the session that this call was made with.
    pub(crate) fn session(&self) -> Option<&str> {
        match &self.identity.kind {
            Kind::User { session, .. } => Some(session),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self.identity.kind {
            Kind::Anonymous => "anonymous",
            Kind::User { .. } => "user",
            Kind::Delegate(ref limits) => limits.form.name(),
            Kind::Machine(_) => "machine",
            Kind::Local => "local",
            Kind::Insecure => "insecure",
        }
    }
}
