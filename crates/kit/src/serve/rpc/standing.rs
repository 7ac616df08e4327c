//! Callers of open streams, looked at again from time to time: a session ends,
//! a role is taken away, a machine is blocked.

use std::sync::Arc;

use futures::{
    FutureExt,
    future::{BoxFuture, Shared as SharedFuture},
};
use http::{HeaderMap, request};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::{Attention, IdentifyFor, Shared, Trust, refused};
use crate::{
    access::{Denied, Effect, Rule},
    identity::{Connection, Identity},
    serve::internal_error,
};

/// End of the right to a stream, with why. Clones end together.
pub(in crate::serve) type Revoked = SharedFuture<BoxFuture<'static, Status>>;

/// Credentials with which a caller was let in. A stream may last for days; the
/// right to it may not.
pub struct Standing {
    shared: Arc<Shared>,
    /// The method; none of a web socket, whose page asks for a person or a
    /// machine and nothing else.
    path: Option<String>,
    headers: HeaderMap,
    connection: Connection,
    attention: Attention,
}

/// Listener that let a call in, for [`Standing::of_call`].
#[derive(Clone)]
struct LetInBy(Arc<Shared>, &'static str);

impl Standing {
    /// Caller of a method that streams.
    pub(super) fn of(shared: &Arc<Shared>, rule: &Rule, parts: &request::Parts) -> Option<Self> {
        let lasts = rule.method.client_streaming || rule.method.server_streaming;
        let checked = lasts && can_end(shared, rule);
        let connection = parts.extensions.get::<Connection>().filter(|_| checked)?;
        Some(Self {
            shared: Arc::clone(shared),
            path: Some(rule.path.clone()),
            headers: parts.headers.clone(),
            connection: connection.clone(),
            attention: Attention::default(),
        })
    }

    /// Lets the handler of a method with one reply ask for [`Self::of_call`].
    pub(super) fn offer(shared: &Arc<Shared>, rule: &Rule, parts: &mut request::Parts) {
        let streams = rule.method.client_streaming || rule.method.server_streaming;
        if !streams && can_end(shared, rule) {
            parts.extensions.insert(LetInBy(Arc::clone(shared), &rule.method.path));
        }
    }

    /// Caller of a method with one reply that begins something which outlives
    /// the reply. None where the right to it does not end.
    pub fn of_call<T>(request: &tonic::Request<T>) -> Option<Self> {
        let LetInBy(shared, path) = request.extensions().get::<LetInBy>()?.clone();
        let connection = request.extensions().get::<Connection>()?.clone();
        let headers = request.metadata().clone().into_headers();
        let attention = Attention::default();
        Some(Self { shared, path: Some(path.to_owned()), headers, connection, attention })
    }

    /// Caller who opened a web socket.
    pub(super) fn of_socket(
        shared: &Arc<Shared>,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Self {
        let (headers, connection) = (headers.clone(), connection.clone());
        let (shared, attention) = (Arc::clone(shared), Attention::default());
        Self { shared, path: None, headers, connection, attention }
    }

    /// Note to be made of all that the caller says.
    pub(in crate::serve) fn attention(&self) -> Attention {
        self.attention.clone()
    }

    /// Ends when the caller would not be let in any more, with why.
    pub async fn lost(self) -> Status {
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

    /// The same in a task of its own: a caller who does not read the reply is
    /// looked at all the same.
    pub(super) fn watched(self) -> Revoked {
        let task = AbortOnDropHandle::new(tokio::spawn(self.lost()));
        async move { task.await.unwrap_or_else(|_| internal_error()) }.boxed().shared()
    }

    /// The caller as of now. Only what the caller said since the last look is a
    /// use: a stream may stay open long after the person has gone.
    async fn caller(&self, effect: Effect) -> Result<Identity, Status> {
        let asked = IdentifyFor { effect, open_to_anyone: false, attended: self.attention.take() };
        self.shared.identify_as(&self.headers, &self.connection, asked).await
    }

    async fn look(&self) -> Result<(), Status> {
        let Some(path) = &self.path else { return self.caller(Effect::Write).await.map(drop) };
        let Some(rule) = self.shared.access.rule(path) else { return Ok(()) };
        let caller = self.caller(rule.effect).await?;
        let refuse = |denied: Denied| refused(&rule.path, &caller, &self.connection.peer, &denied);
        let behalf = self.shared.on_behalf(&caller, &self.headers, rule, true).await;
        let behalf = behalf.map_err(refuse)?;
        rule.decide_early(behalf.as_ref().unwrap_or(&caller)).map_err(refuse)
    }
}

/// Returns whether the right to a method is looked at and can be lost.
fn can_end(shared: &Shared, rule: &Rule) -> bool {
    matches!(shared.trust, Trust::Credentials(_)) && !rule.open_to_anyone()
}
