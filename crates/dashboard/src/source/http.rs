//! HTTP client that sources share: addresses, certificates, and
//! answers of a bearable size.

use std::{path::Path, time::Duration};

use reqwest::{Certificate, Client, Response, Url, header, redirect};

use super::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// The options cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct BadOptions {
    pub field: &'static str,
    pub reason: String,
}

/// Reads the address of a server.
pub(super) fn address(field: &'static str, text: &str) -> Result<Url, BadOptions> {
    let bad = |reason: String| BadOptions { field, reason };
    let url: Url = text.parse().map_err(|_| bad(format!("{text:?} is no URL")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(bad(format!("{text:?} is no address of a server")));
    }
    Ok(url)
}

/// A client that follows nobody elsewhere.
pub(super) fn client(ca: Option<&Path>, skip_tls_verify: bool) -> Result<Client, BadOptions> {
    let bad = |reason: String| BadOptions { field: "ca", reason };
    let mut builder = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .user_agent("selvage")
        .tls_danger_accept_invalid_certs(skip_tls_verify);
    if let Some(path) = ca {
        let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        let known = Certificate::from_pem_bundle(&pem).map_err(|error| bad(error.to_string()))?;
        builder = builder.tls_certs_merge(known);
    }
    builder.build().map_err(|error| bad(error.to_string()))
}

/// The body of an answer that is JSON and not too large.
pub(super) async fn json(
    mut response: Response,
    who: &str,
    largest: usize,
) -> Result<Vec<u8>, Failure> {
    let media = response.headers().get(header::CONTENT_TYPE);
    let media = media.and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media.split(';').next().is_some_and(|kind| kind.trim().ends_with("json")) {
        return Err(Failure::Failed(format!("{who} answered with a page and no data")));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + chunk.len() > largest {
            let text = format!("the answer is larger than {} MiB", largest >> 20);
            return Err(Failure::Failed(text));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Failure of a request, in the words of the innermost cause.
pub(super) fn failed(error: &reqwest::Error) -> Failure {
    if error.is_timeout() {
        return Failure::Failed("no answer in time".into());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Failure::Failed(cause.to_string())
}
