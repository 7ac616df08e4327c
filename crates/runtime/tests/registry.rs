//! Images from a registry: a small one in this process that wants a token,
//! and gives one only to a user it knows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::HashMap, sync::Arc};

use selvage_api::Code;
use selvage_fetch::Policy;
use selvage_runtime::{Credentials, Pull, Runtime, oci};
use selvage_testkit::containers as real;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// `user:hush`.
const BASIC: &str = "authorization: basic dxnlcjpodxno";

/// Content of a layout, by the paths of the protocol.
fn contents(tar: &[u8]) -> HashMap<String, Vec<u8>> {
    use std::io::Read;
    let mut files = HashMap::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        match path.strip_prefix("blobs/sha256/") {
            Some(hex) => {
                files.insert(format!("/v2/team/app/blobs/sha256:{hex}"), bytes.clone());
                files.insert(format!("/v2/team/app/manifests/sha256:{hex}"), bytes);
            }
            None if path == "index.json" => {
                files.insert("/v2/team/app/manifests/1".into(), bytes);
            }
            None => {}
        }
    }
    files
}

async fn answer(mut stream: TcpStream, files: Arc<HashMap<String, Vec<u8>>>, port: u16) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(length @ 1..) => request.extend_from_slice(&piece[..length]),
            _ => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let lower = request.to_lowercase();
    let (status, header, body): (_, String, &[u8]) = if path.starts_with("/token") {
        if lower.contains(BASIC) {
            ("200 OK", String::new(), br#"{"token":"pass"}"#)
        } else {
            ("401 Unauthorized", String::new(), b"")
        }
    } else if !lower.contains("authorization: bearer pass") {
        let realm = format!("http://127.0.0.1:{port}/token");
        let scope = "repository:team/app:pull";
        let wanted = format!(
            "WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\",scope=\"{scope}\"\r\n"
        );
        ("401 Unauthorized", wanted, b"")
    } else {
        match files.get(&path) {
            Some(body) => ("200 OK", String::new(), body),
            None => ("404 Not Found", String::new(), b""),
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n{header}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
}

async fn registry(files: HashMap<String, Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let files = Arc::new(files);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, files.clone(), port));
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn pulling_wants_the_right_user_and_the_right_bytes() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = oci::Options {
        state: directory.path().join("state"),
        ..oci::Options::new(directory.path().join("root"))
    };
    let runtime = oci::Oci::open(options).await.unwrap();
    let mut files = contents(&std::fs::read(real::image_tar(directory.path())).unwrap());
    let port = registry(files.clone()).await;
    let pull = |port: u16, version: &str, password: Option<&str>| Pull {
        reference: format!("127.0.0.1:{port}/team/app:{version}"),
        plain_http: true,
        scope: "test".into(),
        policy: Policy { private_hosts: vec!["127.0.0.1:*".into()], ..Policy::default() },
        limit: None,
        credentials: password.map(|password| Credentials {
            user: "user".into(),
            password: password.to_owned().into(),
        }),
    };
    assert!(!format!("{:?}", pull(port, "1", Some("hush"))).contains("hush"));
    for (version, password, expected) in [
        ("1", None, Code::Unauthenticated),
        ("1", Some("wrong"), Code::Unauthenticated),
        ("2", Some("hush"), Code::NotFound),
    ] {
        let error = runtime.pull("test", pull(port, version, password)).await.unwrap_err();
        assert_eq!(error.code(), expected, "{error}");
        let message = error.to_string();
        assert!(
            message.contains(&format!("127.0.0.1:{port}")) && !message.contains("hush"),
            "{message}"
        );
    }
    let image = runtime.pull("test", pull(port, "1", Some("hush"))).await.unwrap();
    assert_eq!(image.name, format!("127.0.0.1:{port}/team/app:1"));
    assert_eq!(runtime.images("test").await.unwrap(), std::slice::from_ref(&image));
    runtime.remove_image("test", &image.name).await.unwrap();

    let layer = files.iter_mut().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let changed = (layer.0.clone(), layer.1.len());
    for (path, bytes) in &mut files {
        if bytes.len() == changed.1 && path.contains("/blobs/") {
            bytes[100] ^= 1;
        }
    }
    let port = registry(files).await;
    let error = runtime.pull("test", pull(port, "1", Some("hush"))).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    assert!(runtime.images("test").await.unwrap().is_empty());
    let error = runtime.pull("test", pull(1, "1", None)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with("registry: 127.0.0.1:1: "), "{error}");
}

