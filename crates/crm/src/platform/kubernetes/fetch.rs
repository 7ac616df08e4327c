//! Manifests and charts that are at an address.

use std::time::Duration;

use selvage_api::edgeproto::App;
use selvage_fetch::{Failure, Fetcher, Request, StatusCode, read};

use super::manifest::MAX_BYTES;
use crate::{Error, Result};

const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The manifest of an app, fetched where it is an address.
pub(super) async fn manifest(fetcher: &Fetcher, app: &App) -> Result<String> {
    let given = &app.deployment_manifest;
    if given.trim().is_empty() {
        return Err(Error::invalid("deployment_manifest", "may not be empty"));
    }
    if !given.starts_with("http://") && !given.starts_with("https://") {
        return Ok(given.clone());
    }
    let fetched = bytes(fetcher, given.trim(), MAX_BYTES).await;
    let text = |bytes| String::from_utf8(bytes).map_err(|_| "it is not text".to_owned());
    let wrong = |reason| Error::invalid("deployment_manifest", format!("{given}: {reason}"));
    fetched.and_then(text).map_err(wrong)
}

/// Returns what is at an address, if it is no more than that.
pub(super) async fn bytes(
    fetcher: &Fetcher,
    address: &str,
    limit: usize,
) -> Result<Vec<u8>, String> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(fetcher, address, limit)).await;
    let fetched = fetched.unwrap_or_else(|_| Err(Failure::Unreachable("no answer in time".into())));
    fetched.map_err(|failure| failure.to_string())
}

async fn fetch(fetcher: &Fetcher, address: &str, limit: usize) -> Result<Vec<u8>, Failure> {
    let response = fetcher.send(Request::get(address)).await?;
    if response.status() != StatusCode::OK {
        return Err(Failure::Status(response.status().as_u16()));
    }
    read(response, limit).await
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use selvage_fetch::Policy;

    use super::*;

    /// May ask servers of this machine.
    pub(in super::super) fn local() -> Fetcher {
        let private_hosts = vec!["127.0.0.1:*".to_owned()];
        Fetcher::new(Policy { private_hosts, ..Policy::default() })
    }

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
        assert_eq!(manifest(&local(), &app("kind: Pod")).await.unwrap(), "kind: Pod");
        let good = b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nkind: Pod".to_vec();
        assert_eq!(manifest(&local(), &app(&server(good).await)).await.unwrap(), "kind: Pod");
        let mut long = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
        long.resize(MAX_BYTES + 100, b'#');
        let missing = b"HTTP/1.0 404 Not Found\r\n\r\n".to_vec();
        for (answer, says) in [(missing, "bad response 404"), (long, "larger than 1048576 bytes")] {
            let error =
                manifest(&local(), &app(&server(answer).await)).await.unwrap_err().to_string();
            assert!(error.starts_with("deployment_manifest: http://"), "{error}");
            assert!(error.ends_with(says), "{error}");
        }
        let inside = server(b"HTTP/1.0 200 OK\r\n\r\nkind: Pod".to_vec()).await;
        let outward = Fetcher::new(Policy::default());
        let error = manifest(&outward, &app(&inside)).await.unwrap_err().to_string();
        assert!(error.ends_with("127.0.0.1 has an address that is not public"), "{error}");
        let error = manifest(&local(), &app(" ")).await.unwrap_err().to_string();
        assert_eq!(error, "deployment_manifest: may not be empty");
    }
}
