//! Fetches from a provider: no redirects, a short timeout, little memory.

use std::{path::Path, time::Duration};

use reqwest::{Certificate, Client, RequestBuilder, redirect};
use serde::de::DeserializeOwned;

use super::{Reason, Refusal};
use crate::error::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_BODY: usize = 512 * 1024;

pub(crate) fn client(key: &str, ca_file: Option<&Path>) -> Result<Client> {
    let mut builder = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .referer(false)
        .user_agent("selvage");
    if let Some(path) = ca_file {
        let failed = |error: &dyn std::fmt::Display| {
            Error::settings(format!("{key}.ca_file"), format!("{}: {error}", path.display()))
        };
        let pem = std::fs::read(path).map_err(|error| failed(&error))?;
        let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))?;
        if certificates.is_empty() {
            return Err(failed(&"holds no certificate"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|error| Error::settings(key, error.to_string()))
}

/// Sends a request and reads the JSON that comes back.
pub(crate) async fn json<T: DeserializeOwned>(
    what: &str,
    request: RequestBuilder,
) -> Result<T, Refusal> {
    let failed = |detail: String| Refusal::new(Reason::ProviderFailed, format!("{what}: {detail}"));
    let mut response =
        request.send().await.map_err(|error| failed(selvage_api::chain(&error.without_url())))?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| failed(selvage_api::chain(&error.without_url())))?
    {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(failed(format!("the answer is larger than {MAX_BODY} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    if !status.is_success() {
        return Err(failed(format!("the provider answered {status}")));
    }
    // Serde's text may quote what it could not read, which may be a secret.
    serde_json::from_slice(&body).map_err(|error| {
        failed(format!("the answer is not as it should be, at line {}", error.line()))
    })
}
