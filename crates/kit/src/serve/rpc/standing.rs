//! Callers of open streams, looked at again from time to time: a session ends,
//! a role is taken away, a machine is blocked.

use std::sync::Arc;

use futures::{
    FutureExt,
    future::{BoxFuture, Shared as SharedFuture},
};
use http::{HeaderMap, Request, request};
use selvage_api::Code as ApiCode;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::{Attention, IdentifyFor, Shared, Trust, refused};
use crate::{
    access::{Denied, Effect, Rule},
    identity::{Connection, Grant, Identity},
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
    /// Grants of the caller when it was let in. What it was let in to may have
    /// taken any of them, and what is left may be of no use there.
    held: Vec<Grant>,
    attention: Attention,
}

/// Listener that let a call in, for [`Standing::of_call`].
#[derive(Clone)]
struct LetInBy(Arc<Shared>, &'static str);

impl Standing {
    /// Caller of a method that streams, who was let in.
    pub(super) fn of<T>(shared: &Arc<Shared>, rule: &Rule, request: &Request<T>) -> Option<Self> {
        let lasts = rule.method.client_streaming || rule.method.server_streaming;
        let checked = lasts && can_end(shared, rule);
        let connection = request.extensions().get::<Connection>().filter(|_| checked)?;
        Some(Self {
            shared: Arc::clone(shared),
            path: Some(rule.path.clone()),
            headers: request.headers().clone(),
            connection: connection.clone(),
            held: request.extensions().get::<Identity>()?.grants.clone(),
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
        Some(Self {
            shared,
            path: Some(path.to_owned()),
            headers: request.metadata().clone().into_headers(),
            connection,
            held: request.extensions().get::<Identity>()?.grants.clone(),
            attention: Attention::default(),
        })
    }

    /// Caller who opened a web socket.
    pub(super) fn of_socket(
        shared: &Arc<Shared>,
        headers: &HeaderMap,
        connection: &Connection,
        caller: &Identity,
    ) -> Self {
        let (headers, connection) = (headers.clone(), connection.clone());
        let (shared, attention) = (Arc::clone(shared), Attention::default());
        let held = caller.grants.clone();
        Self { shared, path: None, headers, connection, held, attention }
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
        let rule = match &self.path {
            None => None,
            Some(path) => match self.shared.access.rule(path) {
                None => return Ok(()),
                rule => rule,
            },
        };
        let caller = self.caller(rule.map_or(Effect::Write, |rule| rule.effect)).await?;
        let path = self.path.as_deref().unwrap_or_default();
        let refuse = |denied: Denied| refused(path, &caller, &self.connection.peer, &denied);
        let Some(rule) = rule else { return self.still_held(&caller).map_err(refuse) };
        let behalf = self.shared.on_behalf(&caller, &self.headers, rule, true).await;
        let behalf = behalf.map_err(refuse)?;
        let for_whom = behalf.as_ref().unwrap_or(&caller);
        rule.decide_early(for_whom).and_then(|()| self.still_held(for_whom)).map_err(refuse)
    }

    fn still_held(&self, caller: &Identity) -> Result<(), Denied> {
        if caller.holds_all(&self.held) {
            return Ok(());
        }
        let message = "not authorized: a role that this began with was taken away: begin again";
        Err(Denied { code: ApiCode::PermissionDenied, message: message.into() })
    }
}

/// Returns whether the right to a method is looked at and can be lost.
fn can_end(shared: &Shared, rule: &Rule) -> bool {
    matches!(shared.trust, Trust::Credentials(_)) && !rule.open_to_anyone()
}
