//! Membership of machines' agents: tokens by which they join the controller, and
//! their removal.

use selvage_api::selvage::identity::{
    CreateJoinTokenRequest, RemoveMachineRequest, identity_service_client::IdentityServiceClient,
};
use selvage_auth::Auth;
use selvage_kit::identity::{Identity, Kind, Secret};

use super::{Error, joined::NODE};

/// Lets agents in and removes them, in the name of this part.
pub(super) struct Enrolment(Auth);

/// A call to `selvage.identity` in the name of this part.
fn as_kaas<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.extensions_mut().insert(Identity::all_powerful("kaas", Kind::Local));
    request
}

impl Enrolment {
    pub(super) fn new(auth: Auth) -> Self {
        Self(auth)
    }

    /// Makes a token by which the agent of that name joins, once, and nobody
    /// else.
    pub(super) async fn join_token(&self, agent: &str, seconds: u32) -> Result<Secret, Error> {
        let asked = CreateJoinTokenRequest {
            machine: format!("{NODE}{agent}"),
            ttl_seconds: seconds,
            ..CreateJoinTokenRequest::default()
        };
        let mut identities = IdentityServiceClient::new(self.0.identity_service());
        let made = identities.create_join_token(as_kaas(asked)).await;
        let made = made.map_err(|status| Error::Unavailable(status.message().to_owned()))?;
        Ok(Secret::new(made.into_inner().token))
    }

    /// Removes the agent of that name from the machines that joined.
    pub(super) async fn remove(&self, agent: &str) -> Result<(), Error> {
        let machine = format!("{NODE}{agent}");
        if !self.0.machines().iter().any(|known| known.machine == machine) {
            return Ok(());
        }
        let mut identities = IdentityServiceClient::new(self.0.identity_service());
        match identities.remove_machine(as_kaas(RemoveMachineRequest { machine })).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(Error::Unavailable(status.message().to_owned())),
        }
    }
}
