//! Downloads, the only I/O of `derive`.

use futures::future;
use selvage_fetch::{Fetcher, Policy, StatusCode, read};

use super::{Failure, Fetched, Request};
use crate::settings::FetchPolicy;

/// Tries all, outside of any transaction. Failures are in the outcomes.
pub(crate) async fn fetch_all(requests: Vec<Request>, policy: &FetchPolicy) -> Vec<Fetched> {
    let allowed_hosts = policy.allowed_hosts.clone();
    let fetcher = Fetcher::new(Policy { allowed_hosts, ..Policy::default() });
    future::join_all(requests.into_iter().map(|request| async {
        let fetched = fetch(&fetcher, &request, policy.max_bytes);
        let outcome = match tokio::time::timeout(policy.timeout, fetched).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Unreachable("no answer in time".to_owned())),
        };
        Fetched { request, outcome }
    }))
    .await
}

async fn fetch(fetcher: &Fetcher, request: &Request, limit: usize) -> Result<String, Failure> {
    let asked = match &request.body {
        Some(body) => selvage_fetch::Request::post_json(&request.url, body),
        None => selvage_fetch::Request::get(&request.url),
    };
    let response = fetcher.send(asked).await?;
    if response.status() != StatusCode::OK {
        return Err(Failure::Status(response.status().as_u16()));
    }
    let body = read(response, limit).await?;
    String::from_utf8(body).map_err(|_| Failure::Unusable("the answer is not text".to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::{super::Purpose, *};

    /// Answers one connection after the other with what `answer` makes of the
    /// request, and returns the port.
    async fn serve(answer: impl Fn(&str, u16) -> String + Send + 'static) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !complete(&request) {
                    let count = socket.read(&mut buffer).await.unwrap_or(0);
                    if count == 0 {
                        break;
                    }
                    request.extend_from_slice(&buffer[..count]);
                }
                let text = String::from_utf8_lossy(&request).into_owned();
                let _ = socket.write_all(answer(&text, port).as_bytes()).await;
                let _ = socket.shutdown().await;
            }
        });
        port
    }

    fn complete(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        length.is_none_or(|length| body.len() >= length.trim().parse().unwrap())
    }

    fn answer(status: &str, headers: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            body.len()
        )
    }

    fn policy(ports: &[u16]) -> FetchPolicy {
        FetchPolicy {
            allowed_hosts: ports.iter().map(|port| format!("127.0.0.1:{port}")).collect(),
            max_bytes: 100,
            ..FetchPolicy::default()
        }
    }

    async fn get(url: String, body: Option<&str>, policy: &FetchPolicy) -> Result<String, Failure> {
        let body = body.map(str::to_owned);
        let request = Request { purpose: Purpose::Manifest, url, body };
        let fetched = fetch_all(vec![request.clone()], policy).await.remove(0);
        assert_eq!(fetched.request, request);
        fetched.outcome
    }

    #[tokio::test]
    async fn a_listed_host_is_fetched_from() {
        let port = serve(|request, _| match request.split(' ').nth(1) {
            Some("/good") => answer("200 OK", "", "kind: x"),
            Some("/long") => answer("200 OK", "", &"x".repeat(101)),
            Some("/binary") => "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nx".to_owned(),
            _ => answer("404 Not Found", "", "no"),
        })
        .await;
        let policy = policy(&[port]);
        let url = |path: &str| format!("http://127.0.0.1:{port}/{path}");
        assert_eq!(get(url("good"), None, &policy).await.unwrap(), "kind: x");
        assert_eq!(get(url("binary"), None, &policy).await.unwrap(), "x");
        assert_eq!(get(url("none"), None, &policy).await, Err(Failure::Status(404)));
        assert!(matches!(get(url("long"), None, &policy).await, Err(Failure::Unusable(_))));
    }

    #[tokio::test]
    async fn a_generator_gets_its_json() {
        let port = serve(|request, _| {
            let (head, body) = request.split_once("\r\n\r\n").unwrap_or_default();
            let json = head.to_ascii_lowercase().contains("content-type: application/json");
            answer("200 OK", "", &format!("{} {json} {body}", &head[..4]))
        })
        .await;
        let made =
            get(format!("http://127.0.0.1:{port}/"), Some("{\"a\":1}"), &policy(&[port])).await;
        assert_eq!(made.unwrap(), "POST true {\"a\":1}");
    }

    #[tokio::test]
    async fn every_redirect_is_judged_again() {
        let port = serve(|request, port| {
            let to = |target: String| answer("302 Found", &format!("location: {target}\r\n"), "");
            match request.split(' ').nth(1) {
                Some("/relative") => to("/end".into()),
                Some("/end") => answer("200 OK", "", "end"),
                Some("/loop") => to("/loop".into()),
                Some("/other-port") => to(format!("http://127.0.0.1:{}/", port ^ 1)),
                Some("/metadata") => to("http://169.254.169.254/latest".into()),
                _ => to("file:///etc/passwd".into()),
            }
        })
        .await;
        let policy = policy(&[port]);
        let url = |path: &str| format!("http://127.0.0.1:{port}/{path}");
        assert_eq!(get(url("relative"), None, &policy).await.unwrap(), "end");
        assert_eq!(get(url("relative"), Some("{}"), &policy).await, Err(Failure::Status(302)));
        assert!(matches!(get(url("loop"), None, &policy).await, Err(Failure::Unusable(_))));
        for path in ["other-port", "metadata", "file"] {
            assert!(
                matches!(get(url(path), None, &policy).await, Err(Failure::Denied(_))),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_not_public_is_not_even_connected_to() {
        let port = serve(|_, _| answer("200 OK", "", "reached")).await;
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let denied = get(format!("http://{host}:{port}/"), None, &FetchPolicy::default()).await;
            assert!(matches!(denied, Err(Failure::Denied(_))), "{host}: {denied:?}");
        }
    }

    #[tokio::test]
    async fn silence_ends_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let policy = FetchPolicy { timeout: Duration::from_millis(50), ..policy(&[port]) };
        let silent = get(format!("http://127.0.0.1:{port}/"), None, &policy).await;
        assert!(matches!(silent, Err(Failure::Unreachable(_))));
    }
}
