//! Stock gRPC clients on a unix socket, which name its path, or nobody, as
//! the host that they call.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use selvage_api::services::auth::{
    CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
    LogoutResponse,
    auth_service_client::AuthServiceClient,
    auth_service_server::{AuthService, AuthServiceServer},
};
use selvage_kit::{
    identity::Identity,
    serve::{Limits, Server, Services, Socket, Trust},
    telemetry::Metrics,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status, transport::Endpoint};

const AUTHORITIES: [&str; 3] = ["/run/topolvm/lvmd.sock", "%2Frun%2Flvmd.sock", ""];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PROTOCOL_ERROR: u32 = 1;

/// Login says who is calling and with which name.
struct Echo;

#[tonic::async_trait]
impl AuthService for Echo {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let caller = request.extensions().get::<Identity>().unwrap().name.clone();
        let login = request.into_inner().username;
        let account_id = format!("{caller} {login}");
        Ok(Response::new(LoginResponse { account_id, ..Default::default() }))
    }

    async fn logout(&self, _: Request<LogoutRequest>) -> Result<Response<LogoutResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn check_token(
        &self,
        _: Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// Serves until the guard is dropped.
async fn serve(socket: Socket, trust: Trust) -> DropGuard {
    let mut services = Services::default();
    services.add(AuthServiceServer::new(Echo));
    let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(server.run(socket, trust, stop.clone()));
    stop.drop_guard()
}

async fn on_unix(directory: &Path) -> (PathBuf, DropGuard) {
    let path = directory.join("part.sock");
    let socket = Socket::unix(&path).await.unwrap();
    let guard = serve(socket, Trust::Socket).await;
    (path, guard)
}

/// As much of an HTTP/2 client as it takes to be a bad one.
struct Raw<S>(S);

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Raw<S> {
    async fn greet(mut stream: S) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut this = Self(stream);
        this.send(SETTINGS, 0, 0, &[]).await;
        this
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        frame.put_uint(payload.len() as u64, 3);
        frame.put_slice(&[kind, flags]);
        frame.put_u32(stream);
        frame.put_slice(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    async fn receive(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.unwrap();
        let mut head = head.as_slice();
        let length = head.get_uint(3) as usize;
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32());
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.unwrap();
        Frame { kind, flags, stream, payload: payload.into() }
    }

    async fn login(&mut self, stream: u32, header: &[u8], login: &str) {
        self.send(HEADERS, END_HEADERS, stream, header).await;
        let message = LoginRequest { username: login.into(), ..Default::default() }.encode_to_vec();
        let mut body = vec![0];
        body.put_u32(u32::try_from(message.len()).unwrap());
        body.extend(message);
        self.send(DATA, END_STREAM, stream, &body).await;
    }

    /// The reply to a call, or the error that its stream was reset with.
    async fn reply(&mut self, stream: u32) -> Result<LoginResponse, u32> {
        let mut body = Vec::new();
        loop {
            let mut frame = self.receive().await;
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                DATA => body.extend(frame.payload),
                RST_STREAM => return Err(frame.payload.get_u32()),
                _ if frame.flags & END_STREAM != 0 => {
                    return Ok(LoginResponse::decode(body.get(5..).unwrap()).unwrap());
                }
                _ => {}
            }
        }
    }
}

fn put(block: &mut Vec<u8>, string: &str) {
    block.push(u8::try_from(string.len()).unwrap());
    block.extend(string.as_bytes());
}

/// The header of a call to Login, of which the server is to remember three
/// lines: path, authority, content type.
fn header(authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x44];
    put(&mut block, "/services.auth.AuthService/Login");
    block.push(0x41);
    put(&mut block, authority);
    block.extend([0x5f]);
    put(&mut block, "application/grpc");
    block.push(0);
    put(&mut block, "te");
    put(&mut block, "trailers");
    block
}

/// The same with the three lines by number.
fn remembered() -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0xc0, 0xbf, 0xbe, 0];
    put(&mut block, "te");
    put(&mut block, "trailers");
    block
}

#[tokio::test]
async fn a_client_that_names_the_socket_or_nobody_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _guard) = on_unix(directory.path()).await;
    for authority in AUTHORITIES {
        let mut client = Raw::greet(UnixStream::connect(&path).await.unwrap()).await;
        client.login(1, &header(authority), "first").await;
        let reply = client.reply(1).await.expect(authority);
        assert_eq!(reply.account_id, "local first", "{authority}");
        client.login(3, &remembered(), "second").await;
        let reply = client.reply(3).await.expect(authority);
        assert_eq!(reply.account_id, "local second", "{authority}");
    }
}

/// Also shows that the test above can fail.
#[tokio::test]
async fn elsewhere_such_a_client_is_refused() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = socket.address().unwrap();
    let _guard = serve(socket, Trust::Everybody).await;
    let mut client = Raw::greet(TcpStream::connect(address).await.unwrap()).await;
    for (stream, authority) in [(1, AUTHORITIES[0]), (3, AUTHORITIES[1]), (5, AUTHORITIES[2])] {
        client.login(stream, &header(authority), "first").await;
        assert_eq!(client.reply(stream).await, Err(PROTOCOL_ERROR), "{authority}");
    }
    client.login(7, &header("localhost"), "first").await;
    assert_eq!(client.reply(7).await.unwrap().account_id, "insecure first");
}

#[tokio::test]
async fn a_header_that_cannot_be_read_ends_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _guard) = on_unix(directory.path()).await;
    let mut client = Raw::greet(UnixStream::connect(&path).await.unwrap()).await;
    client.send(HEADERS, END_HEADERS, 1, &[0x80]).await;
    let mut rest = Vec::new();
    // Ends, by a reset or not: what matters is that it does.
    let _ = client.0.read_to_end(&mut rest).await;
    // Others do not notice.
    let mut client = Raw::greet(UnixStream::connect(&path).await.unwrap()).await;
    client.login(1, &header(""), "next").await;
    assert_eq!(client.reply(1).await.unwrap().account_id, "local next");
}

#[tokio::test]
async fn a_client_that_does_it_right_is_none_the_wiser() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _guard) = on_unix(directory.path()).await;
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://edge.example:8443");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let calls = (0..200).map(|nth| {
        let mut client = AuthServiceClient::new(channel.clone());
        async move {
            // Beyond a frame, and beyond what the header table can hold.
            let login = "x".repeat(if nth % 10 == 0 { 100_000 } else { nth });
            let mut request =
                Request::new(LoginRequest { username: login.clone(), ..Default::default() });
            let metadata = request.metadata_mut();
            metadata.insert("x-number", nth.to_string().parse().unwrap());
            metadata.insert("x-long", "y".repeat(50 * (nth % 40)).parse().unwrap());
            let reply = client.login(request).await.unwrap().into_inner();
            assert!(reply.account_id == format!("local {login}"), "{nth}");
        }
    });
    futures::future::join_all(calls).await;
}
