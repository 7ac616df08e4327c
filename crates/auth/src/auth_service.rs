//! `services.auth.AuthService`: the contract that existing clients know.

use selvage_api::{
    resources::timestamp::Timestamp as WireTimestamp,
    services::auth::{
        CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse, auth_service_server::AuthService,
    },
};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use zeroize::Zeroizing;

use crate::{
    Auth, audit,
    caller::Caller,
    clock, cookie,
    error::Error,
    sessions::{Carrier, NewSession},
};

/// Serves the contract.
#[derive(Debug, Clone)]
pub struct AuthApi(pub(crate) Auth);

#[tonic::async_trait]
impl AuthService for AuthApi {
    async fn login(
        &self,
        mut request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let caller = Caller::of(&request);
        let carrier = wanted_carrier(request.metadata())?;
        let asked = request.get_mut();
        let password = Zeroizing::new(std::mem::take(&mut asked.password));
        let username = std::mem::take(&mut asked.username);
        let session = self.0.login(&username, password, caller.peer.as_ref(), carrier).await?;
        if carrier == Carrier::Cookie {
            self.replace_cookie_session(&caller).await;
        }
        login_response(&username, &session, carrier)
    }

    async fn logout(
        &self,
        request: Request<LogoutRequest>,
    ) -> Result<Response<LogoutResponse>, Status> {
        let caller = Caller::of(&request);
        let ended = match caller.session().and_then(|id| self.0.session_by_id(id)) {
            Some(session) => {
                self.0.delete_sessions(vec![session.key.clone()]).await?;
                Some(session)
            }
            // Somebody whom the listener knows by other means, such as a unix
            // socket, may still show the token that is to end.
            None => match bearer(request.metadata()) {
                Some(token) => self.0.end_token(token).await?,
                None => None,
            },
        };
        if let Some(session) = ended {
            audit::done("logout", &caller, &session.value.username);
        }
        let mut response = Response::new(LogoutResponse { success: true });
        if cookie::find(request.metadata().as_ref(), cookie::SESSION).is_some() {
            set_cookie(&mut response, &cookie::end_session())?;
        }
        Ok(response)
    }

    async fn check_token(
        &self,
        request: Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        let caller = Caller::of(&request);
        let token = Zeroizing::new(request.into_inner().token);
        // A browser cannot see its token; it asks about the one it is using.
        let success = match token.as_str() {
            "" => caller.session().is_some(),
            token => self.0.is_live_token(token),
        };
        Ok(Response::new(CheckTokenResponse { success }))
    }
}

impl AuthApi {
    /// Ends the session whose cookie the browser is about to lose.
    async fn replace_cookie_session(&self, caller: &Caller) {
        let Some(old) = caller.session().and_then(|id| self.0.session_by_id(id)) else { return };
        if old.value.kind == Carrier::Cookie.name() {
            self.0.discard_sessions(vec![old]).await;
        }
    }
}

fn wanted_carrier(metadata: &MetadataMap) -> Result<Carrier, Error> {
    match metadata.get("x-session").map(|value| value.as_bytes()) {
        None => Ok(Carrier::Bearer),
        Some(value) if value.eq_ignore_ascii_case(b"cookie") => Ok(Carrier::Cookie),
        Some(value) if value.eq_ignore_ascii_case(b"bearer") => Ok(Carrier::Bearer),
        Some(_) => Err(Error::invalid("x-session", "must be cookie or bearer")),
    }
}

/// The token of `authorization`, with or without the word Bearer.
fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("authorization")?.to_str().ok()?.trim();
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        Some(_) => None,
        None => Some(value),
    }
}

fn login_response(
    username: &str,
    session: &NewSession,
    carrier: Carrier,
) -> Result<Response<LoginResponse>, Status> {
    let mut response = Response::new(LoginResponse {
        token: String::new(),
        expires: Some(WireTimestamp { timestamp: Some(clock::to_wire(session.expires)) }),
        account_id: format!("selvage-user-{username}"),
    });
    match carrier {
        Carrier::Bearer => response.get_mut().token.push_str(&session.token),
        Carrier::Cookie => {
            set_cookie(&mut response, &cookie::session(&session.token, session.lifetime()))?;
        }
    }
    Ok(response)
}

fn set_cookie<T>(response: &mut Response<T>, text: &str) -> Result<(), Status> {
    // Our own text: a token or nothing between fixed words.
    let value = text.parse().map_err(|_| Status::internal("the cookie could not be made"))?;
    response.metadata_mut().insert("set-cookie", value);
    Ok(())
}
