//! A listener with services that misbehave: what they do to themselves they
//! do not do to others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{convert::Infallible, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use selvage_api::edgeproto::Metric;
use selvage_api::selvage::metrics::{
    ListSamplesRequest,
    metrics_service_client::MetricsServiceClient,
    metrics_service_server::{MetricsService, MetricsServiceServer},
};
use selvage_api::services::auth::{
    CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
    LogoutResponse,
    auth_service_client::AuthServiceClient,
    auth_service_server::{AuthService, AuthServiceServer},
};
use selvage_kit::{
    identity::{
        Authenticator, Credentials, Delegation, Form, Grant, Identity, Kind, Refused, Role,
    },
    serve::{Limits, Server, Services, Socket, SocketHandler, Trust, UNATTENDED, WebSocketPage},
    telemetry::Metrics,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, watch},
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, ServerReflectionResponse,
    server_reflection_client::ServerReflectionClient, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

/// Login says who is calling, or fails with many words, Logout panics, CheckToken takes its time.
struct Odd {
    arrived: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
}

#[tonic::async_trait]
impl AuthService for Odd {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let caller = request.extensions().get::<Identity>().unwrap();
        if request.get_ref().username == "long" {
            return Err(Status::not_found(format!("user {:?} not found", "é".repeat(500_000))));
        }
        Ok(Response::new(LoginResponse { account_id: caller.name.clone(), ..Default::default() }))
    }

    async fn logout(&self, _: Request<LogoutRequest>) -> Result<Response<LogoutResponse>, Status> {
        panic!("a defect");
    }

    async fn check_token(
        &self,
        _: Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        self.arrived.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
        Ok(Response::new(CheckTokenResponse { success: true }))
    }
}

/// Samples that never come.
#[tonic::async_trait]
impl MetricsService for Odd {
    type ListSamplesStream = futures::stream::Pending<Result<Metric, Status>>;

    async fn list_samples(
        &self,
        _: Request<ListSamplesRequest>,
    ) -> Result<Response<Self::ListSamplesStream>, Status> {
        Ok(Response::new(futures::stream::pending()))
    }
}

struct Running {
    /// Readiness of the process.
    ready: watch::Sender<Result<(), String>>,
    address: Option<SocketAddr>,
    metrics: Metrics,
    arrived: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

async fn start(limits: Limits, socket: Socket, trust: Trust) -> Running {
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let metrics = Metrics::new("test");
    let mut services = Services::default();
    let odd = Odd { arrived: arrived.clone(), go_on: go_on.clone() };
    let odd = Arc::new(odd);
    services.add(AuthServiceServer::from_arc(odd.clone()));
    services.add(MetricsServiceServer::from_arc(odd));
    let server = Server::new(services, metrics.clone(), limits).await.unwrap();
    let (ready, receiver) = watch::channel(Ok(()));
    let server = server.origins(vec!["https://portal.example".into()]).ready(receiver);
    // A page that listens for as long as it may.
    let page: WebSocketPage = Arc::new(|_, _| {
        let talk: SocketHandler = Box::new(|mut socket, attention| {
            Box::pin(async move {
                while socket.next().await.is_some() {
                    attention.note();
                }
            })
        });
        Ok(talk)
    });
    let server = server.web_socket("/talk", page);
    let address = socket.address();
    let stop = CancellationToken::new();
    let ended = tokio::spawn(server.run(socket, trust, stop.clone()));
    Running { ready, address, metrics, arrived, go_on, stop, ended }
}

async fn on_tcp(limits: Limits) -> Running {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    start(limits, socket, Trust::Everybody).await
}

impl Running {
    /// A web socket of somebody with a token.
    async fn talk(&self) -> tokio_tungstenite::WebSocketStream<TcpStream> {
        let address = self.address.unwrap();
        let mut request =
            tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(
                format!("ws://{address}/talk"),
            )
            .unwrap();
        request.headers_mut().insert("authorization", "Bearer token".parse().unwrap());
        let stream = TcpStream::connect(address).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await.unwrap().0
    }

