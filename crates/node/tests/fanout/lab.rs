//! Agents in this process, over real TLS, that answer as the test wants.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use selvage_api::{
    machine::{LogsRequest, ServiceInfo},
    time::{
        Time, TimeRequest, TimeResponse,
        time_service_server::{TimeService, TimeServiceServer},
    },
};
use selvage_kit::{
    assertion,
    identity::{Authenticator, Credentials, Grant, Identity, Kind, Machine, Refused, Role, Secret},
    pki::{self, Ca, KeyRequest, RotatingIdentity, ServerIdentity},
    serve::{Limits, Server, Services, Socket, Trust},
    telemetry::Metrics,
};
use selvage_node::{
    fanout::{AssertionSource, Fanout},
    machine::{self, LogPieces, LogSource, MachineApi, Operation, Supervisor},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};

/// Behaviour of an agent that is asked for the time.
#[derive(Debug, Clone)]
pub(crate) enum Manner {
    /// Tells this name, and who asked.
    Answers(String),
    /// Never answers.
    Hangs,
    /// Fails.
    Fails,
    /// Answers without a message, as the original does for some methods.
    Empty,
}

struct Teller(Manner);

#[tonic::async_trait]
impl TimeService for Teller {
    async fn time(&self, request: Request<()>) -> Result<Response<TimeResponse>, Status> {
        let caller = request.extensions().get::<Identity>().cloned().unwrap();
        let grants: Vec<_> = caller.grants.iter().map(|grant| grant.role.name()).collect();
        let server = match &self.0 {
            Manner::Answers(name) => format!("{name} to {} {}", caller.name, grants.join(",")),
            Manner::Hangs => std::future::pending().await,
            Manner::Fails => return Err(Status::unavailable("x")),
            Manner::Empty => return Ok(Response::new(TimeResponse::default())),
        };
        let messages = vec![Time { server, ..Time::default() }];
        Ok(Response::new(TimeResponse { messages }))
    }

    async fn time_check(&self, _: Request<TimeRequest>) -> Result<Response<TimeResponse>, Status> {
        Err(Status::unimplemented("not in this laboratory"))
    }
}

struct NoServices;

#[async_trait]
impl Supervisor for NoServices {
    fn services(&self) -> Vec<ServiceInfo> {
        Vec::new()
    }

    async fn operate(&self, id: &str, _: Operation) -> Result<(), machine::Error> {
        Err(machine::Error::NoService { id: id.into() })
    }
}

/// Every log has the same ten lines, torn anywhere.
struct TenLines;

#[async_trait]
impl LogSource for TenLines {
    async fn open(&self, _: &LogsRequest) -> Result<LogPieces, Status> {
        let text: String = (0..10).map(|n| format!("line {n}\n")).collect();
        let pieces: Vec<_> =
            text.as_bytes().chunks(5).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        Ok(futures::stream::iter(pieces).boxed())
    }
}

/// Tokens are the names of roles. What a controller signed is believed, as a
/// machine that joined believes it.
struct ByRole {
    machine: Machine,
    trust: pki::Trust,
}

#[async_trait]
impl Authenticator for ByRole {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        let token = match credentials {
            Credentials::Bearer(token) => token,
            Credentials::Assertion(shown) => {
                let (by, to, method) = (&shown.by, &self.machine, shown.method.as_str());
                let call = assertion::Call { by, to, method };
                let now = jiff::Timestamp::now();
                let verified = assertion::verify(shown.text.expose(), &self.trust, &call, now)?;
                return Ok(verified.caller()?);
            }
            other => panic!("{other:?}"),
        };
        let role = Role::parse(token.expose()).ok_or_else(|| Refused {
            code: selvage_api::Code::Unauthenticated,
            message: "bad token".into(),
        })?;
        Ok(Identity {
            name: format!("some {role}"),
            kind: Kind::User { session: "s".into(), expires: i64::MAX },
            grants: vec![Grant { role, organisation: String::new() }],
        })
    }
}

/// A controller that vouches for whoever shows a token to a node.
pub(crate) struct Vouches {
    pub(crate) signer: assertion::Signer,
    pub(crate) by: Machine,
}

#[async_trait]
impl AssertionSource for Vouches {
    async fn assertions(
        &self,
        caller: &Identity,
        token: Option<Secret>,
        method: &str,
        machines: Vec<String>,
    ) -> Result<Vec<(String, String)>, Status> {
        token.ok_or_else(|| Status::permission_denied("no token"))?;
        let sign = |machine: String| {
            let to = Machine::parse(&machine).unwrap();
            let call = assertion::Call { by: &self.by, to: &to, method };
            let signed = self.signer.sign(caller, &call, jiff::Timestamp::now());
            (machine, signed.unwrap())
        };
        Ok(machines.into_iter().map(sign).collect())
    }
}

/// A CA, and what is made with it.
pub(crate) struct Lab {
    pub(crate) ca: Arc<Ca>,
    server: Arc<rustls::ServerConfig>,
    place: tempfile::TempDir,
}

/// An agent that runs as long as this is held.
pub(crate) struct Agent {
    pub(crate) address: SocketAddr,
    _stop: DropGuard,
}

