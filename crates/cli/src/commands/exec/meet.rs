//! The way to a command: directly if that works at once, else through the
//! controller.

use std::time::Duration;

use selvage_api::{
    Code,
    edgeproto::{ExecRequest, exec_api_client::ExecApiClient},
};
use selvage_shell::{
    Conversation,
    peer::{Offer, Options},
};

use super::Via;
use crate::{Error, client::Client};

/// Timeout of the direct path before the other is tried.
const DIRECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Timeout of the direct path where there is no other.
const DIRECT_ONLY_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) async fn meet(
    client: &Client,
    request: ExecRequest,
    via: Via,
) -> Result<Conversation, Error> {
    if via != Via::Relay {
        let timeout = if via == Via::Auto { DIRECT_TIMEOUT } else { DIRECT_ONLY_TIMEOUT };
        match directly(client, request.clone(), timeout).await {
            Ok(Some(conversation)) => return Ok(conversation),
            Ok(None) if via == Via::Direct => return Err(unreachable()),
            Err(error) if via == Via::Direct || !is_path_failure(&error) => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    relayed(client, request).await
}

/// Returns whether it is only this path that does not work.
fn is_path_failure(error: &Error) -> bool {
    matches!(error, Error::Unexpected(_))
}

fn unreachable() -> Error {
    Error::Status {
        code: Code::Unavailable,
        message: "the cloudlet cannot be reached directly from here".into(),
        hints: vec!["`--via relay` goes through the controller".into()],
    }
}

/// None where the two do not find each other.
async fn directly(
    client: &Client,
    request: ExecRequest,
    timeout: Duration,
) -> Result<Option<Conversation>, Error> {
    let options = Options { arrival_timeout: timeout, ..Options::default() };
    let offer = Offer::make(options).await.map_err(path_error)?;
    let reply = asked(client, ExecRequest { offer: offer.text().to_owned(), ..request }).await?;
    let mut conversation = offer.accept(&reply.answer).map_err(path_error)?;
    if conversation.opened().await {
        return Ok(Some(conversation));
    }
    conversation.close().await;
    Ok(None)
}

fn path_error(error: selvage_shell::Error) -> Error {
    Error::Unexpected(error.to_string())
}

async fn relayed(client: &Client, request: ExecRequest) -> Result<Conversation, Error> {
    let reply = asked(client, request).await?;
    let Some((_, token)) = reply.relay.rsplit_once('/') else {
        return Err(Error::Unexpected("the controller offers no relay".into()));
    };
    // The meeting is at the controller that was asked: by this connection.
    let (credentials, ..) = client.request((), None)?.into_parts();
    let attached = selvage_shell::attach(client.channel(), token.to_owned(), |request| {
        *request.metadata_mut() = credentials;
    });
    attached.await.map_err(|error| match error {
        selvage_shell::Error::Relay(status) => client.refused(&status),
        error => path_error(error),
    })
}

async fn asked(client: &Client, request: ExecRequest) -> Result<ExecRequest, Error> {
    let reply: ExecRequest = client
        .call(request, |channel, request| async move {
            ExecApiClient::new(channel).run_command(request).await
        })
        .await?;
    match reply.err.as_str() {
        "" => Ok(reply),
        err => Err(Error::Status {
            code: Code::FailedPrecondition,
            message: err.to_owned(),
            hints: Vec::new(),
        }),
    }
}
