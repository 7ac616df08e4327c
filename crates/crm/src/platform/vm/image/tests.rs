//! Images with a real `qemu-img`, and a web server that counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use selvage_fetch::Policy;
use tokio::net::TcpListener;

use super::*;
use crate::platform::{
    network::{Egress, Forwarding, Range},
    vm::tools::Tools,
};

fn tools() -> Option<Tools> {
    let tools = Tools::find().ok();
    if tools.is_none() {
        selvage_testkit::skip("qemu", "it is not installed: run ./dev test");
    }
    tools
}

/// With files of a directory, and servers of this machine.
fn open(home: &Path, directory: &tempfile::TempDir) -> Images {
    let options = Options {
        data: home.to_owned(),
        images: ImageFolders::new([directory.path().to_owned()]),
        policy: Policy { private_hosts: vec!["127.0.0.1:*".into()], ..Policy::default() },
        start_timeout: Duration::ZERO,
        powerdown: Duration::ZERO,
        range: Range::default(),
        forwarding: Forwarding::default(),
        egress: Egress::default(),
    };
    Images::open(home.to_owned(), &options).unwrap()
}

fn wish(path: &str) -> ImageRequest<'_> {
    ImageRequest { path, developer: "Acme", disk: None }
}

async fn qcow(tools: &Tools, path: &Path, size: &str) {
    let arguments = ["create", "-q", "-f", "qcow2"].map(Path::new);
    let arguments = arguments.into_iter().chain([path, Path::new(size)]);
    tools.image(Path::new("/"), arguments).await.unwrap();
}

/// Server with an image, and a count of how often it gave it away.
#[derive(Default)]
struct Web {
    content: Mutex<Vec<u8>>,
    tag: AtomicUsize,
    given: AtomicUsize,
    asked: AtomicUsize,
    /// Status of all answers, if it is not for the server to say.
    status: Mutex<Option<&'static str>>,
}

async fn serve(web: Arc<Web>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/vm.qcow2", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            web.asked.fetch_add(1, Ordering::SeqCst);
            let asked = String::from_utf8(asked).unwrap().to_lowercase();
            let tag = format!("\"v{}\"", web.tag.load(Ordering::SeqCst));
            let status = *web.status.lock();
            let (head, body) = if let Some(status) = status {
                (format!("HTTP/1.1 {status}\r\ncontent-length: 0"), Vec::new())
            } else if asked.contains(&format!("if-none-match: {tag}")) {
                ("HTTP/1.1 304 Not Modified".to_owned(), Vec::new())
            } else {
                web.given.fetch_add(1, Ordering::SeqCst);
                let body = web.content.lock().clone();
                (format!("HTTP/1.1 200 OK\r\ncontent-length: {}", body.len()), body)
            };
            let head = format!("{head}\r\netag: {tag}\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
        }
    });
    (url, serving)
}

