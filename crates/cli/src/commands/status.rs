//! Name of the caller, and of the server.

use selvage_api::selvage::{
    identity::{WhoAmIRequest, identity_service_client::IdentityServiceClient},
    system::{GetStatusRequest, system_service_client::SystemServiceClient},
};

use crate::{Error, output, session::Session};

pub(crate) async fn whoami(session: &mut Session<'_>) -> Result<(), Error> {
    let answer = session
        .client()
        .await?
        .call(WhoAmIRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).who_am_i(request).await
        })
        .await?;
    let message = output::dynamic("selvage.identity.WhoAmIResponse", &answer)?;
    session.printer().message(&message)
}

pub(crate) async fn status(session: &mut Session<'_>) -> Result<(), Error> {
    let answer = session
        .client()
        .await?
        .call(GetStatusRequest {}, |channel, request| async move {
            SystemServiceClient::new(channel).get_status(request).await
        })
        .await?;
    let message = output::dynamic("selvage.system.GetStatusResponse", &answer)?;
    session.printer().message(&message)
}