    async fn channel(&self) -> Channel {
        let endpoint = format!("http://{}", self.address.unwrap());
        Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> AuthServiceClient<Channel> {
        AuthServiceClient::new(self.channel().await)
    }

    /// A call that is in the handler when this returns.
    async fn slow_call(&self) -> JoinHandle<Result<Response<CheckTokenResponse>, Status>> {
        let mut client = self.client().await;
        let call =
            tokio::spawn(async move { client.check_token(CheckTokenRequest::default()).await });
        self.arrived.acquire().await.unwrap().forget();
        call
    }

    async fn say(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address.unwrap()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        reply
    }
}

#[tokio::test]
async fn a_panic_stays_with_the_call_that_panicked() {
    let running = on_tcp(Limits::default()).await;
    let mut client = running.client().await;
    for _ in 0..3 {
        let status = client.logout(LogoutRequest {}).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("a defect"), "{status}");
    }
    assert_eq!(
        client.login(LoginRequest::default()).await.unwrap().into_inner().account_id,
        "insecure"
    );
    let counted = running.metrics.render();
    assert!(counted.contains("code=\"INTERNAL\"} 3"), "{counted}");
}

#[tokio::test]
async fn calls_above_the_limit_in_flight_are_refused() {
    let running = on_tcp(Limits { calls_in_flight: 1, ..Limits::default() }).await;
    let slow = running.slow_call().await;
    let mut client = running.client().await;
    let refused = client.login(LoginRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    running.go_on.add_permits(1);
    slow.await.unwrap().unwrap();
    client.login(LoginRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_call_in_flight_outlives_the_word_to_stop() {
    let running = on_tcp(Limits::default()).await;
    let slow = running.slow_call().await;
    running.stop.cancel();
    // The port is closed at once, the call goes on.
    let address = running.address.unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!slow.is_finished() && !running.ended.is_finished());
    running.go_on.add_permits(1);
    assert!(slow.await.unwrap().unwrap().into_inner().success);
    running.ended.await.unwrap();
}

#[tokio::test]
async fn a_call_that_never_ends_is_cut_after_the_drain_time() {
    let drain = Duration::from_millis(50);
    let running = on_tcp(Limits { drain, ..Limits::default() }).await;
    let slow = running.slow_call().await;
    running.stop.cancel();
    running.ended.await.unwrap();
    assert!(slow.await.unwrap().is_err());
}

async fn through_socket(path: &Path) -> AuthServiceClient<Channel> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://socket");
    AuthServiceClient::new(endpoint.connect_with_connector(connector).await.unwrap())
}

#[tokio::test]
async fn whoever_may_open_the_socket_may_call() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("part.sock");
    // What a process that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());

    let socket = Socket::unix(&path).await.unwrap();
    let running = start(Limits::default(), socket, Trust::Socket).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = through_socket(&path).await;
    let caller = client.login(LoginRequest::default()).await.unwrap().into_inner().account_id;
    assert_eq!(caller, "local");

    let second = Socket::unix(&path).await.err().unwrap();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    running.stop.cancel();
    drop(client);
    running.ended.await.unwrap();
    assert!(!path.exists(), "the socket goes with its listener");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("part.sock");
    std::fs::write(&path, "precious").unwrap();
    assert!(Socket::unix(&path).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn only_configured_origins_are_let_in() {
    let running = on_tcp(Limits::default()).await;
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /services.auth.AuthService/Login HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             origin: {origin}\r\naccess-control-request-method: POST\r\n\r\n"
        )
    };
    let reply = running.say(&preflight("https://portal.example")).await;
    assert!(reply.contains("access-control-allow-origin: https://portal.example"), "{reply}");
    let reply = running.say(&preflight("https://evil.example")).await;
    assert!(!reply.contains("access-control-allow-origin"), "{reply}");
}

#[tokio::test]
async fn methods_answer_under_api_too() {
    let running = on_tcp(Limits::default()).await;
    let reply = running
        .say(
            "POST /api/services.auth.AuthService/Login HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        )
        .await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"insecure\""), "{reply}");
}

