//! Things between us and an object store: certificates, proxies, tokens
//! and clocks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/s3.rs"]
mod store;

use std::{net::SocketAddr, process::Command, sync::Arc};

use common::*;
use selvage_api::Code;
use selvage_kit::{clock::ManualClock, pki::Ca};
use selvage_restic::{Error, Repository, S3, Secret, StoreOptions};
use serde::{Deserialize, Serialize};
use store::{Fault, Proxy, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const MIB: u64 = 1 << 20;
const TASK: &str = "SELVAGE_STORE_TASK";
const OPENED: &str = "opened";
const FAILED: &str = "failed: ";

async fn open(options: StoreOptions) -> Result<Repository, Error> {
    let backend = Arc::new(S3::new(options)?);
    Repository::open_or_init(backend, &password(), common::options()).await
}

/// A proxy that leads everybody to one store, whatever they call it.
struct Tunnel {
    address: SocketAddr,
    /// The heads of what was asked.
    asked: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Tunnel {
    async fn to(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let heads = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(lead(client, store, Arc::clone(&heads)));
            }
        });
        Self { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

async fn lead(
    mut client: TcpStream,
    store: SocketAddr,
    asked: Arc<parking_lot::Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    asked.lock().push(String::from_utf8(head).unwrap());
    let mut onward = TcpStream::connect(store).await.unwrap();
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut onward).await;
}

/// Attempts of a process with an environment of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Attempt {
    endpoint: String,
    prefix: String,
    verify_tls: bool,
    http_proxy: Option<String>,
    https_proxy: Option<String>,
}

impl Attempt {
    fn options(&self) -> StoreOptions {
        StoreOptions {
            verify_tls: self.verify_tls,
            http_proxy: self.http_proxy.clone(),
            https_proxy: self.https_proxy.clone(),
            attempts: 2,
            ..store::options(&self.endpoint, &self.prefix)
        }
    }

    /// Tries it with these variables, and says what came of it.
    async fn with(&self, variables: &[(&str, &str)]) -> Result<(), String> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_process_with_an_environment", "--nocapture"]);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command.env(TASK, serde_json::to_string(self).unwrap());
        command.envs(variables.iter().copied());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        if said.contains(OPENED) {
            return Ok(());
        }
        Err(said.split_once(FAILED).unwrap_or_else(|| panic!("{said}")).1.to_owned())
    }
}

