//! Real object stores, and a proxy in front of them that makes trouble.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    convert::Infallible,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use selvage_restic::{Id, Location, Secret, StoreOptions};
use tokio::net::TcpListener;

use crate::common::{
    Restic,
    ceph::{Ceph, make_bucket},
    skip,
};

pub const BUCKET: &str = "backups";
pub const ACCESS_KEY: &str = "tester";
pub const SECRET_KEY: &str = "a-canary-secret";

/// An object store of its own. Killed when dropped.
pub struct Server {
    processes: Processes,
    pub name: &'static str,
    pub address: SocketAddr,
}

enum Processes {
    One(Child, tempfile::TempDir),
    Ceph(Ceph),
}

impl Server {
    /// Those that are installed; for those that are not, a loud word.
    pub fn all() -> Vec<Self> {
        [Self::rclone(), Self::moto(), Self::radosgw()].into_iter().flatten().collect()
    }

    /// Checks signatures; knows no conditions.
    pub fn rclone() -> Option<Self> {
        Self::start("rclone", "rclone", |command, folder, address| {
            std::fs::create_dir(folder.join(BUCKET)).unwrap();
            command
                .args(["--config", "/dev/null", "serve", "s3"])
                .arg(folder)
                .args(["--addr", &address.to_string()])
                .args(["--auth-key", &format!("{ACCESS_KEY},{SECRET_KEY}")]);
        })
    }

    /// The same behind TLS, with a certificate for `localhost` and
    /// `store.example`.
    pub fn rclone_with_tls(ca: &selvage_kit::pki::Ca) -> Option<Self> {
        let issued = ca.issue_server(&["localhost", "store.example"]).unwrap();
        let folder = ca.path().parent().unwrap();
        let (certificate, key) = (folder.join("store.crt"), folder.join("store.key"));
        std::fs::write(&certificate, issued.chain_pem).unwrap();
        std::fs::write(&key, issued.key_pem.as_bytes()).unwrap();
        Self::start("rclone", "rclone", |command, folder, address| {
            std::fs::create_dir(folder.join(BUCKET)).unwrap();
            command
                .args(["--config", "/dev/null", "serve", "s3"])
                .arg(folder)
                .args(["--addr", &address.to_string()])
                .args(["--auth-key", &format!("{ACCESS_KEY},{SECRET_KEY}")])
                .arg("--cert")
                .arg(&certificate)
                .arg("--key")
                .arg(&key);
        })
    }

    /// Speaks restic's REST protocol instead, to a user with a password.
    pub fn rclone_rest(options: &[&str]) -> Option<Self> {
        Self::start("rclone", "rclone", |command, folder, address| {
            command
                .args(["--config", "/dev/null", "serve", "restic"])
                .arg(folder)
                .args(["--addr", &address.to_string()])
                .args(options)
                .env("RCLONE_USER", ACCESS_KEY)
                .env("RCLONE_PASS", SECRET_KEY);
        })
    }