#[tokio::test]
async fn every_reply_has_a_request_id_and_the_callers_own_where_it_is_plain() {
    let running = on_tcp(Limits::default()).await;
    let say = async |header: &str| {
        let request = format!(
            "POST /api/services.auth.AuthService/Login HTTP/1.1\r\nhost: localhost\r\n\
             connection: close\r\n{header}content-type: application/json\r\n\
             content-length: 2\r\n\r\n{{}}"
        );
        let reply = running.say(&request).await;
        let id = reply.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        id.unwrap_or_else(|| panic!("{reply}")).to_owned()
    };
    assert_eq!(say("").await.len(), 16);
    assert_ne!(say("").await, say("").await);
    assert_eq!(say("x-request-id: build-17\r\n").await, "build-17");
    assert_ne!(say("x-request-id: a b\r\n").await, "a b");
    // A failure is what people report.
    let request = LoginRequest { username: "long".into(), ..Default::default() };
    let refused = running.client().await.login(request).await.unwrap_err();
    assert!(refused.metadata().get("x-request-id").is_some(), "{refused:?}");
}

/// Knows nobody.
struct Nobody;

#[async_trait::async_trait]
impl Authenticator for Nobody {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        Err(Refused { code: selvage_api::Code::Unauthenticated, message: "invalid token".into() })
    }
}

/// Log lines of this thread.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn refusals(&self) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches("audit: refused").count()
    }
}

/// A visit to the login page asks for a session, without credentials.
#[tokio::test]
async fn refusals_are_audited_except_who_am_i_without_credentials() {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(lines.finish());
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let trust = Trust::Credentials(Arc::new(Nobody));
    let running = start(Limits::default(), socket, trust).await;
    let refuse = async |path: &str, credentials: &str| {
        let mut stream = TcpStream::connect(running.address.unwrap()).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc\r\n\
             sec-fetch-site: same-origin\r\n{credentials}content-length: 5\r\n\r\n\0\0\0\0\0"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut reply = vec![0; 4096];
        let length = stream.read(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
        assert!(reply.contains("grpc-status: 16"), "{reply}");
        log.refusals()
    };
    let who_am_i = "/selvage.identity.IdentityService/WhoAmI";
    assert_eq!(refuse(who_am_i, "").await, 0);
    assert_eq!(refuse(who_am_i, "authorization: Bearer stolen\r\n").await, 1);
    assert_eq!(refuse(who_am_i, "cookie: __Host-sid=stolen\r\n").await, 2);
    assert_eq!(refuse("/edgeproto.AppApi/ShowApp", "").await, 3);
    running.stop.cancel();
}

#[tokio::test]
async fn those_whom_no_message_could_let_in_need_not_send_one() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { calls_in_flight: 1, ..Limits::default() };
    let running = start(limits, socket, Trust::Credentials(Arc::new(Nobody))).await;
    // Announced, and never sent.
    let head = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc\r\n\
             content-length: 100\r\n\r\n"
        )
    };
    let mut stream = TcpStream::connect(running.address.unwrap()).await.unwrap();
    stream.write_all(head("/edgeproto.AppApi/CreateApp").as_bytes()).await.unwrap();
    let mut reply = vec![0; 4096];
    let length = stream.read(&mut reply).await.unwrap();
    let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
    assert!(reply.contains("grpc-status: 16"), "{reply}");

    // Where anybody may call, a message on its way takes nobody's room.
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(running.address.unwrap()).await.unwrap();
        let login = head("/services.auth.AuthService/Login");
        stream.write_all(login.as_bytes()).await.unwrap();
        waiting.push(stream);
    }
    running.client().await.login(LoginRequest::default()).await.unwrap();
}

/// Knows somebody until told otherwise.
struct UntilRevoked(watch::Receiver<Option<selvage_api::Code>>);