async fn open(directory: &std::path::Path) -> oci::Oci {
    let options = oci::Options {
        state: directory.join("state"),
        ..oci::Options::new(directory.join("root"))
    };
    oci::Oci::open(options).await.unwrap()
}

/// From this registry alone, for this scope.
fn pull_from(port: u16, scope: &str) -> Pull {
    Pull {
        reference: format!("127.0.0.1:{port}/team/app:1"),
        plain_http: true,
        credentials: Some(Credentials { user: "user".into(), password: "hush".to_owned().into() }),
        scope: scope.into(),
        policy: Policy { private_hosts: vec![format!("127.0.0.1:{port}")], ..Policy::default() },
        limit: None,
    }
}

/// To know the digest of a layer is not enough to have it: a registry of one's
/// own can name any.
#[tokio::test(flavor = "multi_thread")]
async fn layers_of_others_are_not_had_by_naming_them() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = open(directory.path()).await;
    let mut files = contents(&std::fs::read(real::image_tar(directory.path())).unwrap());
    let honest = registry(files.clone()).await;
    runtime.pull("test", pull_from(honest, "a")).await.unwrap();
    let layer = files.iter().filter(|(path, _)| path.contains("/blobs/"));
    let layer = layer.max_by_key(|(_, bytes)| bytes.len()).unwrap().0.clone();
    files.remove(&layer);
    let naming = registry(files).await;
    let error = runtime.pull("test", pull_from(naming, "b")).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let names: Vec<String> =
        runtime.images("test").await.unwrap().into_iter().map(|image| image.name).collect();
    assert_eq!(names, [format!("127.0.0.1:{honest}/team/app:1")]);
    // Whoever brought it need not bring it again.
    runtime.pull("test", pull_from(naming, "a")).await.unwrap();
}

/// Answers everything with this, and counts.
async fn server(answer: String) -> (u16, Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let answer = answer.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (port, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_sends_nobody_to_the_inside_and_says_no_endless_things() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = open(directory.path()).await;
    let plain = "connection: close\r\ncontent-length: 0\r\n";
    let (inside, asked) = server(format!("HTTP/1.1 200 OK\r\n{plain}\r\n")).await;
    let realm = format!("http://127.0.0.1:{inside}/token");
    let challenge = format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\n");
    let away = format!("location: {realm}\r\n");
    for (status, header) in [("401 Unauthorized", challenge), ("307 Moved", away)] {
        let (hostile, _) = server(format!("HTTP/1.1 {status}\r\n{header}{plain}\r\n")).await;
        let error = runtime.pull("test", pull_from(hostile, "b")).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{status}: {error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 0, "the inside was asked");

    // A token of a megabyte.
    let token = format!("{{\"token\":\"{}\"}}", "x".repeat(1 << 20));
    let (teller, _) = server(format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{token}",
        token.len()
    ))
    .await;
    let challenge = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{teller}/\"\r\n");
    let (hostile, _) = server(format!("HTTP/1.1 401 Unauthorized\r\n{challenge}{plain}\r\n")).await;
    let mut pull = pull_from(hostile, "b");
    pull.policy.private_hosts.push(format!("127.0.0.1:{teller}"));
    let error = runtime.pull("test", pull).await.unwrap_err().to_string();
    assert!(error.contains("larger than 65536 bytes"), "{error}");
}