fn names(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[tokio::test]
async fn an_image_is_fetched_once_and_again_when_it_changed() {
    let Some(tools) = tools() else { return };
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("images");
    let original = directory.path().join("a.qcow2");
    qcow(&tools, &original, "3M").await;
    let web = Arc::new(Web::default());
    *web.content.lock() = std::fs::read(&original).unwrap();
    let (url, serving) = serve(Arc::clone(&web)).await;
    let images = open(&home, &directory);
    let first = images.provide(&wish(&url)).await.unwrap();
    assert_eq!(first.size, 3 << 20);
    assert_eq!(std::fs::read(&first.path).unwrap(), *web.content.lock());
    assert_eq!(images.provide(&wish(&url)).await.unwrap(), first);
    assert_eq!((web.asked.load(Ordering::SeqCst), web.given.load(Ordering::SeqCst)), (2, 1));

    // One that is known by its checksum is asked for, too, and not given again.
    let sum = hex::encode(Md5::digest(&*web.content.lock()));
    assert_eq!(images.provide(&wish(&format!("{url}#md5:{sum}"))).await.unwrap(), first);
    assert_eq!((web.asked.load(Ordering::SeqCst), web.given.load(Ordering::SeqCst)), (3, 1));

    qcow(&tools, &original, "5M").await;
    *web.content.lock() = std::fs::read(&original).unwrap();
    web.tag.fetch_add(1, Ordering::SeqCst);
    let second = images.provide(&wish(&url)).await.unwrap();
    assert_eq!(second.size, 5 << 20);
    assert!(first.path.is_file(), "a disk may build on it");
    assert_eq!(images.tidy(std::slice::from_ref(&first.path)).unwrap(), [""; 0]);
    assert_eq!(images.tidy(&[]).unwrap().len(), 1);
    assert!(!first.path.exists() && second.path.is_file());

    // A server that is away does not stop what is here.
    serving.abort();
    let _ = serving.await;
    assert_eq!(images.provide(&wish(&url)).await.unwrap(), second);
    assert_eq!(names(&home), 2, "an image and its note");
}

/// An image that is here is for those who may have it, as of now.
#[tokio::test]
async fn an_image_that_is_refused_now_is_not_taken_from_those_that_are_here() {
    let Some(tools) = tools() else { return };
    let directory = tempfile::tempdir().unwrap();
    let original = directory.path().join("a.qcow2");
    qcow(&tools, &original, "1M").await;
    let web = Arc::new(Web::default());
    *web.content.lock() = std::fs::read(&original).unwrap();
    let (url, _serving) = serve(Arc::clone(&web)).await;
    let images = open(&directory.path().join("images"), &directory);
    let first = images.provide(&wish(&url)).await.unwrap();
    let sum = hex::encode(Sha256::digest(&*web.content.lock()));
    let known = format!("{url}#sha256:{sum}");
    for refusal in ["401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone"] {
        *web.status.lock() = Some(refusal);
        // To know what is in it is no right to it.
        for url in [&url, &known] {
            let error = images.provide(&wish(url)).await.unwrap_err().to_string();
            assert!(error.ends_with(&format!("it answers {refusal}")), "{url}: {error}");
        }
    }
    for passing in ["500 Internal Server Error", "503 Service Unavailable"] {
        *web.status.lock() = Some(passing);
        assert_eq!(images.provide(&wish(&url)).await.unwrap(), first, "{passing}");
    }
    // A file that is gone was taken away.
    let file = format!("file://{}", original.display());
    images.provide(&wish(&file)).await.unwrap();
    std::fs::remove_file(&original).unwrap();
    images.provide(&wish(&file)).await.unwrap_err();
}

#[tokio::test]
async fn what_is_no_image_is_refused_and_leaves_nothing() {
    let Some(tools) = tools() else { return };
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("images");
    let images = open(&home, &directory);
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("text"), "not a disk").unwrap();
    qcow(&tools, &at("good"), "1M").await;
    let base = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"].map(Path::new);
    let (good, on_top) = (at("good"), at("on_top"));
    let base = base.into_iter().chain([good.as_path(), &on_top]);
    tools.image(directory.path(), base).await.unwrap();
    let failure_of = async |name: &str, sum: &str| {
        let path = format!("file://{}{sum}", at(name).display());
        images.provide(&wish(&path)).await.unwrap_err().to_string()
    };
    let error = failure_of("text", "").await;
    assert!(error.contains("the image is no qcow2"), "{error}");
    let error = failure_of("on_top", "").await;
    assert!(error.contains("builds on a file outside"), "{error}");
    let error = failure_of("good", &format!("#sha256:{}", "0".repeat(64))).await;
    assert!(error.contains("the image's sha256 is "), "{error}");
    let error = failure_of("nothing", "").await;
    assert!(error.starts_with("cannot read "), "{error}");
    std::fs::create_dir(at("folder")).unwrap();
    let error = failure_of("folder", "").await;
    assert!(error.starts_with("image_path: ") && error.ends_with(" is not a file"), "{error}");
    std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
    let (elsewhere, link) =
        (images.provide(&wish("file:///dev/zero")).await, failure_of("zero", "").await);
    assert_eq!(elsewhere.unwrap_err().to_string(), link);
    assert!(link.contains("crm.image_folders"), "{link}");
    let error =
        images.provide(&wish("http://user:geheim@127.0.0.1:1/x?token=geheim")).await.unwrap_err();
    assert!(error.to_string().starts_with("the image cannot be fetched from 127.0.0.1: "));
    assert!(!error.to_string().contains("geheim"), "{error}");
    assert_eq!(names(&home), 0);
    std::fs::write(home.join("x.image.part"), "half").unwrap();
    open(&home, &directory);
    assert_eq!(names(&home), 0, "what was being fetched is gone");
}

/// A server that never says how much it sends, and never stops.
async fn endless() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/vm.qcow2", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            while stream.write_all(&[0; 1 << 20]).await.is_ok() {}
        }
    });
    url
}

#[tokio::test]
async fn an_image_without_an_end_takes_no_more_than_its_flavor() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("images");
    let images = open(&home, &directory);
    let url = endless().await;
    let hostile = ImageRequest { path: &url, developer: "Bmce", disk: Some(1 << 20) };
    let error = images.provide(&hostile).await.unwrap_err().to_string();
    assert_eq!(error, "image_path: the image has more than the 65 MB that fit the flavor");
    assert_eq!(names(&home), 0, "what came of it is gone");
}

#[tokio::test]
async fn a_server_inside_is_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let web = Arc::new(Web::default());
    let (url, _serving) = serve(Arc::clone(&web)).await;
    let options = Options {
        data: directory.path().to_owned(),
        images: ImageFolders::default(),
        policy: Policy::default(),
        start_timeout: Duration::ZERO,
        powerdown: Duration::ZERO,
        range: Range::default(),
        forwarding: Forwarding::default(),
        egress: Egress::default(),
    };
    let images = Images::open(directory.path().join("images"), &options).unwrap();
    let error = images.provide(&wish(&url)).await.unwrap_err().to_string();
    assert!(error.ends_with("127.0.0.1 has an address that is not public"), "{error}");
    assert_eq!(web.asked.load(Ordering::SeqCst), 0);
}