#[async_trait::async_trait]
impl Authenticator for UntilRevoked {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        match *self.0.borrow() {
            None => {
                let kind = Kind::User { session: "s".into(), expires: i64::MAX };
                Ok(Identity::all_powerful("anna", kind))
            }
            Some(code) => Err(Refused { code, message: "the session has ended".into() }),
        }
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_right_to_it() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let (tell, receiver) = watch::channel(None);
    let trust = Trust::Credentials(Arc::new(UntilRevoked(receiver)));
    let running = start(limits, socket, trust).await;
    let mut client = MetricsServiceClient::new(running.channel().await);
    let mut request = Request::new(ListSamplesRequest::default());
    request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
    let mut samples = client.list_samples(request).await.unwrap().into_inner();
    let ended = tokio::spawn(async move { samples.message().await.unwrap_err() });
    // That nobody can be asked is no reason to end it.
    tell.send_replace(Some(selvage_api::Code::Unavailable));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!ended.is_finished());
    tell.send_replace(Some(selvage_api::Code::Unauthenticated));
    let status = tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap().unwrap();
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "the session has ended"));
}

/// Knows somebody with these roles, by what was handed to a program.
struct WithRoles(watch::Receiver<Vec<Grant>>);

#[async_trait::async_trait]
impl Authenticator for WithRoles {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        let limits = Delegation {
            form: Form::Token,
            id: "t".into(),
            expires: i64::MAX,
            methods: Vec::new(),
        };
        let (kind, grants) = (Kind::Delegate(Arc::new(limits)), self.0.borrow().clone());
        Ok(Identity { name: "anna/t".into(), kind, grants })
    }
}

#[tokio::test]
async fn one_role_of_two_is_not_enough_to_go_on() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let [acme, bmce, viewer] =
        [(Role::Developer, "acme"), (Role::Developer, "bmce"), (Role::Viewer, "")]
            .map(|(role, organisation)| Grant { role, organisation: organisation.into() });
    let (tell, receiver) = watch::channel(vec![acme.clone(), bmce.clone(), viewer.clone()]);
    let running = start(limits, socket, Trust::Credentials(Arc::new(WithRoles(receiver)))).await;
    let mut client = MetricsServiceClient::new(running.channel().await);
    let mut request = Request::new(ListSamplesRequest::default());
    request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
    let mut samples = client.list_samples(request).await.unwrap().into_inner();
    let mut talking = running.talk().await;
    let stream = tokio::spawn(async move { samples.message().await.unwrap_err() });
    let talk = tokio::spawn(async move { while let Some(Ok(_)) = talking.next().await {} });
    // In another order, and with one more, they are still held.
    let more = Grant { role: Role::Operator, organisation: "tmus".into() };
    tell.send_replace(vec![viewer.clone(), more, bmce.clone(), acme]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!stream.is_finished() && !talk.is_finished());
    tell.send_replace(vec![bmce, viewer]);
    let status = tokio::time::timeout(Duration::from_secs(60), stream).await.unwrap().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains("taken away"), "{status}");
    tokio::time::timeout(Duration::from_secs(60), talk).await.unwrap().unwrap();
}

/// Counts uses, and how often it was looked whether the right is left.
#[derive(Default)]
struct Counting {
    uses: watch::Sender<usize>,
    rechecks: watch::Sender<usize>,
}

#[async_trait::async_trait]
impl Authenticator for Counting {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        self.uses.send_modify(|uses| *uses += 1);
        let kind = Kind::User { session: "s".into(), expires: i64::MAX };
        Ok(Identity::all_powerful("anna", kind))
    }

    async fn recheck(&self, _: &Credentials) -> Result<Identity, Refused> {
        self.rechecks.send_modify(|rechecks| *rechecks += 1);
        let kind = Kind::User { session: "s".into(), expires: i64::MAX };
        Ok(Identity::all_powerful("anna", kind))
    }
}

