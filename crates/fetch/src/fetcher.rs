//! Requests with pinned addresses.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use reqwest::{Certificate, Client, header, redirect};
use url::Url;
use zeroize::Zeroizing;

use crate::{Failure, Policy, policy::literal};

pub use reqwest::Response;

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a byte after which a transfer counts as stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections to so many hosts are kept for the next request.
const MAX_CLIENTS: usize = 16;

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Request {
    url: String,
    headers: HeaderMap,
    body: Option<String>,
}

impl Request {
    pub fn get(url: impl Into<String>) -> Self {
        Self { url: url.into(), headers: HeaderMap::new(), body: None }
    }

    /// Posts JSON. Redirects of such a request are not followed: where a
    /// service moves to is for its users to write down.
    pub fn post_json(url: impl Into<String>, body: impl Into<String>) -> Self {
        let json = HeaderValue::from_static("application/json");
        Self { body: Some(body.into()), ..Self::get(url) }.header(header::CONTENT_TYPE, json)
    }

    /// Asks for a URL that may have a user and password in it, which go with
    /// the request and not in its address.
    pub fn get_with_login(url: &Url) -> Self {
        let mut bare = url.clone();
        // Fails for addresses without a host, which the policy refuses.
        let _ = bare.set_username("").and_then(|()| bare.set_password(None));
        let request = Self::get(bare.as_str());
        let Some(password) = url.password() else { return request };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pair = Zeroizing::new(format!("{}:{}", decoded(url.username()), decoded(password)));
        let value = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
        match HeaderValue::from_str(&value) {
            Ok(mut value) => {
                value.set_sensitive(true);
                request.header(header::AUTHORIZATION, value)
            }
            Err(_) => request,
        }
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }
}

/// Host and port, and the addresses that were judged.
type Target = (String, Vec<SocketAddr>);

/// Sends requests within a policy.
#[derive(Clone)]
pub struct Fetcher {
    policy: Arc<Policy>,
    clients: Arc<Mutex<HashMap<Target, Client>>>,
    /// CAs that are believed besides those of this host.
    ca: Vec<Certificate>,
}

impl Fetcher {
    pub fn new(policy: Policy) -> Self {
        Self { policy: Arc::new(policy), clients: Arc::default(), ca: Vec::new() }
    }

    /// The same, believing the CAs of these certificates, PEM, too.
    pub fn with_ca(self, pem: &[u8]) -> Result<Self, Failure> {
        let ca = Certificate::from_pem_bundle(pem);
        Ok(Self { ca: ca.map_err(|error| Failure::Unusable(error.to_string()))?, ..self })
    }

    /// Sends a request and follows where it leads, each step judged anew.
    /// Credentials go to the host that they were given for and to no other.
    pub async fn send(&self, mut request: Request) -> Result<Response, Failure> {
        let mut url = self.policy.parse(&request.url)?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&url, &request).await?;
            let Some(target) = redirect_target(&response, &url) else { return Ok(response) };
            if request.body.is_some() {
                return Err(Failure::Status(response.status().as_u16()));
            }
            let next = self.policy.parse(&target?)?;
            if next.origin() != url.origin() {
                request.headers.remove(header::AUTHORIZATION);
                request.headers.remove(header::COOKIE);
            }
            url = next;
        }
        Err(Failure::Unusable("too many redirects".to_owned()))
    }

    async fn send_once(&self, url: &Url, request: &Request) -> Result<Response, Failure> {
        let addresses = resolve(url).await?;
        let ips: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
        self.policy.judge(url, &ips)?;
        let client = self.client(url, addresses)?;
        let sent = match &request.body {
            Some(body) => client.post(url.clone()).body(body.clone()),
            None => client.get(url.clone()),
        };
        sent.headers(request.headers.clone()).send().await.map_err(unreachable)
    }

    /// A client that knows the host by the addresses that were judged and by
    /// no others.
    fn client(&self, url: &Url, addresses: Vec<SocketAddr>) -> Result<Client, Failure> {
        let host = url.host_str().unwrap_or_default();
        let target = (host.to_owned(), addresses);
        if let Some(known) = self.clients.lock().get(&target) {
            return Ok(known.clone());
        }
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STALL_TIMEOUT)
            .referer(false)
            .user_agent("selvage")
            .resolve_to_addrs(host, &target.1)
            .tls_certs_merge(self.ca.clone())
            .build()
            .map_err(unreachable)?;
        let mut clients = self.clients.lock();
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(target, client.clone());
        Ok(client)
    }
}

async fn resolve(url: &Url) -> Result<Vec<SocketAddr>, Failure> {
    let port = url.port_or_known_default().unwrap_or_default();
    if let Some(address) = literal(url) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = url.host_str().unwrap_or_default();
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| Failure::Unreachable(format!("{host}: {error}")))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort();
    found.dedup();
    Ok(found)
}

