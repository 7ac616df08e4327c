//! Callers of open streams, looked at again from time to time: a session ends,
//! a role is taken away, a machine is blocked.

use std::sync::Arc;

use http::{HeaderMap, request};
use tonic::{Code, Status};

use super::{Shared, Trust, refused, relay};
use crate::{
    access::{Denied, Effect, Rule},
    identity::Connection,
};

/// What the caller of a stream came with. A stream may last for days; the right
/// to it may not.
pub(in crate::serve) struct Standing {
    shared: Arc<Shared>,
    /// The method; none of a web socket, whose page asks for a person or a
    /// machine and nothing else.
    path: Option<String>,
    headers: HeaderMap,
    connection: Connection,
}

impl Standing {
    pub(super) fn of(shared: &Arc<Shared>, rule: &Rule, parts: &request::Parts) -> Option<Self> {
        let lasts = rule.method.client_streaming || rule.method.server_streaming;
        let checked = matches!(shared.trust, Trust::Credentials(_)) && !rule.open_to_anyone();
        let connection = parts.extensions.get::<Connection>().filter(|_| lasts && checked)?;
        Some(Self {
            shared: Arc::clone(shared),
            path: Some(rule.path.clone()),
            headers: parts.headers.clone(),
            connection: connection.clone(),
        })
    }

    /// Of a caller who opened a web socket.
    pub(super) fn of_socket(
        shared: &Arc<Shared>,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Self {
        let (headers, connection) = (headers.clone(), connection.clone());
        Self { shared: Arc::clone(shared), path: None, headers, connection }
    }

    /// Ends when the caller would not be let in any more, with why.
    pub(in crate::serve) async fn lost(self) -> Status {
        loop {
            tokio::time::sleep(self.shared.limits.recheck).await;
            // That nobody can be asked at the moment is not the caller's fault.
            if let Err(status) = self.look().await
                && matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
            {
                return status;
            }
        }
    }

    async fn look(&self) -> Result<(), Status> {
        let Some(path) = &self.path else {
            let found = self.shared.identify(&self.headers, &self.connection, Effect::Write, false);
            return found.await.map(drop);
        };
        let Some(rule) = self.shared.access.rule(path) else { return Ok(()) };
        let caller =
            self.shared.identify(&self.headers, &self.connection, rule.effect, false).await?;
        let refuse = |denied: Denied| refused(&rule.path, &caller, &self.connection.peer, &denied);
        let behalf = relay::on_behalf(&caller, &self.headers, rule).map_err(refuse)?;
        rule.decide_early(behalf.as_ref().unwrap_or(&caller)).map_err(refuse)
    }
}