#[tokio::test]
async fn a_stream_that_is_open_is_no_use_of_a_session() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let counting = Arc::new(Counting::default());
    let (uses, mut rechecks) = (counting.uses.subscribe(), counting.rechecks.subscribe());
    let running = start(limits, socket, Trust::Credentials(counting)).await;
    let mut client = MetricsServiceClient::new(running.channel().await);
    let mut request = Request::new(ListSamplesRequest::default());
    request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
    let samples = client.list_samples(request).await.unwrap();
    rechecks.wait_for(|rechecks| *rechecks >= 3).await.unwrap();
    assert_eq!(*uses.borrow(), 1, "the call that opened it");
    drop(samples);

    // A program that says that nobody looks is believed.
    let mut request = Request::new(ListSamplesRequest::default());
    request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
    request.metadata_mut().insert(UNATTENDED, "1".parse().unwrap());
    let _samples = client.list_samples(request).await.unwrap();
    assert_eq!(*uses.borrow(), 1);
}

#[tokio::test]
async fn what_is_said_on_a_web_socket_is_a_use_of_the_session() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let counting = Arc::new(Counting::default());
    let (mut uses, mut rechecks) = (counting.uses.subscribe(), counting.rechecks.subscribe());
    let running = start(limits, socket, Trust::Credentials(counting)).await;
    let mut talking = running.talk().await;
    let opened = *uses.borrow();
    rechecks.wait_for(|rechecks| *rechecks >= 3).await.unwrap();
    assert_eq!(*uses.borrow(), opened, "what opened it and nothing since");
    talking.send(tokio_tungstenite::tungstenite::Message::text("ls")).await.unwrap();
    uses.wait_for(|uses| *uses > opened).await.unwrap();
}

#[tokio::test]
async fn a_web_socket_ends_with_the_right_to_it() {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let limits = Limits { recheck: Duration::from_millis(20), ..Limits::default() };
    let (tell, receiver) = watch::channel(None);
    let running = start(limits, socket, Trust::Credentials(Arc::new(UntilRevoked(receiver)))).await;
    let mut talking = running.talk().await;
    let ended = tokio::spawn(async move { while let Some(Ok(_)) = talking.next().await {} });
    tell.send_replace(Some(selvage_api::Code::Unauthenticated));
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn watching_health_leaves_room_for_others() {
    let running = on_tcp(Limits { streams_in_flight: 4, ..Limits::default() }).await;
    let mut watches = Vec::new();
    let mut refused = 0;
    for connection in 0..2 {
        let mut health = HealthClient::new(running.channel().await);
        for _ in 0..200 {
            match health.watch(HealthCheckRequest::default()).await {
                Ok(watch) => watches.push(watch),
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{connection}");
                    refused += 1;
                }
            }
        }
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    // Not even all that strangers have together: another address has its own.
    assert!(refused > 0 && watches.len() == 32, "{} open, {refused} refused", watches.len());
    running.client().await.login(LoginRequest::default()).await.unwrap();
}

#[tokio::test]
async fn health_tells_what_readiness_tells() {
    let running = on_tcp(Limits::default()).await;
    let mut health = HealthClient::new(running.channel().await);
    let mut receiver = Vec::new();
    for service in ["", "services.auth.AuthService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut watching = health.watch(request).await.unwrap().into_inner();
        let first = watching.message().await.unwrap().unwrap().status();
        assert_eq!(first, ServingStatus::Serving, "{service}");
        receiver.push(watching);
    }
    running.ready.send(Err("the disk is full".to_owned())).unwrap();
    for watching in &mut receiver {
        let next = watching.message().await.unwrap().unwrap().status();
        assert_eq!(next, ServingStatus::NotServing);
    }
    let reply = running
        .say("GET /readiness HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await;
    assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("disk is full"), "{reply}");
    running.ready.send(Ok(())).unwrap();
    for watching in &mut receiver {
        let next = watching.message().await.unwrap().unwrap().status();
        assert_eq!(next, ServingStatus::Serving);
    }
}

#[tokio::test]
async fn reflection_goes_on_after_a_question_without_an_answer() {
    let running = on_tcp(Limits::default()).await;
    let mut reflection = ServerReflectionClient::new(running.channel().await);
    let ask = |symbol: &str| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
    };
    let questions = [ask("no.such.Thing"), ask("services.auth.AuthService")];
    let asked = reflection.server_reflection_info(futures::stream::iter(questions)).await;
    let mut answers = asked.unwrap().into_inner();
    let mut next = async || answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ErrorResponse(error) = next().await else { panic!("no error") };
    assert_eq!(error.error_code, Code::NotFound as i32);
    assert!(matches!(next().await, MessageResponse::FileDescriptorResponse(_)));
    assert!(answers.message().await.unwrap().is_none());
}

