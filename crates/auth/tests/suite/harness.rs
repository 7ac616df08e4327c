//! A server without a listener: requests get the identity and connection
//! that the listener would give them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rcgen::{CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair};
use selvage_api::{
    selvage::identity::{
        AddUserRequest, Grant as WireGrant, User, identity_service_client::IdentityServiceClient,
        identity_service_server::IdentityServiceServer,
    },
    services::auth::{
        CheckTokenRequest, LoginRequest, LoginResponse, auth_service_client::AuthServiceClient,
        auth_service_server::AuthServiceServer,
    },
};
use selvage_auth::{
    Auth, AuthApi, CertificateAuthority, HashCost, IdentityApi, Options, SignError, Signed,
};
use selvage_kit::{
    clock::ManualClock,
    identity::{Authenticator, Connection, Credentials, Identity, Kind, Machine, Peer, Secret},
    pki::Ca,
};
use selvage_store::{KeyRange, RangeRequest, SharedStore, StoreExt, embedded};
use tonic::{Request, Response, Status};

pub(crate) const HERE: &str = "192.0.2.1";
/// On the same network.
pub(crate) const NEIGHBOUR: &str = "192.0.2.99";
pub(crate) const ELSEWHERE: &str = "198.51.100.1";
pub(crate) const PASSWORD: &str = "correct horse";

pub(crate) struct Harness {
    pub(crate) auth: Auth,
    pub(crate) store: SharedStore,
    pub(crate) clock: ManualClock,
    pub(crate) ca: Arc<TestCa>,
}

pub(crate) fn options(clock: &ManualClock) -> Options {
    Options {
        // As cheap as it gets: these tests are not about the cost.
        argon2: HashCost { memory_kib: 64, iterations: 1, lanes: 1 },
        clock: Arc::new(clock.clone()),
        ..Options::default()
    }
}

pub(crate) async fn memory() -> SharedStore {
    embedded::Embedded::in_memory(embedded::Options::default()).await.unwrap()
}

impl Harness {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let clock = ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap());
        Self::on(memory().await, clock, change).await
    }

    pub(crate) async fn on(
        store: SharedStore,
        clock: ManualClock,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = options(&clock);
        change(&mut options);
        let ca = Arc::new(TestCa::new(&clock));
        let authority = Arc::clone(&ca) as Arc<dyn CertificateAuthority>;
        let auth = Auth::open(Arc::clone(&store), options, Some(authority)).await.unwrap();
        Self { auth, store, clock, ca }
    }

    pub(crate) fn logins(&self) -> AuthServiceClient<AuthServiceServer<AuthApi>> {
        AuthServiceClient::new(self.auth.auth_service())
    }

    pub(crate) fn identities(&self) -> IdentityServiceClient<IdentityServiceServer<IdentityApi>> {
        IdentityServiceClient::new(self.auth.identity_service())
    }

    pub(crate) async fn add(&self, username: &str, grants: &[(&str, &str)]) {
        let user = user(username, grants);
        let request = AddUserRequest { user: Some(user), password: PASSWORD.into() };
        self.identities().add_user(as_root(request)).await.unwrap();
    }

    pub(crate) async fn login_from(
        &self,
        from: &str,
        username: &str,
        password: &str,
    ) -> Result<Response<LoginResponse>, Status> {
        let request = LoginRequest { username: username.into(), password: password.into() };
        self.logins().login(anonymous(from, request)).await
    }

    /// Logs in with the password that `add` set; gives the token.
    pub(crate) async fn token(&self, username: &str) -> String {
        self.login_from(HERE, username, PASSWORD).await.unwrap().into_inner().token
    }

    pub(crate) async fn identity(&self, token: &str) -> Option<Identity> {
        self.auth.authenticate(&Credentials::Bearer(Secret::new(token))).await.ok()
    }

    pub(crate) async fn is_valid(&self, token: &str) -> bool {
        let authenticated = self.identity(token).await.is_some();
        let request = CheckTokenRequest { token: token.into() };
        let checked = self.logins().check_token(anonymous(HERE, request)).await.unwrap();
        assert_eq!(checked.into_inner().success, authenticated);
        authenticated
    }

    /// A request made with a token, which must be good.
    pub(crate) async fn with_token<T>(&self, token: &str, message: T) -> Request<T> {
        let identity = self.identity(token).await.expect("token is valid");
        request(HERE, identity, None, message)
    }

    pub(crate) fn clock_seconds(&self) -> i64 {
        selvage_kit::clock::Clock::now(&self.clock).as_second()
    }

    /// Rows of the store about tokens and certificates.
    pub(crate) async fn credentials(&self) -> Vec<(String, Vec<u8>)> {
        let all = self.store.range(RangeRequest::new(KeyRange::All)).await.unwrap();
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let all = all.items.into_iter().map(|kv| (text(&kv.key), kv.value.to_vec()));
        all.filter(|(key, _)| key.contains("auth-credential")).collect()
    }

    /// Writes that back.
    pub(crate) async fn restore(&self, kept: &[(String, Vec<u8>)]) {
        assert!(!kept.is_empty());
        for (key, value) in kept {
            self.store.put(key.clone(), value.clone()).await.unwrap();
        }
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

pub(crate) fn user(username: &str, grants: &[(&str, &str)]) -> User {
    User { username: username.into(), grants: wire_grants(grants), ..User::default() }
}

pub(crate) fn wire_grants(grants: &[(&str, &str)]) -> Vec<WireGrant> {
    let grant = |(role, organisation): &(&str, &str)| WireGrant {
        role: (*role).into(),
        organisation: (*organisation).into(),
    };
    grants.iter().map(grant).collect()
}

fn request<T>(from: &str, identity: Identity, machine: Option<Machine>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let peer = Peer::Ip(from.parse().unwrap());
    request.extensions_mut().insert(identity);
    request.extensions_mut().insert(Connection {
        peer,
        machine,
        certificate: None,
        person: None,
        encrypted: true,
    });
    request
}

pub(crate) fn anonymous<T>(from: &str, message: T) -> Request<T> {
    request(from, Identity::anonymous(), None, message)
}

/// Through the unix socket.
pub(crate) fn as_root<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Identity::all_powerful("local", Kind::Local));
    let connection = Connection {
        peer: Peer::Unix(Some(0)),
        machine: None,
        certificate: None,
        person: None,
        encrypted: false,
    };
    request.extensions_mut().insert(connection);
    request
}