    /// Knows conditions; checks no signatures.
    pub fn moto() -> Option<Self> {
        let server = Self::start("moto", "moto_server", |command, _, address| {
            let port = address.port().to_string();
            command.args(["-H", "127.0.0.1", "-p", &port]);
        })?;
        let answer = ask(server.address, &format!("PUT /{BUCKET}")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(server)
    }

    /// Ceph's. Only where it is asked for: its packages are 70 MB, and it
    /// takes a quarter of a minute to start.
    pub fn radosgw() -> Option<Self> {
        if std::env::var_os("SELVAGE_TEST_RADOSGW").is_none() {
            selvage_testkit::say_skipped("radosgw", "SELVAGE_TEST_RADOSGW is not set");
            return None;
        }
        let python = tool("python").unwrap();
        let ceph = Ceph::start(ACCESS_KEY, SECRET_KEY);
        let address = ceph.gateway;
        let server = Self { processes: Processes::Ceph(ceph), name: "radosgw", address };
        server.until_it_answers();
        make_bucket(&python, &server.endpoint(), BUCKET, (ACCESS_KEY, SECRET_KEY));
        Some(server)
    }

    fn until_it_answers(&self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while ask(self.address, "GET /").is_none() {
            assert!(Instant::now() < deadline, "{} does not answer", self.name);
            std::thread::yield_now();
        }
    }

    fn start(
        name: &'static str,
        program: &str,
        arrange: impl Fn(&mut Command, &std::path::Path, SocketAddr),
    ) -> Option<Self> {
        let Some(program) = tool(program) else {
            skip(name, "SELVAGE_TEST_PYTHON is not set: run ./dev test");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut command = Command::new(program);
        arrange(&mut command, folder.path(), address);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self { processes: Processes::One(child, folder), name, address };
        server.until_it_answers();
        Some(server)
    }

    /// Folder of its files.
    pub fn folder(&self) -> &std::path::Path {
        match &self.processes {
            Processes::One(_, folder) => folder.path(),
            Processes::Ceph(_) => panic!("it has none"),
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Options for a prefix of its bucket.
    pub fn options(&self, prefix: &str) -> StoreOptions {
        options(&self.endpoint(), prefix)
    }

    /// Stock restic on the same path of a server that speaks REST.
    pub fn restic_rest(&self, prefix: &str) -> Restic {
        let user = format!("{ACCESS_KEY}:{SECRET_KEY}");
        let repository = format!("rest:http://{user}@{}/{BUCKET}/{prefix}/", self.address);
        Restic { repository, environment: Vec::new() }
    }

    /// Stock restic on the same prefix.
    pub fn restic(&self, prefix: &str) -> Restic {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Restic {
            repository: format!("s3:{}/{BUCKET}/{prefix}", self.endpoint()),
            environment: vec![
                pair("AWS_ACCESS_KEY_ID", ACCESS_KEY),
                pair("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ],
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Processes::One(child, _) = &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Options that do not wait long.
pub fn options(endpoint: &str, prefix: &str) -> StoreOptions {
    let location: Location = format!("{BUCKET}/{prefix}").parse().unwrap();
    StoreOptions {
        access_key: ACCESS_KEY.to_owned(),
        secret_key: Secret::new(SECRET_KEY),
        longest_pause: Duration::from_millis(20),
        attempts: 12,
        ..StoreOptions::new(endpoint, location)
    }
}

/// Beside the Python that `./dev` sets up.
fn tool(name: &str) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("SELVAGE_TEST_PYTHON")?);
    Some(python.parent()?.join(name)).filter(|path| path.exists())
}

fn ask(address: SocketAddr, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text).filter(|text| !text.is_empty())
}

/// Reaction of a proxy to a request instead of passing it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it goes through.
    None,
    /// An answer of its own: status, code, and a `Date` if any.
    Say(u16, &'static str),
    /// The connection ends without an answer.
    Reset,
    /// Half of the answer.
    Cut,
    /// An answer with a changed byte.
    Change,
    /// The body is changed on its way to a store that checks it.
    ChangeUpload,
    /// No answer, ever.
    Hang,
}

/// Request as a proxy saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: hyper::HeaderMap,
    pub length: u64,
}

type Judge = dyn Fn(u64, &Seen) -> Fault + Send + Sync;

/// A proxy in front of a store.
pub struct Proxy {
    pub address: SocketAddr,
    /// Every request that came through.
    pub seen: Arc<parking_lot::Mutex<Vec<Seen>>>,
}

struct Inner {
    upstream: SocketAddr,
    client: reqwest::Client,
    judge: Box<Judge>,
    count: AtomicU64,
    seen: Arc<parking_lot::Mutex<Vec<Seen>>>,
}

impl Proxy {
    /// Starts one; `judge` is asked about every request, with its number.
    pub async fn start(
        upstream: SocketAddr,
        judge: impl Fn(u64, &Seen) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::default();
        let inner = Arc::new(Inner {
            upstream,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            judge: Box::new(judge),
            count: AtomicU64::new(0),
            seen: Arc::clone(&seen),
        });
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let inner = Arc::clone(&inner);
                tokio::spawn(async move {
                    let service = service_fn(move |request| handle(Arc::clone(&inner), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, seen }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

fn whole(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never: Infallible| match never {}).boxed()
}

fn broken() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

async fn handle(
    inner: Arc<Inner>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let content = body.collect().await.map_err(|_| broken())?.to_bytes();
    let seen = Seen {
        method: parts.method.to_string(),
        path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: parts.headers.clone(),
        length: content.len() as u64,
    };
    let number = inner.count.fetch_add(1, Ordering::Relaxed);
    let fault = (inner.judge)(number, &seen);
    inner.seen.lock().push(seen.clone());
    match fault {
        Fault::Say(status, code) => return Ok(say(status, code)),
        Fault::Reset => return Err(broken()),
        Fault::Hang => std::future::pending::<()>().await,
        Fault::ChangeUpload if !content.is_empty() => {
            let mut changed = content.to_vec();
            changed[content.len() / 2] ^= 1;
            let said = seen.headers.get("x-amz-content-sha256").unwrap().to_str().unwrap();
            assert_ne!(Id::of(&changed).to_string(), said);
            return Ok(say(400, "XAmzContentSHA256Mismatch"));
        }
        _ => {}
    }
    let url = format!("http://{}{}", inner.upstream, seen.path);
    let method = reqwest::Method::from_bytes(seen.method.as_bytes()).unwrap();
    let mut onward = inner.client.request(method, url).body(content);
    for (name, value) in &parts.headers {
        onward = onward.header(name, value);
    }
    let answer = onward.send().await.map_err(|_| broken())?;
    let mut response = Response::builder().status(answer.status().as_u16());
    for (name, value) in answer.headers() {
        if name != "transfer-encoding" && name != "connection" {
            response = response.header(name, value);
        }
    }
    let mut body = answer.bytes().await.map_err(|_| broken())?.to_vec();
    let body = match fault {
        Fault::Cut if body.len() > 1 => {
            let half = Bytes::from(body[..body.len() / 2].to_vec());
            let parts = [Ok(Frame::data(half)), Err(broken())];
            StreamBody::new(futures::stream::iter(parts)).boxed()
        }
        Fault::Change if !body.is_empty() => {
            let middle = body.len() / 2;
            body[middle] ^= 1;
            whole(body)
        }
        _ => whole(body),
    };
    Ok(response.body(body).unwrap())
}

fn say(status: u16, code: &str) -> Response<Body> {
    let text = format!("<Error><Code>{code}</Code><Message>made up</Message></Error>");
    let status = StatusCode::from_u16(status).unwrap();
    Response::builder().status(status).body(whole(text)).unwrap()
}