fn redirect_target(response: &Response, url: &Url) -> Option<Result<String, Failure>> {
    if !response.status().is_redirection() {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?;
    let target = location.to_str().ok().and_then(|location| url.join(location).ok());
    let bad = || Failure::Unusable("a redirect that cannot be followed".to_owned());
    Some(target.map(String::from).ok_or_else(bad))
}

/// Reads a body that has no more than so many bytes.
pub async fn read(mut response: Response, max_bytes: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > max_bytes {
            return Err(Failure::Unusable(format!("the answer is larger than {max_bytes} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The error with its causes: the outermost of reqwest says little. Without
/// the address, which may have secrets in it.
fn unreachable(error: reqwest::Error) -> Failure {
    Failure::Unreachable(selvage_api::chain(&error.without_url()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Answers each connection once with what `answer` makes of the request.
    async fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let count = socket.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..count]).into_owned();
                let _ = socket.write_all(answer(&text).as_bytes()).await;
                let _ = socket.shutdown().await;
            }
        });
        port
    }

    fn ok(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    fn fetcher(ports: &[u16]) -> Fetcher {
        let private_hosts = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Fetcher::new(Policy { private_hosts, ..Policy::default() })
    }

    #[tokio::test]
    async fn credentials_stay_with_the_host_they_are_for() {
        let seen = serve(|request| ok(&request.to_ascii_lowercase())).await;
        let target = format!("http://127.0.0.1:{seen}/");
        let sends = serve(move |request| {
            let to = if request.starts_with("GET /self") { "/end" } else { &target };
            if request.starts_with("GET /end") {
                return ok(&request.to_ascii_lowercase());
            }
            format!("HTTP/1.1 307 Moved\r\nconnection: close\r\ncontent-length: 0\r\nlocation: {to}\r\n\r\n")
        })
        .await;
        let fetcher = fetcher(&[seen, sends]);
        for (path, kept) in [("self", true), ("other", false)] {
            let request = Request::get(format!("http://127.0.0.1:{sends}/{path}"))
                .header(header::AUTHORIZATION, HeaderValue::from_static("Bearer hush"))
                .header(header::ACCEPT, HeaderValue::from_static("text/plain"));
            let response = fetcher.send(request).await.unwrap();
            let text = String::from_utf8(read(response, 4096).await.unwrap()).unwrap();
            assert_eq!(text.contains("hush"), kept, "{path}: {text}");
            assert!(text.contains("accept: text/plain"), "{path}: {text}");
        }
    }

    #[test]
    fn a_login_in_an_address_goes_as_a_header() {
        let url = Url::parse("https://ann:a%3Ab@files.example/x").unwrap();
        let request = Request::get_with_login(&url);
        assert_eq!(request.url, "https://files.example/x");
        let value = request.headers[header::AUTHORIZATION].to_str().unwrap();
        assert_eq!(value, format!("Basic {}", STANDARD.encode("ann:a:b")));
        assert!(!format!("{request:?}").contains(&STANDARD.encode("ann:a:b")));
    }

    #[tokio::test]
    async fn each_step_is_judged_and_the_inside_is_not_even_connected_to() {
        let inside = serve(|_| ok("reached")).await;
        let target = format!("http://127.0.0.1:{inside}/");
        let open = serve(move |request| {
            let to = match request.split(' ').nth(1) {
                Some("/metadata") => "http://169.254.169.254/latest",
                Some("/file") => "file:///etc/passwd",
                Some("/loop") => "/loop",
                _ => &target,
            };
            format!("HTTP/1.1 302 Found\r\nconnection: close\r\ncontent-length: 0\r\nlocation: {to}\r\n\r\n")
        })
        .await;
        let fetcher = fetcher(&[open]);
        for path in ["inside", "metadata", "file"] {
            let sent = fetcher.send(Request::get(format!("http://127.0.0.1:{open}/{path}"))).await;
            assert!(matches!(sent, Err(Failure::Denied(_))), "{path}: {sent:?}");
        }
        let looping = fetcher.send(Request::get(format!("http://127.0.0.1:{open}/loop"))).await;
        assert!(matches!(looping, Err(Failure::Unusable(_))));
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
            let sent = fetcher.send(Request::get(format!("http://{host}:{inside}/"))).await;
            assert!(matches!(sent, Err(Failure::Denied(_))), "{host}");
        }
    }

    #[tokio::test]
    async fn no_more_is_read_than_asked_for() {
        let port = serve(|_| ok(&"x".repeat(101))).await;
        let get = || async {
            let url = format!("http://127.0.0.1:{port}/");
            fetcher(&[port]).send(Request::get(url)).await.unwrap()
        };
        assert!(matches!(read(get().await, 100).await, Err(Failure::Unusable(_))));
        assert_eq!(read(get().await, 101).await.unwrap().len(), 101);
    }
}