/// The child of the tests below. Run by itself it does nothing.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout, reason = "the parent reads it")]
async fn a_process_with_an_environment() {
    let Ok(task) = std::env::var(TASK) else { return };
    let attempt: Attempt = serde_json::from_str(&task).unwrap();
    match open(attempt.options()).await {
        Ok(_) => println!("{OPENED}"),
        Err(error) => println!("{FAILED}{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_counts_if_the_system_trusts_who_signed_it() {
    let folder = Folder::new();
    let ca = Ca::open_or_create(&folder.path("ca")).unwrap();
    let Some(server) = Server::rclone_with_tls(&ca) else { return };
    let port = server.address.port();
    let attempt = |host: &str, verify_tls| Attempt {
        endpoint: format!("https://{host}:{port}"),
        prefix: "tls".to_owned(),
        verify_tls,
        ..Attempt::default()
    };
    let refused = attempt("localhost", true).with(&[]).await.unwrap_err();
    assert!(refused.contains("its certificate is not trusted"), "{refused}");

    let path = ca.path().to_str().unwrap();
    attempt("localhost", true).with(&[("SSL_CERT_FILE", path)]).await.unwrap();
    // Signed by somebody we trust, but for somebody else.
    let other = attempt("127.0.0.1", true).with(&[("SSL_CERT_FILE", path)]).await.unwrap_err();
    assert!(other.contains("its certificate is not trusted"), "{other}");

    attempt("localhost", false).with(&[]).await.unwrap();
    attempt("127.0.0.1", false).with(&[]).await.unwrap();

    let begun = store::options(&format!("https://localhost:{port}"), "tls");
    let error = open(begun).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_life_through_a_tunnel() {
    let folder = Folder::new();
    let ca = Ca::open_or_create(&folder.path("ca")).unwrap();
    let Some(server) = Server::rclone_with_tls(&ca) else { return };
    let tunnel = Tunnel::to(server.address).await;
    let attempt = Attempt {
        // Nobody but the proxy knows where that is.
        endpoint: "https://store.example".to_owned(),
        prefix: "tunnel".to_owned(),
        https_proxy: Some(format!("http://me:word@{}", tunnel.address)),
        ..Attempt::default()
    };
    let (disk, back) = (folder.path("disk"), folder.path("back"));
    image(&disk, 6 * MIB, 91);
    let repository = open(attempt.options()).await.unwrap();
    let snapshot = backup(&repository, &disk, named("disk")).await;
    restore(&repository, &snapshot, 6 * MIB, &back).await;
    assert_same(&disk, &back);
    let asked = tunnel.asked();
    assert!(!asked.is_empty());
    for head in &asked {
        assert!(head.starts_with("CONNECT store.example:443 HTTP/1.1\r\n"), "{head}");
        // `me:word`
        assert!(head.to_lowercase().contains("\r\nproxy-authorization: basic bwu6d29yza==\r\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_a_request_go_before_those_of_the_environment() {
    let folder = Folder::new();
    let ca = Ca::open_or_create(&folder.path("ca")).unwrap();
    let Some(server) = Server::rclone_with_tls(&ca) else { return };
    let (one, other) = (Tunnel::to(server.address).await, Tunnel::to(server.address).await);
    let attempt = Attempt {
        endpoint: "https://store.example".to_owned(),
        prefix: "proxies".to_owned(),
        ..Attempt::default()
    };
    attempt.with(&[("HTTPS_PROXY", &one.url())]).await.unwrap();
    let through_one = one.asked().len();
    assert!(through_one > 0);

    let given = Attempt { https_proxy: Some(other.url()), ..attempt.clone() };
    given.with(&[("HTTPS_PROXY", &one.url())]).await.unwrap();
    assert_eq!(one.asked().len(), through_one);
    assert!(!other.asked().is_empty());

    // A proxy for the one is none for the other.
    let plain = Attempt {
        endpoint: format!("https://localhost:{}", server.address.port()),
        http_proxy: Some(other.url()),
        ..attempt
    };
    let through_other = other.asked().len();
    plain.with(&[("HTTPS_PROXY", &one.url())]).await.unwrap();
    assert_eq!((one.asked().len(), other.asked().len()), (through_one, through_other));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_token_is_sent_and_signed() {
    let Some(server) = Server::rclone() else { return };
    let proxy = Proxy::start(server.address, |_, _| Fault::None).await;
    let mut options = store::options(&proxy.endpoint(), "token");
    options.session_token = Some(Secret::new("a/token+with=signs"));
    // The store checks the signature.
    open(options).await.unwrap();
    let seen = proxy.seen.lock().clone();
    assert!(seen.len() > 3);
    for seen in seen {
        assert_eq!(seen.headers["x-amz-security-token"], "a/token+with=signs");
        let signed = seen.headers["authorization"].to_str().unwrap();
        assert!(signed.contains("x-amz-date;x-amz-security-token, Signature="), "{signed}");
    }
}

#[allow(clippy::disallowed_methods, reason = "both ends have a clock")]
#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_for_good_are_named() {
    let Some(server) = Server::rclone() else { return };
    let wrong = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(3);
    // What a real store says to it is put right by its own clock.
    let mut options = server.options("clock");
    options.clock = Arc::new(ManualClock::new(wrong));
    open(options).await.unwrap();

    let never = Proxy::start(server.address, |_, _| Fault::Say(403, "RequestTimeTooSkewed")).await;
    let mut options = store::options(&never.endpoint(), "clock");
    options.clock = Arc::new(ManualClock::new(wrong));
    let error = open(options).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains("the clocks of this machine and of the object store differ by 10"));
    assert!(message.contains("RequestTimeTooSkewed"), "{message}");
    assert_eq!(never.seen.lock().len(), 2, "once more with the right time, and no more");
}