impl Agent {
    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let ca = Arc::new(Ca::open_or_create(&place.path().join("pki")).unwrap());
        let names = ["127.0.0.1", "::1", "localhost"].map(str::to_owned).to_vec();
        let identity = ServerIdentity::issued(Arc::clone(&ca), names).unwrap();
        let server = pki::server_config(&identity, &ca).unwrap();
        Self { ca, server, place }
    }

    pub(crate) async fn agent(&self, manner: Manner) -> Agent {
        self.serve(manner, "127.0.0.1:0", None, Vec::new()).await
    }

    /// An agent of the machine `node/NAME`.
    pub(crate) async fn named(&self, name: &str, manner: Manner) -> Agent {
        self.listen_as(server(manner, Vec::new()).await, "127.0.0.1:0", name)
    }

    /// Signs as this machine.
    pub(crate) fn signer(&self, machine: &str) -> assertion::Signer {
        let request = KeyRequest::new().unwrap();
        let named = Machine::parse(machine).unwrap();
        let signed = self.ca.sign_machine(request.csr_pem(), &named).unwrap();
        assertion::Signer::new(&request, &signed.certificate_pem).unwrap()
    }

    /// Vouches for callers at this machine.
    pub(crate) fn vouches(&self, machine: &str) -> Arc<Vouches> {
        let by = Machine::parse(machine).unwrap();
        Arc::new(Vouches { signer: self.signer("controller"), by })
    }

    /// An agent that is also an entry.
    pub(crate) async fn entry(&self, relay: Fanout) -> Agent {
        self.serve(Manner::Answers("entry".into()), "127.0.0.1:0", Some(relay), Vec::new()).await
    }

    pub(crate) async fn serve(
        &self,
        manner: Manner,
        address: &str,
        relay: Option<Fanout>,
        roots: Vec<PathBuf>,
    ) -> Agent {
        let mut server = server(manner, roots).await;
        if let Some(relay) = relay {
            server = server.relay(Arc::new(relay));
        }
        self.listen(server, address)
    }

    /// So many agents, of which every tenth says the same: `n0` to `n9`.
    pub(crate) async fn agents(&self, count: usize) -> Vec<Agent> {
        let mut servers = Vec::new();
        for number in 0..count.min(10) {
            servers.push(server(Manner::Answers(format!("n{number}")), Vec::new()).await);
        }
        let repeated = servers.iter().cycle().take(count);
        repeated.map(|server| self.listen(server.clone(), "127.0.0.1:0")).collect()
    }

    fn listen(&self, server: Server, address: &str) -> Agent {
        self.listen_as(server, address, "agent")
    }

    fn listen_as(&self, server: Server, address: &str, name: &str) -> Agent {
        let machine = Machine::Node { name: name.to_owned() };
        let trust = pki::Trust::of(self.ca.pem()).unwrap();
        let callers = Arc::new(ByRole { machine, trust });
        let tls = Some(Arc::clone(&self.server));
        let socket = Socket::tcp(address.parse().unwrap(), tls).unwrap();
        let address = socket.address().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.run(socket, Trust::Credentials(callers), stop.clone()));
        Agent { address, _stop: stop.drop_guard() }
    }

    /// Credentials of a process that is this machine.
    pub(crate) fn shown_by(&self, machine: &str) -> Arc<rustls::ClientConfig> {
        let request = KeyRequest::new().unwrap();
        let named = Machine::parse(machine).unwrap();
        let signed = self.ca.sign_machine(request.csr_pem(), &named).unwrap();
        let path = self.place.path().join(machine.replace('/', "-"));
        let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem).unwrap();
        Arc::new(pki::client_config(self.ca.pem(), Some(&identity)).unwrap())
    }

    /// Credentials of a caller without a certificate.
    pub(crate) fn shown_by_nobody(&self) -> Arc<rustls::ClientConfig> {
        Arc::new(pki::client_config(self.ca.pem(), None).unwrap())
    }
}

async fn server(manner: Manner, roots: Vec<PathBuf>) -> Server {
    let mut services = Services::default();
    services.add(TimeServiceServer::new(Teller(manner)));
    let settings = machine::Settings {
        roots,
        protected: Vec::new(),
        kubeconfig: machine::KUBECONFIG.into(),
        services: Arc::new(NoServices),
        logs: Arc::new(TenLines),
        power: None,
    };
    services.add(MachineApi::new(settings).service());
    Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap()
}

pub(crate) async fn tls(
    config: Arc<rustls::ClientConfig>,
    address: SocketAddr,
) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(address.ip().to_string()).unwrap();
    TlsConnector::from(config).connect(name, stream).await.unwrap()
}

pub(crate) async fn channel(config: Arc<rustls::ClientConfig>, agent: &Agent) -> Channel {
    let address = agent.address;
    let connector = tower::service_fn(move |_: http::Uri| {
        let config = Arc::clone(&config);
        async move { Ok::<_, std::io::Error>(TokioIo::new(tls(config, address).await)) }
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// A request with these headers, of somebody with this role.
pub(crate) fn request<T>(message: T, role: &str, headers: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    if !role.is_empty() {
        metadata.insert("authorization", format!("Bearer {role}").parse().unwrap());
    }
    for (name, value) in headers {
        metadata.append(*name, value.parse().unwrap());
    }
    request
}