/// As `buf curl` asks: by the protocol of its call, the answer to one question
/// before the next.
#[tokio::test]
async fn reflection_speaks_connect() {
    let running = on_tcp(Limits::default()).await;
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let (questions, mut answers) = connect_stream(&running, &path).await;
        for (symbol, known) in [
            ("no.such.Thing", false),
            ("services.auth.AuthService", true),
            ("edgeproto.Metric", true),
            ("edgeproto.VersionHash", true),
        ] {
            let question = ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
            };
            questions.send(enveloped(&question.encode_to_vec())).await.unwrap();
            let (flags, answer) = next_envelope(&mut answers).await;
            let answer = ServerReflectionResponse::decode(answer.as_slice()).unwrap();
            let found = answer.message_response.unwrap();
            assert_eq!(flags, 0);
            assert_eq!(matches!(found, MessageResponse::FileDescriptorResponse(_)), known);
        }
        drop(questions);
        assert_eq!(next_envelope(&mut answers).await, (2, b"{}".to_vec()), "the end");
    }
}

type Pieces = tokio::sync::mpsc::Sender<Bytes>;

/// Opens a stream of the Connect protocol, both directions at once.
async fn connect_stream(running: &Running, path: &str) -> (Pieces, hyper::body::Incoming) {
    let address = running.address.unwrap();
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut requests, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let (pieces, sent) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = ReceiverStream::new(sent).map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let request = http::Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/connect+proto")
        .header("connect-protocol-version", "1")
        .body(StreamBody::new(frames))
        .unwrap();
    let answer = requests.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/connect+proto");
    (pieces, answer.into_body())
}

fn enveloped(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

/// Flags and content of the next envelope.
async fn next_envelope(body: &mut hyper::body::Incoming) -> (u8, Vec<u8>) {
    let mut read = Vec::new();
    loop {
        if let Some((head, rest)) = read.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            if rest.len() == length {
                return (head[0], rest.to_vec());
            }
        }
        let frame = body.frame().await.expect("an envelope").unwrap();
        read.extend_from_slice(&frame.into_data().unwrap());
    }
}

#[tokio::test]
async fn web_text_may_come_in_pieces_with_padding() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let running = on_tcp(Limits::default()).await;
    let pieces = [&[0u8][..], &[0, 0, 0], &[0]];
    let body: String = pieces.iter().map(|piece| BASE64_STANDARD.encode(piece)).collect();
    for content_type in ["application/grpc-web-text", "application/grpc-web-text; charset=utf-8"] {
        let request = format!(
            "POST /services.auth.AuthService/Login HTTP/1.1\r\nhost: localhost\r\n\
             connection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let reply = running.say(&request).await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        assert!(reply.contains("content-type: application/grpc-web-text+proto"), "{reply}");
        let status = BASE64_STANDARD.encode(b"\x80\0\0\0\x0fgrpc-status:0\r\n");
        assert!(reply.contains(&status), "{reply}");
    }
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_gets_a_timeout() {
    let limits = Limits { body_timeout: Duration::from_millis(50), ..Limits::default() };
    let running = on_tcp(limits).await;
    let reply = running
        .say(
            "POST /services.auth.AuthService/Login HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        )
        .await;
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("too slowly"), "{reply}");
}

/// A client would otherwise be told of headers that are too large, and not
/// what went wrong.
#[tokio::test]
async fn a_failure_with_a_megabyte_of_text_reaches_the_client_in_brief() {
    let running = on_tcp(Limits::default()).await;
    let request = LoginRequest { username: "long".into(), ..Default::default() };
    let refused = running.client().await.login(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let text = refused.message();
    assert!(text.starts_with("user \"éé") && text.ends_with("éé\" not found"), "{text}");
    assert!(text.contains("é…é") && text.len() < 4096, "{text}");
}