/// A call of a machine that shows the token of a person as well.
pub(crate) fn as_machine_for<T>(name: &str, caller: Identity, message: T) -> Request<T> {
    request(HERE, caller, Some(Machine::parse(name).unwrap()), message)
}

pub(crate) fn as_machine<T>(name: &str, message: T) -> Request<T> {
    as_machine_at(HERE, name, message)
}

pub(crate) fn as_machine_at<T>(address: &str, name: &str, message: T) -> Request<T> {
    let machine = Machine::parse(name).unwrap();
    request(address, Identity::machine(machine.clone()), Some(machine), message)
}

pub(crate) fn code(outcome: Result<impl Sized, Status>) -> tonic::Code {
    outcome.err().expect("an error").code()
}

/// A certificate authority that really signs.
pub(crate) struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// Those of the last certificate.
    pub(crate) names: Mutex<Vec<String>>,
    /// Signs for people.
    people: Ca,
    _folder: tempfile::TempDir,
}

impl TestCa {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let people =
            Ca::open_or_create_with(&folder.path().join("pki"), Arc::new(clock.clone())).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let (issuer, names) = (Issuer::new(params, key), Mutex::default());
        Self { issuer, pem, names, people, _folder: folder }
    }
}

impl CertificateAuthority for TestCa {
    fn sign(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
    ) -> Result<Signed, SignError> {
        let request = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(|error| SignError::BadRequest(error.to_string()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, machine.to_string());
        *self.names.lock().unwrap() = names.to_vec();
        let signed = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(|error| SignError::Failed(Box::new(error)))?;
        let not_after = "2027-06-01T12:00:00Z".parse().unwrap();
        Ok(Signed { certificate_pem: signed.pem(), not_after })
    }

    fn sign_person(
        &self,
        csr_pem: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Signed, SignError> {
        let signed = self.people.sign_person(csr_pem, name, lifetime);
        let signed = signed.map_err(|error| SignError::BadRequest(error.to_string()))?;
        let not_after = jiff::Timestamp::from_second(signed.not_after).unwrap();
        Ok(Signed { certificate_pem: signed.certificate_pem, not_after })
    }

    fn ca_pem(&self) -> String {
        self.pem.clone()
    }

    fn ca_sha256(&self) -> String {
        "ab".repeat(32)
    }
}

pub(crate) fn csr() -> String {
    let key = KeyPair::generate().unwrap();
    CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap()
}
