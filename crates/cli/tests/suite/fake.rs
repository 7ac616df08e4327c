//! A server that answers the contracts as simply as it can.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use futures::{Stream, StreamExt};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
};
use selvage_api::{
    edgeproto::{
        Flavor, FlavorKey, Notice, Result as EdgeResult,
        flavor_api_server::{FlavorApi, FlavorApiServer},
        notify_api_server::{NotifyApi, NotifyApiServer},
    },
    selvage::{identity::*, system::*},
    services::auth::{
        CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse,
        auth_service_server::{AuthService, AuthServiceServer},
    },
};
use sha2::{Digest, Sha256};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming, service::Routes, transport::Server};

use selvage_api::selvage::{
    identity::identity_service_server::{IdentityService, IdentityServiceServer},
    system::system_service_server::{SystemService, SystemServiceServer},
};

pub(crate) const PASSWORD: &str = "correct horse";
pub(crate) const TOKEN: &str = "token-canary-1";
pub(crate) const API_TOKEN: &str = "slvt_canary-1";
pub(crate) const JOIN_TOKEN: &str = "join-canary-1";

/// A CA and what it signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    pub(crate) sha256: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem(),
            sha256: hex::encode(Sha256::digest(certificate.der())),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for the key of a request, or for another key.
    fn sign(&self, csr: &str, swaps_keys: bool) -> String {
        let certificate = if swaps_keys {
            let key = KeyPair::generate().unwrap();
            CertificateParams::default().signed_by(&key, &self.issuer).unwrap()
        } else {
            let request = CertificateSigningRequestParams::from_pem(csr).unwrap();
            request.signed_by(&self.issuer).unwrap()
        };
        certificate.pem()
    }

    /// A server's chain, the CA in it, and key.
    fn server(&self, name: &str) -> tonic::transport::Identity {
        let names = vec![name.to_owned()];
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let chain = format!("{}{}", leaf.pem(), self.pem);
        tonic::transport::Identity::from_pem(chain, key.serialize_pem())
    }
}

/// State of the server, and the calls that it got.
#[derive(Default)]
pub(crate) struct ServerState {
    /// Everybody is let in.
    pub(crate) open: bool,
    /// Signs certificates for another key than the one asked for.
    pub(crate) swaps_keys: bool,
    /// The name in the certificate, if it is another than the address.
    pub(crate) name: Option<String>,
    pub(crate) authority: Option<Arc<Authority>>,
    pub(crate) users: Mutex<BTreeMap<String, User>>,
    pub(crate) blocked: Mutex<BTreeMap<String, BlockedMachine>>,
    pub(crate) credentials: Mutex<Vec<Credential>>,
    pub(crate) providers: Mutex<Vec<LoginProvider>>,
    /// Verifier of the last login through a browser.
    pub(crate) verifier: Mutex<String>,
    /// Passwords set, by name; empty name for one's own.
    pub(crate) passwords: Mutex<Vec<SetPasswordRequest>>,
    /// Metadata of the last call to ShowFlavor.
    pub(crate) metadata: Mutex<tonic::metadata::MetadataMap>,
    /// Notices whose stream ended in order.
    pub(crate) completed: Mutex<Vec<usize>>,
    pub(crate) logged_out: Mutex<bool>,
}

impl ServerState {
    /// Remembers a token or certificate.
    fn credential(
        &self,
        kind: &str,
        name: String,
        grants: Vec<Grant>,
        methods: Vec<String>,
    ) -> Credential {
        let mut all = self.credentials.lock().unwrap();
        let made = Credential {
            id: format!("id-{}", all.len()),
            kind: kind.into(),
            name,
            username: "admin".into(),
            grants,
            methods,
            expires: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
            ..Credential::default()
        };
        all.push(made.clone());
        made
    }
}

#[derive(Clone)]
struct Fake(Arc<ServerState>);

impl Fake {
    #[allow(clippy::result_large_err)]
    fn caller<T>(&self, request: &Request<T>) -> Result<WhoAmIResponse, Status> {
        let who = |name: &str, kind: &str| WhoAmIResponse {
            name: name.into(),
            kind: kind.into(),
            grants: vec![Grant { role: "admin".into(), organisation: String::new() }],
            ..Default::default()
        };
        if request.peer_certs().is_some_and(|certificates| !certificates.is_empty()) {
            return Ok(who("node/rack3-7", "machine"));
        }
        let token = request.metadata().get("authorization").and_then(|v| v.to_str().ok());
        if token == Some(&format!("Bearer {TOKEN}")) && !*self.0.logged_out.lock().unwrap() {
            return Ok(who("admin", "user"));
        }
        if self.0.open {
            return Ok(who("everybody", "insecure"));
        }
        Err(Status::unauthenticated("no session goes with these credentials"))
    }
}

