//! Manifests and charts that are at an address.

use std::time::Duration;

use selvage_api::edgeproto::App;

use super::manifest::MAX_BYTES;
use crate::{Error, Result};

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 5;

/// The manifest of an app, fetched where it is an address.
pub(super) async fn manifest(app: &App) -> Result<String> {
    let given = &app.deployment_manifest;
    if given.trim().is_empty() {
        return Err(Error::invalid("deployment_manifest", "may not be empty"));
    }
    if !given.starts_with("http://") && !given.starts_with("https://") {
        return Ok(given.clone());
    }
    let fetched = bytes(given.trim(), MAX_BYTES).await;
    let text = |bytes| String::from_utf8(bytes).map_err(|_| "it is not text".to_owned());
    let wrong = |reason| Error::invalid("deployment_manifest", format!("{given}: {reason}"));
    fetched.and_then(text).map_err(wrong)
}

/// Returns what is at an address, if it is no more than that.
pub(super) async fn bytes(address: &str, limit: usize) -> Result<Vec<u8>, String> {
    let fetched = tokio::time::timeout(PATIENCE, fetch(address, limit)).await;
    fetched.unwrap_or_else(|_| Err("no answer in time".into()))
}

async fn fetch(address: &str, limit: usize) -> Result<Vec<u8>, String> {
    let told = |error: reqwest::Error| error.without_url().to_string();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .connect_timeout(PATIENCE / 3)
        .build()
        .map_err(told)?;
    let mut answer = client.get(address).send().await.map_err(told)?;
    if !answer.status().is_success() {
        return Err(format!("bad response {}", answer.status().as_u16()));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(told)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > limit {
            return Err(format!("more than {limit} bytes"));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers once.
    pub(in super::super) async fn server(answer: Vec<u8>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(&answer).await;
        });
        format!("http://{address}/app.yaml")
    }

    fn app(manifest: &str) -> App {
        App { deployment_manifest: manifest.into(), ..App::default() }
    }

    #[tokio::test]
    async fn an_address_is_fetched_within_limits() {
        assert_eq!(manifest(&app("kind: Pod")).await.unwrap(), "kind: Pod");
        let good = b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nkind: Pod".to_vec();
        assert_eq!(manifest(&app(&server(good).await)).await.unwrap(), "kind: Pod");
        let mut long = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
        long.resize(MAX_BYTES + 100, b'#');
        let missing = b"HTTP/1.0 404 Not Found\r\n\r\n".to_vec();
        for (answer, says) in [(missing, "bad response 404"), (long, "more than 1048576 bytes")] {
            let error = manifest(&app(&server(answer).await)).await.unwrap_err().to_string();
            assert!(error.starts_with("deployment_manifest: http://"), "{error}");
            assert!(error.ends_with(says), "{error}");
        }
        let error = manifest(&app(" ")).await.unwrap_err().to_string();
        assert_eq!(error, "deployment_manifest: may not be empty");
    }
}
