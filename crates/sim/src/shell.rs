//! Commands that are not run: the caller gets its own words back.

use std::sync::Arc;

use selvage_api::edgeproto::ExecRequest;
use selvage_shell::{Conversation, Frame, peer};

/// Answers a request, and whoever comes by what it says.
pub(crate) async fn answer(
    request: ExecRequest,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> ExecRequest {
    let text = output_of(&request);
    let relay = request.relay.split_once('/').filter(|_| request.offer.is_empty());
    if let Some((address, token)) = relay {
        let (address, token) = (address.to_owned(), token.to_owned());
        tokio::spawn(async move {
            let Ok(channel) = selvage_shell::dial(&address, tls).await else { return };
            if let Ok(conversation) = selvage_shell::attach(channel, token, |_| {}).await {
                tell(conversation, text).await;
            }
        });
        return ExecRequest { answer: "relay".into(), ..request };
    }
    match peer::answer(&request.offer, peer::Options::default()).await {
        Ok((answer, conversation)) => {
            tokio::spawn(tell(conversation, text));
            ExecRequest { answer, ..request }
        }
        Err(_) => ExecRequest { answer: format!("sim-answer: {}", request.command), ..request },
    }
}

async fn tell(mut conversation: Conversation, text: String) {
    if conversation.opened().await {
        // Fails where the caller has gone.
        let _ = conversation.outgoing.send(Frame::Data(text.into())).await;
        let exit = Frame::Exit { code: 0, reason: String::new() };
        let _ = conversation.outgoing.send(exit).await;
    }
    conversation.close().await;
}

/// Returns the output of the command, if it is `echo`; else the command itself.
fn output_of(request: &ExecRequest) -> String {
    let command = match request.words.as_slice() {
        [] => request.command.clone(),
        words => words.join(" "),
    };
    format!("{}\r\n", command.strip_prefix("echo ").unwrap_or(&command))
}
