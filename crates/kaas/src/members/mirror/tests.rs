#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const PATH: &str = "1.36.4/kubelet";
const PROGRAM: &[u8] = b"#!/bin/sh\nexit 0\n";

pub(in crate::members) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answer of a server to a path.
#[derive(Clone)]
pub(in crate::members) enum Answer {
    Whole(Vec<u8>),
    /// Promises more than it sends.
    Truncated,
    /// A byte at a time.
    Slow(Vec<u8>),
    Redirect(String),
    Missing,
}

async fn reply(socket: &mut (impl AsyncWrite + Unpin), answer: Answer) {
    let head = |status: &str, length: usize, more: &str| {
        format!("HTTP/1.1 {status}\r\nconnection: close\r\n{more}content-length: {length}\r\n\r\n")
    };
    let (head, body) = match answer {
        Answer::Whole(body) => (head("200 OK", body.len(), ""), body),
        Answer::Truncated => (head("200 OK", PROGRAM.len(), ""), PROGRAM[..5].to_vec()),
        Answer::Redirect(to) => (head("302 Found", 0, &format!("location: {to}\r\n")), Vec::new()),
        Answer::Missing => (head("404 Not Found", 0, ""), Vec::new()),
        Answer::Slow(body) => {
            let _ = socket.write_all(head("200 OK", body.len(), "").as_bytes()).await;
            for byte in body {
                let _ = socket.write_all(&[byte]).await;
                let _ = socket.flush().await;
                tokio::task::yield_now().await;
            }
            let _ = socket.shutdown().await;
            return;
        }
    };
    let _ = socket.write_all(&[head.as_bytes(), &body].concat()).await;
    let _ = socket.shutdown().await;
}

/// A mirror with TLS, and how often it was asked for a program.
pub(in crate::members) struct Server {
    pub(in crate::members) port: u16,
    pub(in crate::members) ca: String,
    pub(in crate::members) asked: Arc<AtomicUsize>,
    pub(in crate::members) folder: tempfile::TempDir,
}

impl Server {
    pub(in crate::members) async fn start(
        answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let chain = vec![key.cert.der().clone()];
        let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, private.unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut socket) = acceptor.accept(socket).await else { continue };
                let mut request = vec![0; 4096];
                let length = socket.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                count.fetch_add(usize::from(!path.ends_with(SUMS)), Ordering::Relaxed);
                reply(&mut socket, answer(&path)).await;
            }
        });
        let folder = tempfile::tempdir().unwrap();
        Self { port, ca: key.cert.pem(), asked, folder }
    }

    /// One that lists the right digest, and answers for the program as it is told.
    async fn with(program: Answer) -> Self {
        Self::start(move |path| match path {
            "/k/SHA256SUMS" => {
                Answer::Whole(format!("{}  ./{PATH}\n", sha256(PROGRAM)).into_bytes())
            }
            "/k/1.36.4/kubelet" => program.clone(),
            "/elsewhere" => Answer::Whole(PROGRAM.to_vec()),
            _ => Answer::Missing,
        })
        .await
    }

    fn mirror(&self) -> Mirror {
        let address = format!("https://localhost:{}/k", self.port);
        Mirror::new(&address, self.ca.as_bytes(), self.folder.path().to_owned()).unwrap()
    }

    async fn get(&self) -> Result<Option<(PathBuf, String)>, Error> {
        self.mirror().get(PATH, &Digests::new()).await
    }

    /// Nothing was kept.
    fn is_empty(&self) {
        let left = std::fs::read_dir(self.folder.path().join("1.36.4"));
        let left: Vec<_> = left.into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_program_is_fetched_once_and_checked_each_time() {
    let server = Server::with(Answer::Whole(PROGRAM.to_vec())).await;
    let (file, digest) = server.get().await.unwrap().unwrap();
    assert_eq!((std::fs::read(&file).unwrap(), digest), (PROGRAM.to_vec(), sha256(PROGRAM)));
    server.get().await.unwrap().unwrap();
    assert_eq!(server.asked.load(Ordering::Relaxed), 1, "the second time it is here");
    std::fs::write(&file, "something else").unwrap();
    server.get().await.unwrap().unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), PROGRAM, "damaged: fetched again");
    let unknown = server.mirror().get("1.36.4/other", &Digests::new()).await.unwrap();
    assert_eq!(unknown, None, "not in the list");
}

#[tokio::test]
async fn a_program_with_another_digest_is_not_kept() {
    let server = Server::with(Answer::Whole(b"exchanged".to_vec())).await;
    let error = server.get().await.unwrap_err().to_string();
    assert!(error.contains(&sha256(b"exchanged")) && error.contains(&sha256(PROGRAM)), "{error}");
    server.is_empty();
}

#[tokio::test]
async fn the_catalogue_stands_above_the_list_of_a_mirror() {
    let server = Server::with(Answer::Whole(PROGRAM.to_vec())).await;
    let pinned = Digests::from([(PATH.to_owned(), sha256(b"another"))]);
    let error = server.mirror().get(PATH, &pinned).await.unwrap_err().to_string();
    assert!(error.contains(&sha256(b"another")), "{error}");
    server.is_empty();
}

#[tokio::test]
async fn a_program_that_breaks_off_is_not_kept() {
    let server = Server::with(Answer::Truncated).await;
    let error = server.get().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    server.is_empty();
}

#[tokio::test]
async fn a_slow_mirror_is_waited_for() {
    let server = Server::with(Answer::Slow(PROGRAM.to_vec())).await;
    let (file, _) = server.get().await.unwrap().unwrap();
    assert_eq!(std::fs::read(file).unwrap(), PROGRAM);
}

#[tokio::test]
async fn a_redirect_is_followed_to_the_mirror_and_to_no_other_private_address() {
    let server = Server::with(Answer::Redirect("/elsewhere".into())).await;
    server.get().await.unwrap().unwrap();
    let inside = Server::with(Answer::Whole(PROGRAM.to_vec())).await;
    let to = format!("https://localhost:{}/elsewhere", inside.port);
    let server = Server::with(Answer::Redirect(to)).await;
    let error = server.get().await.unwrap_err().to_string();
    assert!(error.contains("not public"), "{error}");
    assert_eq!(inside.asked.load(Ordering::Relaxed), 0);
    server.is_empty();
}

#[tokio::test]
async fn a_certificate_of_nobody_known_is_refused() {
    let server = Server::with(Answer::Whole(PROGRAM.to_vec())).await;
    let other = Server::with(Answer::Missing).await;
    let address = format!("https://localhost:{}/k", server.port);
    let cache = server.folder.path().to_owned();
    let mirror = Mirror::new(&address, other.ca.as_bytes(), cache).unwrap();
    assert!(mirror.get(PATH, &Digests::new()).await.is_err());
    server.is_empty();
}

#[tokio::test]
async fn without_tls_the_catalogue_has_to_name_digests() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::new("http://127.0.0.1:9/k", b"", folder.path().to_owned()).unwrap();
    let error = mirror.get(PATH, &Digests::new()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("kaas.catalogue")), "{error}");
    assert!(Mirror::new("https://", b"", folder.path().to_owned()).is_err());
}