#[tonic::async_trait]
impl AuthService for Fake {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let request = request.into_inner();
        if request.username != "admin" || request.password != PASSWORD {
            return Err(Status::unauthenticated("wrong name or password"));
        }
        *self.0.logged_out.lock().unwrap() = false;
        let expires = prost_types::Timestamp { seconds: 4_000_000_000, nanos: 0 };
        Ok(Response::new(LoginResponse {
            token: TOKEN.into(),
            expires: Some(selvage_api::resources::timestamp::Timestamp {
                timestamp: Some(expires),
            }),
            account_id: "admin".into(),
        }))
    }

    async fn logout(
        &self,
        request: Request<LogoutRequest>,
    ) -> Result<Response<LogoutResponse>, Status> {
        self.caller(&request)?;
        *self.0.logged_out.lock().unwrap() = true;
        Ok(Response::new(LogoutResponse { success: true }))
    }

    async fn check_token(
        &self,
        _: Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

#[tonic::async_trait]
impl IdentityService for Fake {
    type WatchBlockedMachinesStream =
        futures::stream::BoxStream<'static, Result<WatchBlockedMachinesResponse, Status>>;

    async fn who_am_i(
        &self,
        request: Request<WhoAmIRequest>,
    ) -> Result<Response<WhoAmIResponse>, Status> {
        self.caller(&request).map(Response::new)
    }

    async fn add_user(
        &self,
        request: Request<AddUserRequest>,
    ) -> Result<Response<AddUserResponse>, Status> {
        self.caller(&request)?;
        let AddUserRequest { user, password } = request.into_inner();
        let user = user.unwrap();
        let mut users = self.0.users.lock().unwrap();
        if users.insert(user.username.clone(), user.clone()).is_some() {
            return Err(Status::already_exists(format!("user {} is there already", user.username)));
        }
        let generated_password =
            if password.is_empty() { "generated-1".into() } else { String::new() };
        Ok(Response::new(AddUserResponse { user: Some(user), generated_password }))
    }

    async fn list_users(
        &self,
        request: Request<ListUsersRequest>,
    ) -> Result<Response<ListUsersResponse>, Status> {
        self.caller(&request)?;
        let users = self.0.users.lock().unwrap().values().cloned().collect();
        Ok(Response::new(ListUsersResponse { users }))
    }

    async fn update_user(
        &self,
        request: Request<UpdateUserRequest>,
    ) -> Result<Response<UpdateUserResponse>, Status> {
        self.caller(&request)?;
        let UpdateUserRequest { username, grants, disabled } = request.into_inner();
        let mut users = self.0.users.lock().unwrap();
        let user = users.get_mut(&username).ok_or(Status::not_found("no such user"))?;
        (user.grants, user.disabled) = (grants, disabled);
        Ok(Response::new(UpdateUserResponse { user: Some(user.clone()) }))
    }

    /// A name like `code:5` is answered with that code; `hang` never is.
    async fn remove_user(
        &self,
        request: Request<RemoveUserRequest>,
    ) -> Result<Response<RemoveUserResponse>, Status> {
        let name = request.into_inner().username;
        if let Some(code) = name.strip_prefix("code:") {
            let code = code.parse::<i32>().unwrap();
            return Err(Status::new(code.into(), format!("refused with {code}")));
        }
        if name == "hang" {
            std::future::pending::<()>().await;
        }
        match self.0.users.lock().unwrap().remove(&name) {
            Some(_) => Ok(Response::new(RemoveUserResponse {})),
            None => Err(Status::not_found(format!("there is no user {name}"))),
        }
    }

    async fn set_password(
        &self,
        request: Request<SetPasswordRequest>,
    ) -> Result<Response<SetPasswordResponse>, Status> {
        self.caller(&request)?;
        self.0.passwords.lock().unwrap().push(request.into_inner());
        Ok(Response::new(SetPasswordResponse { sessions_ended: 2 }))
    }

    async fn list_sessions(
        &self,
        _: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn revoke_session(
        &self,
        _: Request<RevokeSessionRequest>,
    ) -> Result<Response<RevokeSessionResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_login_providers(
        &self,
        _: Request<ListLoginProvidersRequest>,
    ) -> Result<Response<ListLoginProvidersResponse>, Status> {
        let providers = self.0.providers.lock().unwrap().clone();
        Ok(Response::new(ListLoginProvidersResponse { providers, password: true }))
    }

    async fn finish_login(
        &self,
        request: Request<FinishLoginRequest>,
    ) -> Result<Response<FinishLoginResponse>, Status> {
        let FinishLoginRequest { code, verifier } = request.into_inner();
        if code != "code-canary-1" || verifier.len() != 43 {
            return Err(Status::unauthenticated("code: not one of a login that waits here"));
        }
        *self.0.verifier.lock().unwrap() = verifier;
        Ok(Response::new(FinishLoginResponse {
            token: TOKEN.into(),
            expires: Some(prost_types::Timestamp { seconds: 4_000_000_000, nanos: 0 }),
            username: "anna".into(),
        }))
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenResponse>, Status> {
        self.caller(&request)?;
        let CreateTokenRequest { name, username, grants, methods, ttl_seconds } =
            request.into_inner();
        assert_eq!((username.as_str(), ttl_seconds), ("", 7200));
        let credential = self.0.credential("token", name, grants, methods);
        Ok(Response::new(CreateTokenResponse {
            credential: Some(credential),
            token: API_TOKEN.into(),
        }))
    }

    async fn create_certificate(
        &self,
        request: Request<CreateCertificateRequest>,
    ) -> Result<Response<CreateCertificateResponse>, Status> {
        self.caller(&request)?;
        let CreateCertificateRequest { name, grants, csr, .. } = request.into_inner();
        let ca = self.0.authority.as_ref().unwrap();
        let certificate = ca.sign(&csr, self.0.swaps_keys);
        let credential = Some(self.0.credential("certificate", name, grants, Vec::new()));
        let ca = ca.pem.clone();
        Ok(Response::new(CreateCertificateResponse { credential, certificate, ca }))
    }

    async fn list_credentials(
        &self,
        request: Request<ListCredentialsRequest>,
    ) -> Result<Response<ListCredentialsResponse>, Status> {
        self.caller(&request)?;
        let credentials = self.0.credentials.lock().unwrap().clone();
        Ok(Response::new(ListCredentialsResponse { credentials }))
    }

    async fn delete_credential(
        &self,
        request: Request<DeleteCredentialRequest>,
    ) -> Result<Response<DeleteCredentialResponse>, Status> {
        let id = request.into_inner().id;
        self.0.credentials.lock().unwrap().retain(|credential| credential.id != id);
        Ok(Response::new(DeleteCredentialResponse {}))
    }

    async fn check_certificate(
        &self,
        _: Request<CheckCertificateRequest>,
    ) -> Result<Response<WhoAmIResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn issue_assertions(
        &self,
        _: Request<IssueAssertionsRequest>,
    ) -> Result<Response<IssueAssertionsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn check_assertion(
        &self,
        _: Request<CheckAssertionRequest>,
    ) -> Result<Response<WhoAmIResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn create_join_token(
        &self,
        request: Request<CreateJoinTokenRequest>,
    ) -> Result<Response<CreateJoinTokenResponse>, Status> {
        self.caller(&request)?;
        assert_eq!(request.get_ref().ttl_seconds, 7200);
        Ok(Response::new(CreateJoinTokenResponse {
            token: JOIN_TOKEN.into(),
            expires: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            ca_sha256: self.0.authority.as_ref().map_or(String::new(), |ca| ca.sha256.clone()),
        }))
    }

    async fn join(
        &self,
        request: Request<JoinRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let JoinRequest { token, csr } = request.into_inner();
        if token != JOIN_TOKEN {
            return Err(Status::unauthenticated("the join token is unknown or used"));
        }
        let ca = self.0.authority.as_ref().unwrap();
        Ok(Response::new(CertificateResponse {
            certificate: ca.sign(&csr, self.0.swaps_keys),
            ca: ca.pem.clone(),
            not_after: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
            machine: "node/rack3-7".into(),
            chain: String::new(),
        }))
    }

    async fn renew(
        &self,
        _: Request<RenewRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn block_machine(
        &self,
        request: Request<BlockMachineRequest>,
    ) -> Result<Response<BlockMachineResponse>, Status> {
        let blocked_by = self.caller(&request)?.name;
        let machine = request.into_inner().machine;
        let blocked = BlockedMachine { machine: machine.clone(), blocked_at: None, blocked_by };
        self.0.blocked.lock().unwrap().insert(machine, blocked.clone());
        Ok(Response::new(BlockMachineResponse { blocked: Some(blocked) }))
    }

    async fn unblock_machine(
        &self,
        request: Request<UnblockMachineRequest>,
    ) -> Result<Response<UnblockMachineResponse>, Status> {
        let machine = request.into_inner().machine;
        match self.0.blocked.lock().unwrap().remove(&machine) {
            Some(_) => Ok(Response::new(UnblockMachineResponse {})),
            None => Err(Status::not_found(format!("{machine} is not blocked"))),
        }
    }

    async fn list_blocked_machines(
        &self,
        _: Request<ListBlockedMachinesRequest>,
    ) -> Result<Response<ListBlockedMachinesResponse>, Status> {
        let machines = self.0.blocked.lock().unwrap().values().cloned().collect();
        Ok(Response::new(ListBlockedMachinesResponse { machines }))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Err(Status::unimplemented("no machine reports here"))
    }

    async fn watch_blocked_machines(
        &self,
        _: Request<WatchBlockedMachinesRequest>,
    ) -> Result<Response<Self::WatchBlockedMachinesStream>, Status> {
        Err(Status::unimplemented("no machine listens here"))
    }

    async fn list_machines(
        &self,
        request: Request<ListMachinesRequest>,
    ) -> Result<Response<ListMachinesResponse>, Status> {
        let machine = format!("node/{}", request.into_inner().selector);
        let machines = vec![Machine { machine, ..Default::default() }];
        Ok(Response::new(ListMachinesResponse { machines }))
    }

    async fn remove_machine(
        &self,
        request: Request<RemoveMachineRequest>,
    ) -> Result<Response<RemoveMachineResponse>, Status> {
        Err(Status::not_found(format!("machine {:?} not found", request.into_inner().machine)))
    }
}

#[tonic::async_trait]
impl SystemService for Fake {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(GetStatusResponse { version: "9.9.9".into(), ..Default::default() }))
    }
}

type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl NotifyApi for Fake {
    type StreamNoticeStream = Answers<Notice>;

    /// Sends every notice back with its version one up, at once.
    async fn stream_notice(
        &self,
        request: Request<Streaming<Notice>>,
    ) -> Result<Response<Self::StreamNoticeStream>, Status> {
        let state = self.0.clone();
        let mut incoming = request.into_inner();
        let (send, receive) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut count = 0;
            while let Some(notice) = incoming.next().await {
                let Ok(mut notice) = notice else { return };
                count += 1;
                notice.version += 1;
                if send.send(Ok(notice)).await.is_err() {
                    return;
                }
            }
            state.completed.lock().unwrap().push(count);
        });
        Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(receive).boxed()))
    }
}

