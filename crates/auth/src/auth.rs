//! The handle that everything hangs on.

use std::{collections::HashSet, fmt, sync::Arc};

use axum::Router;
use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_api::{
    Code,
    selvage::{
        identity::identity_service_server::IdentityServiceServer,
        pki::pki_service_server::PkiServiceServer,
    },
    services::auth::auth_service_server::AuthServiceServer,
};
use selvage_kit::identity::{
    Authenticator, Credentials, Form, Grant, Identity, Machine, Refused, Role, ShownCertificate,
};
use selvage_store::{SharedStore, Table, transact};
use zeroize::Zeroizing;

use crate::{
    AuthApi, CertificateAuthority, GeneratedPassword, IdentityApi, Options, PkiApi,
    assertions::Assertions,
    error::{Error, Result},
    http_routes,
    limits::Limiter,
    oidc::Oidc,
    password::Hasher,
    records::{
        BlockedMachine, Credential, Issue, JoinToken, Member, PASSWORD_SOURCE, Session, User,
    },
    rotation::Rotation,
    secrets,
    sessions::Activity,
};

/// Name of the first administrator.
pub const FIRST_USER: &str = "admin";

/// Identity and access. Clones share everything.
#[derive(Clone)]
pub struct Auth {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: SharedStore,
    pub(crate) users: Arc<Table<User>>,
    pub(crate) sessions: Arc<Table<Session>>,
    pub(crate) credentials: Arc<Table<Credential>>,
    pub(crate) join_tokens: Arc<Table<JoinToken>>,
    pub(crate) issues: Arc<Table<Issue>>,
    pub(crate) blocked: Arc<Table<BlockedMachine>>,
    pub(crate) members: Arc<Table<Member>>,
    pub(crate) rotation: Rotation,
    pub(crate) assertions: Assertions,
    /// Sessions, tokens and certificates whose use is being written.
    pub(crate) touching: Mutex<HashSet<String>>,
    pub(crate) hasher: Hasher,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) oidc: Oidc,
    pub(crate) authority: Option<Arc<dyn CertificateAuthority>>,
    pub(crate) options: Options,
}

/// Counts of what housekeeping removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sessions that had ended.
    pub sessions: usize,
    /// Join tokens that had expired.
    pub join_tokens: usize,
    /// Tokens and certificates of people that had expired.
    pub credentials: usize,
}

impl Auth {
    /// Reads what the store holds and gets ready.
    pub async fn open(
        store: SharedStore,
        options: Options,
        ca: Option<Arc<dyn CertificateAuthority>>,
    ) -> Result<Self> {
        if !options.password_login && options.oidc.is_empty() {
            let reason = "cannot be switched off where there is no OIDC provider";
            return Err(Error::settings("password_login", reason));
        }
        let inner = Inner {
            users: Table::open(Arc::clone(&store)).await?,
            sessions: Table::open(Arc::clone(&store)).await?,
            credentials: Table::open(Arc::clone(&store)).await?,
            join_tokens: Table::open(Arc::clone(&store)).await?,
            issues: Table::open(Arc::clone(&store)).await?,
            blocked: Table::open(Arc::clone(&store)).await?,
            members: Table::open(Arc::clone(&store)).await?,
            rotation: Rotation::open(&store).await?,
            assertions: Assertions::new()?,
            touching: Mutex::default(),
            hasher: Hasher::new(options.argon2, options.hashing_concurrency).await?,
            limiter: Arc::new(Limiter::new(options.limits, Arc::clone(&options.clock))),
            oidc: Oidc::new(&options)?,
            authority: ca,
            store,
            options,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns whether anybody can log in at all.
    pub fn has_users(&self) -> bool {
        !self.inner.users.is_empty()
    }

    /// Makes the user `admin` with this password if there is no user at all,
    /// and tells whether it did. Of several servers that start at once on one
    /// store only one does.
    pub async fn bootstrap_admin(&self, password: &GeneratedPassword) -> Result<bool> {
        if self.has_users() {
            return Ok(false);
        }
        let hash = self.inner.hasher.hash(Zeroizing::new(password.expose().to_owned())).await?;
        let mut user = self.new_user(FIRST_USER, PASSWORD_SOURCE);
        user.set_grants(&[Grant { role: Role::Admin, organisation: String::new() }]);
        user.password_hash = hash;
        match self.inner.users.create(user).await {
            Ok(_) => {
                tracing::info!(
                    target: "audit",
                    action = "user.add", subject = FIRST_USER,
                    "first administrator made"
                );
                Ok(true)
            }
            Err(selvage_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Login, Logout and CheckToken.
    pub fn auth_service(&self) -> AuthServiceServer<AuthApi> {
        AuthServiceServer::new(AuthApi(self.clone()))
    }

    /// Users, sessions and machines.
    pub fn identity_service(&self) -> IdentityServiceServer<IdentityApi> {
        IdentityServiceServer::new(IdentityApi(self.clone()))
    }

    /// Certificate authorities.
    pub fn pki_service(&self) -> PkiServiceServer<PkiApi> {
        PkiServiceServer::new(PkiApi(self.clone()))
    }

    /// OpenID Connect, and the few plain routes that browsers use.
    pub fn http_routes(&self) -> Router {
        http_routes::router(self.clone())
    }

    /// Removes what has expired. To be called now and then.
    pub async fn sweep(&self) -> Result<Swept> {
        self.inner.limiter.tidy();
        self.inner.oidc.tidy(self.now());
        Ok(Swept {
            sessions: self.sweep_sessions().await?,
            join_tokens: self.sweep_join_tokens().await?,
            credentials: self.sweep_credentials().await?,
        })
    }

    async fn whose(&self, credentials: &Credentials, look: Activity) -> Result<Identity, Refused> {
        let identified = match credentials {
            Credentials::Bearer(token) => match secrets::api_digest(token.expose()) {
                Some(digest) => self.identify_delegate(&digest, Form::Token).await,
                None => self.identify(token.expose(), look).await.ok_or(Error::SessionEnded),
            },
            // A browser has a session and nothing else.
            Credentials::Cookie(token) => {
                self.identify(token.expose(), look).await.ok_or(Error::SessionEnded)
            }
            Credentials::Certificate(shown) => {
                self.identify_delegate(&shown.sha256, Form::Certificate).await
            }
            Credentials::Assertion(shown) => return self.identify_asserted(shown, look).await,
        };
        identified
            .map_err(|error| Refused { code: Code::Unauthenticated, message: error.to_string() })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.inner.options.clock.now()
    }

    /// The user as the store has it now, other servers' changes included.
    pub(crate) async fn fresh_user(&self, username: &str) -> Result<Option<User>> {
        let read = transact(&self.inner.store, |tx| async move {
            Ok::<_, Error>(tx.get::<User>(username).await?)
        });
        Ok(read.await?.value)
    }
}

#[async_trait::async_trait]
impl Authenticator for Auth {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        self.whose(credentials, Activity::Use).await
    }

    async fn recheck(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        self.whose(credentials, Activity::Recheck).await
    }

    fn machine_allowed(&self, machine: &Machine) -> bool {
        !self.is_blocked(machine)
    }

    fn certificate_allowed(&self, certificate: &ShownCertificate) -> bool {
        self.authorities().map_or(true, |authorities| authorities.trust().believes(certificate))
    }

    fn certificate_is_current(&self, certificate: &ShownCertificate) -> bool {
        self.authorities().map_or(true, |authorities| authorities.trust().is_current(certificate))
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}
