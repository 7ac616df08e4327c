//! `selvage.identity.IdentityService`: what administrators do about
//! identities, and what everybody may do about their own.

use std::mem::take;

use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use selvage_api::selvage::identity::{
    AddUserRequest, AddUserResponse, Assertion, BlockMachineRequest, BlockMachineResponse,
    CertificateResponse, CheckAssertionRequest, CheckCertificateRequest, CreateCertificateRequest,
    CreateCertificateResponse, CreateJoinTokenRequest, CreateJoinTokenResponse, CreateTokenRequest,
    CreateTokenResponse, DeleteCredentialRequest, DeleteCredentialResponse, FinishLoginRequest,
    FinishLoginResponse, IssueAssertionsRequest, IssueAssertionsResponse, JoinRequest,
    ListBlockedMachinesRequest, ListBlockedMachinesResponse, ListCredentialsRequest,
    ListCredentialsResponse, ListLoginProvidersRequest, ListLoginProvidersResponse,
    ListMachinesRequest, ListMachinesResponse, ListSessionsRequest, ListSessionsResponse,
    ListUsersRequest, ListUsersResponse, LoginProvider, RemoveMachineRequest,
    RemoveMachineResponse, RemoveUserRequest, RemoveUserResponse, RenewRequest, ReportRequest,
    ReportResponse, RevokeSessionRequest, RevokeSessionResponse, SetPasswordRequest,
    SetPasswordResponse, UnblockMachineRequest, UnblockMachineResponse, UpdateUserRequest,
    UpdateUserResponse, WatchBlockedMachinesRequest, WatchBlockedMachinesResponse, WhoAmIRequest,
    WhoAmIResponse, identity_service_server::IdentityService,
};
use selvage_kit::identity::{Form, Kind, Machine};
use tonic::{Request, Response, Status};
use zeroize::Zeroizing;

use crate::{
    Auth, Issued, audit,
    caller::Caller,
    clock,
    credentials::{NewCertificate, NewCredential},
    error::{Error, Result as OurResult},
    names,
    users::PasswordChange,
};

/// Longest code and verifier that are looked at.
const LONGEST_CODE: usize = 256;

/// Hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

type Answer<T> = Result<Response<T>, Status>;

/// Serves the contract.
#[derive(Debug, Clone)]
pub struct IdentityApi(pub(crate) Auth);

#[tonic::async_trait]
impl IdentityService for IdentityApi {
    type WatchBlockedMachinesStream =
        BoxStream<'static, Result<WatchBlockedMachinesResponse, Status>>;

    async fn who_am_i(&self, request: Request<WhoAmIRequest>) -> Answer<WhoAmIResponse> {
        let caller = Caller::of(&request);
        caller.require_known()?;
        let is_user = matches!(caller.identity.kind, Kind::User { .. });
        let user = is_user.then(|| self.0.inner.users.get(&caller.identity.name)).flatten();
        let first_password = user.is_some_and(|user| user.value.has_first_password());
        let idle_end = caller.session().and_then(|session| self.0.idle_end(session));
        let idle_end = idle_end.map(clock::to_wire);
        Ok(Response::new(WhoAmIResponse { first_password, idle_end, ..who(caller) }))
    }

    async fn add_user(&self, mut request: Request<AddUserRequest>) -> Answer<AddUserResponse> {
        let caller = Caller::of(&request);
        let password = Zeroizing::new(take(&mut request.get_mut().password));
        caller.require_administrator("add users")?;
        let asked =
            request.into_inner().user.ok_or_else(|| Error::invalid("user", "is missing"))?;
        let grants = names::grants_from_wire("user.grants", &asked.grants)?;
        let (user, generated) =
            self.0.add_user(&asked.username, &grants, asked.disabled, password).await?;
        audit::done("user.add", &caller, &user.username);
        Ok(Response::new(AddUserResponse {
            user: Some(user.to_wire()),
            generated_password: generated.map_or_else(String::new, |made| made.expose().into()),
        }))
    }

    async fn list_users(&self, request: Request<ListUsersRequest>) -> Answer<ListUsersResponse> {
        Caller::of(&request).require_administrator("list users")?;
        let mut users: Vec<_> =
            self.0.inner.users.list().iter().map(|user| user.value.to_wire()).collect();
        users.sort_by(|a, b| a.username.cmp(&b.username));
        Ok(Response::new(ListUsersResponse { users }))
    }

    async fn update_user(&self, request: Request<UpdateUserRequest>) -> Answer<UpdateUserResponse> {
        let caller = Caller::of(&request);
        caller.require_administrator("change users")?;
        let asked = request.into_inner();
        names::check_username("username", &asked.username)?;
        if asked.grants.is_empty() {
            let reason = "at least one is needed: they replace the present ones; \
                          to lock a user out, disable or remove that user";
            return Err(Error::invalid("grants", reason).into());
        }
        let grants = names::grants_from_wire("grants", &asked.grants)?;
        let user = self.0.update_user(&asked.username, &grants, asked.disabled).await?;
        audit::done("user.update", &caller, &user.username);
        Ok(Response::new(UpdateUserResponse { user: Some(user.to_wire()) }))
    }