#[tonic::async_trait]
impl FlavorApi for Fake {
    type ShowFlavorStream = Answers<Flavor>;

    /// Two flavors; then, for a request with `ram: 13`, a refusal.
    async fn show_flavor(
        &self,
        request: Request<Flavor>,
    ) -> Result<Response<Self::ShowFlavorStream>, Status> {
        *self.0.metadata.lock().unwrap() = request.metadata().clone();
        let flavor = |name: &str, ram| {
            let key = FlavorKey { name: name.into() };
            Ok(Flavor { key: Some(key), ram, vcpus: 1, disk: 2, ..Flavor::default() })
        };
        let mut all = vec![flavor("small", 512), flavor("x-large", 8192)];
        if request.get_ref().ram == 13 {
            all.push(Err(Status::unavailable("the store went away")));
        }
        Ok(Response::new(futures::stream::iter(all).boxed()))
    }

    async fn create_flavor(&self, _: Request<Flavor>) -> Result<Response<EdgeResult>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn delete_flavor(&self, _: Request<Flavor>) -> Result<Response<EdgeResult>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn update_flavor(&self, _: Request<Flavor>) -> Result<Response<EdgeResult>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// A running server; gone when dropped.
pub(crate) struct Running {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<ServerState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn routes(state: &Arc<ServerState>) -> Routes {
    let fake = Fake(state.clone());
    Routes::new(AuthServiceServer::new(fake.clone()))
        .add_service(IdentityServiceServer::new(fake.clone()))
        .add_service(SystemServiceServer::new(fake.clone()))
        .add_service(NotifyApiServer::new(fake.clone()))
        .add_service(FlavorApiServer::new(fake))
}

/// TLS on a free port; asks for client certificates and does without.
pub(crate) async fn https(mut state: ServerState, authority: &Arc<Authority>) -> Running {
    state.authority = Some(authority.clone());
    let state = Arc::new(state);
    let tls = tonic::transport::ServerTlsConfig::new()
        .identity(authority.server(state.name.as_deref().unwrap_or("127.0.0.1")))
        .client_ca_root(tonic::transport::Certificate::from_pem(&authority.pem))
        .client_auth_optional(true);
    let server = Server::builder().tls_config(tls).unwrap().add_routes(routes(&state));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    Running { endpoint, state, task }
}

/// Plain text on a free port, open to everybody.
pub(crate) async fn http() -> Running {
    let state = Arc::new(ServerState { open: true, ..ServerState::default() });
    let server = Server::builder().add_routes(routes(&state));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    Running { endpoint, state, task }
}

/// A unix socket, open to everybody.
pub(crate) fn unix(path: &Path) -> Running {
    let state = Arc::new(ServerState { open: true, ..ServerState::default() });
    let server = Server::builder().add_routes(routes(&state));
    let listener = tokio::net::UnixListener::bind(path).unwrap();
    let task = tokio::spawn(async move {
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    Running { endpoint: format!("unix://{}", path.display()), state, task }
}
