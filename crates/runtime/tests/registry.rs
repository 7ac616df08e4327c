//! Images from a registry: a small one in this process that wants a token,
//! and gives one only to a user it knows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod real;

use std::{collections::HashMap, sync::Arc};

use selvage_api::Code;
use selvage_runtime::{Credentials, Pull, Runtime, oci};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// `user:hush`.
const BASIC: &str = "authorization: basic dxnlcjpodxno";

/// What a layout holds, by the paths of the protocol.
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
        assert!(!error.to_string().contains("hush"));
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
}