    async fn remove_user(&self, request: Request<RemoveUserRequest>) -> Answer<RemoveUserResponse> {
        let caller = Caller::of(&request);
        caller.require_administrator("remove users")?;
        let username = request.into_inner().username;
        names::check_username("username", &username)?;
        self.0.remove_user(&username).await?;
        audit::done("user.remove", &caller, &username);
        Ok(Response::new(RemoveUserResponse {}))
    }

    async fn set_password(
        &self,
        mut request: Request<SetPasswordRequest>,
    ) -> Answer<SetPasswordResponse> {
        let caller = Caller::of(&request);
        let asked = request.get_mut();
        let change = PasswordChange {
            current: Zeroizing::new(take(&mut asked.current_password)),
            new: Zeroizing::new(take(&mut asked.new_password)),
            username: named_or_own(&caller, take(&mut asked.username))?,
        };
        let username = change.username.clone();
        let sessions_ended = self.0.set_password(&caller, change).await?;
        audit::done("user.password", &caller, &username);
        Ok(Response::new(SetPasswordResponse { sessions_ended }))
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Answer<ListSessionsResponse> {
        let caller = Caller::of(&request);
        let asked = request.get_ref().username.clone();
        let sessions = if asked == "*" {
            caller.require_administrator("list the sessions of all users")?;
            self.0.live_sessions(None)
        } else {
            let username = named_or_own(&caller, asked)?;
            if caller.username() != Some(username.as_str()) {
                caller.require_administrator("list another user's sessions")?;
            }
            self.0.live_sessions(Some(&username))
        };
        let current = caller.session();
        let sessions = sessions.iter().map(|session| session.value.to_wire(current)).collect();
        Ok(Response::new(ListSessionsResponse { sessions }))
    }

    async fn revoke_session(
        &self,
        request: Request<RevokeSessionRequest>,
    ) -> Answer<RevokeSessionResponse> {
        let caller = Caller::of(&request);
        caller.require_known()?;
        let id = request.into_inner().id;
        if id.is_empty() {
            return Err(Error::invalid("id", "must not be empty").into());
        }
        // To whom it is not shown, it is not there.
        let session = self
            .0
            .session_by_id(&id)
            .filter(|session| {
                caller.is_administrator()
                    || caller.username() == Some(session.value.username.as_str())
            })
            .ok_or(Error::SessionNotFound(id))?;
        self.0.delete_sessions(vec![session.key.clone()]).await?;
        audit::done("session.revoke", &caller, &session.value.username);
        Ok(Response::new(RevokeSessionResponse {}))
    }

    async fn list_login_providers(
        &self,
        _: Request<ListLoginProvidersRequest>,
    ) -> Answer<ListLoginProvidersResponse> {
        let inner = &self.0.inner;
        let entrances = inner.oidc.entrances().into_iter();
        let providers = entrances
            .map(|(name, label, login_url)| LoginProvider { name, label, login_url })
            .collect();
        let password = inner.options.password_login;
        Ok(Response::new(ListLoginProvidersResponse { providers, password }))
    }

    async fn finish_login(
        &self,
        request: Request<FinishLoginRequest>,
    ) -> Answer<FinishLoginResponse> {
        let caller = Caller::of(&request);
        let FinishLoginRequest { code, verifier } = request.into_inner();
        let (code, verifier) = (Zeroizing::new(code), Zeroizing::new(verifier));
        for (field, text) in [("code", &code), ("verifier", &verifier)] {
            if text.is_empty() || text.len() > LONGEST_CODE {
                return Err(Error::invalid(field, format!("1 to {LONGEST_CODE} bytes")).into());
            }
        }
        let peer = caller.peer.as_ref();
        let (session, username) = self.0.finish_program(&code, &verifier, peer).await?;
        Ok(Response::new(FinishLoginResponse {
            token: session.token.as_str().into(),
            expires: Some(clock::to_wire(session.expires)),
            username,
        }))
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Answer<CreateTokenResponse> {
        let caller = Caller::of(&request);
        let CreateTokenRequest { name, username, grants, methods, ttl_seconds } =
            request.into_inner();
        let username = owner(&caller, username, "make tokens of other users")?;
        let asked = NewCredential { name, username, grants, methods, ttl_seconds };
        let (made, token) = self.0.create_token(&caller, asked).await?;
        audit::done("token.create", &caller, &made.full_name());
        let (credential, token) = (Some(made.to_wire()), token.as_str().into());
        Ok(Response::new(CreateTokenResponse { credential, token }))
    }

    async fn create_certificate(
        &self,
        request: Request<CreateCertificateRequest>,
    ) -> Answer<CreateCertificateResponse> {
        let caller = Caller::of(&request);
        let CreateCertificateRequest { name, username, grants, ttl_seconds, csr } =
            request.into_inner();
        let username = owner(&caller, username, "make certificates of other users")?;
        let asked = NewCredential { name, username, grants, methods: Vec::new(), ttl_seconds };
        let made = self.0.create_certificate(&caller, asked, &csr).await?;
        audit::done("certificate.create", &caller, &made.credential.full_name());
        let credential = Some(made.credential.to_wire());
        let NewCertificate { certificate, ca, .. } = made;
        Ok(Response::new(CreateCertificateResponse { credential, certificate, ca }))
    }

    async fn list_credentials(
        &self,
        request: Request<ListCredentialsRequest>,
    ) -> Answer<ListCredentialsResponse> {
        let caller = Caller::of(&request);
        let asked = request.into_inner().username;
        let what = "list the tokens and certificates of other users";
        let found = if asked == "*" {
            caller.require_administrator(what)?;
            self.0.list_credentials(None)
        } else {
            self.0.list_credentials(Some(&owner(&caller, asked, what)?))
        };
        let credentials = found.iter().map(|found| found.value.to_wire()).collect();
        Ok(Response::new(ListCredentialsResponse { credentials }))
    }

    async fn delete_credential(
        &self,
        request: Request<DeleteCredentialRequest>,
    ) -> Answer<DeleteCredentialResponse> {
        let caller = Caller::of(&request);
        caller.require_known()?;
        let id = request.into_inner().id;
        if id.is_empty() {
            return Err(Error::invalid("id", "must not be empty").into());
        }
        // To whom it is not shown, it is not there.
        let found = self.0.credential_by_id(&id).filter(|found| {
            caller.is_administrator() || caller.username() == Some(found.value.username.as_str())
        });
        let found = found.ok_or(Error::CredentialNotFound(id))?;
        self.0.delete_credentials(vec![found.key.clone()]).await?;
        audit::done("credential.delete", &caller, &found.value.full_name());
        Ok(Response::new(DeleteCredentialResponse {}))
    }

    async fn check_certificate(
        &self,
        request: Request<CheckCertificateRequest>,
    ) -> Answer<WhoAmIResponse> {
        let mut caller = Caller::of(&request);
        caller.require_known()?;
        let sha256 = request.into_inner().sha256;
        let is_digest = sha256.len() == SHA256_DIGITS
            && sha256.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if !is_digest {
            let reason = format!("{SHA256_DIGITS} lower-case hexadecimal digits");
            return Err(Error::invalid("sha256", reason).into());
        }
        caller.identity = self.0.identify_delegate(&sha256, Form::Certificate).await?;
        Ok(Response::new(who(caller)))
    }

    async fn issue_assertions(
        &self,
        request: Request<IssueAssertionsRequest>,
    ) -> Answer<IssueAssertionsResponse> {
        let caller = Caller::of(&request);
        let Some(by @ Machine::Node { .. }) = &caller.machine else {
            let reason = "only a node that shows its certificate calls others for somebody";
            return Err(Error::Denied(reason.into()).into());
        };
        // The token says who calls, so nobody has looked at the machine yet.
        if self.0.is_blocked(by) {
            return Err(Error::MachineBlocked(by.to_string()).into());
        }
        let IssueAssertionsRequest { method, machines } = request.into_inner();
        let issued = self.0.issue_assertions(&caller.identity, by, &method, machines).await?;
        let assertions = issued.into_iter();
        let assertions = assertions
            .map(|Issued { machine, assertion }| Assertion { machine, assertion })
            .collect();
        Ok(Response::new(IssueAssertionsResponse { assertions }))
    }

    async fn check_assertion(
        &self,
        request: Request<CheckAssertionRequest>,
    ) -> Answer<WhoAmIResponse> {
        let mut caller = Caller::of(&request);
        let Some(machine) = caller.machine.clone() else {
            let reason = "only a machine that shows its certificate was called for somebody";
            return Err(Error::Denied(reason.into()).into());
        };
        let text = request.into_inner().assertion;
        caller.identity = self.0.check_assertion(&text, &machine).await?;
        Ok(Response::new(who(caller)))
    }

    async fn create_join_token(
        &self,
        request: Request<CreateJoinTokenRequest>,
    ) -> Answer<CreateJoinTokenResponse> {
        let caller = Caller::of(&request);
        let asked = request.into_inner();
        let (token, expires) = self.0.create_join_token(&caller, &asked).await?;
        audit::done("join_token.create", &caller, &asked.machine);
        Ok(Response::new(CreateJoinTokenResponse {
            token: token.as_str().into(),
            expires: Some(clock::to_wire(expires)),
            ca_sha256: self.0.authority()?.ca_sha256(),
        }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Answer<CertificateResponse> {
        let caller = Caller::of(&request);
        let asked = request.into_inner();
        let token = Zeroizing::new(asked.token);
        if token.is_empty() {
            return Err(Error::invalid("token", "must not be empty").into());
        }
        let certified = self.0.join(&caller, &token, &asked.csr).await?;
        Ok(Response::new(certified.into_wire()))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Answer<CertificateResponse> {
        let caller = Caller::of(&request);
        let certified = self.0.renew(&caller, &request.into_inner().csr).await?;
        Ok(Response::new(certified.into_wire()))
    }

    async fn block_machine(
        &self,
        request: Request<BlockMachineRequest>,
    ) -> Answer<BlockMachineResponse> {
        let caller = Caller::of(&request);
        caller.require_administrator("block machines")?;
        let blocked = self.0.block_machine(&caller, &request.into_inner().machine).await?;
        audit::done("machine.block", &caller, &blocked.machine);
        Ok(Response::new(BlockMachineResponse { blocked: Some(blocked.to_wire()) }))
    }

    async fn unblock_machine(
        &self,
        request: Request<UnblockMachineRequest>,
    ) -> Answer<UnblockMachineResponse> {
        let caller = Caller::of(&request);
        caller.require_administrator("unblock machines")?;
        let machine = request.into_inner().machine;
        self.0.unblock_machine(&machine).await?;
        audit::done("machine.unblock", &caller, &machine);
        Ok(Response::new(UnblockMachineResponse {}))
    }

    async fn list_blocked_machines(
        &self,
        request: Request<ListBlockedMachinesRequest>,
    ) -> Answer<ListBlockedMachinesResponse> {
        Caller::of(&request).require_administrator("list blocked machines")?;
        let machines = self.0.inner.blocked.list();
        let machines = machines.iter().map(|blocked| blocked.value.to_wire()).collect();
        Ok(Response::new(ListBlockedMachinesResponse { machines }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Answer<ReportResponse> {
        let caller = Caller::of(&request);
        Ok(Response::new(self.0.take_report(&caller, request.into_inner()).await?))
    }

    async fn watch_blocked_machines(
        &self,
        request: Request<WatchBlockedMachinesRequest>,
    ) -> Answer<Self::WatchBlockedMachinesStream> {
        Caller::of(&request).require_known()?;
        let lists = self.0.watch_blocked();
        Ok(Response::new(lists.map(|blocked| Ok(WatchBlockedMachinesResponse { blocked })).boxed()))
    }

    async fn list_machines(
        &self,
        request: Request<ListMachinesRequest>,
    ) -> Answer<ListMachinesResponse> {
        Caller::of(&request).require_known()?;
        let machines = self.0.list_machines(&request.get_ref().selector)?;
        Ok(Response::new(ListMachinesResponse { machines }))
    }

    async fn remove_machine(
        &self,
        request: Request<RemoveMachineRequest>,
    ) -> Answer<RemoveMachineResponse> {
        let caller = Caller::of(&request);
        caller.require_administrator("remove machines")?;
        let machine = request.into_inner().machine;
        self.0.remove_machine(&machine).await?;
        audit::done("machine.remove", &caller, &machine);
        Ok(Response::new(RemoveMachineResponse {}))
    }
}

/// The caller, as WhoAmI says it.
fn who(caller: Caller) -> WhoAmIResponse {
    let (expires, methods) = match &caller.identity.kind {
        Kind::User { expires, .. } => (Some(*expires), Vec::new()),
        Kind::Delegate(limits) => (Some(limits.expires), limits.methods.clone()),
        _ => (None, Vec::new()),
    };
    let expires = expires.and_then(|end| Timestamp::from_second(end).ok());
    WhoAmIResponse {
        kind: caller.kind().into(),
        grants: names::grants_to_wire(&caller.identity.grants),
        expires: expires.map(clock::to_wire),
        name: caller.identity.name,
        methods,
        ..WhoAmIResponse::default()
    }
}

/// The user whose tokens and certificates a request is about: the caller, or
/// anybody for an administrator.
fn owner(caller: &Caller, named: String, what: &str) -> OurResult<String> {
    let username = named_or_own(caller, named)?;
    if caller.username() != Some(username.as_str()) {
        caller.require_administrator(what)?;
    }
    Ok(username)
}

/// The user that a request names, or else the caller.
fn named_or_own(caller: &Caller, named: String) -> OurResult<String> {
    if !named.is_empty() {
        names::check_username("username", &named)?;
        return Ok(named);
    }
    caller.require_known()?;
    match caller.username() {
        Some(own) => Ok(own.to_owned()),
        None => Err(Error::invalid("username", "needed: the caller is not a user")),
    }
}
