//! The plain HTTP routes: OpenID Connect, and what the original dashboard
//! asks a server for besides its RPCs.

use axum::{
    Json, Router,
    extract::{Path, Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, LOCATION, SET_COOKIE},
};
use serde_json::{Value, json};

use crate::{
    Auth,
    caller::Caller,
    cookie,
    oidc::{Callback, Entrance, Reason, Refusal},
};

const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");

pub(crate) fn router(auth: Auth) -> Router {
    Router::new()
        .route("/auth/oidc/{provider}/login", get(begin).post(begin))
        .route("/auth/oidc/{provider}/callback", get(finish))
        .route("/api/oauth2/login/{provider}", get(begin_legacy).post(begin_legacy))
        .route("/api/oauth2/callback/{provider}", get(finish))
        .route("/api/config", post(config))
        .route("/api/ping", get(ping))
        .route("/api/clear-site-data", get(clear_site_data))
        .with_state(auth)
}

async fn begin(
    State(auth): State<Auth>,
    Path(name): Path<String>,
    extensions: Extensions,
) -> Response {
    depart(&auth, &name, Entrance::Own, &extensions).await
}

async fn begin_legacy(
    State(auth): State<Auth>,
    Path(name): Path<String>,
    extensions: Extensions,
) -> Response {
    depart(&auth, &name, Entrance::Legacy, &extensions).await
}

async fn depart(auth: &Auth, name: &str, entrance: Entrance, extensions: &Extensions) -> Response {
    let caller = Caller::of_extensions(extensions);
    match auth.begin_oidc(name, entrance, caller.peer.as_ref()).await {
        Ok(departure) => {
            let binding = cookie::oidc(&departure.binding, crate::oidc::LOGIN_LIFETIME);
            redirect(departure.url.as_str(), &[binding])
        }
        Err(refusal) => failed(&refusal),
    }
}

async fn finish(
    State(auth): State<Auth>,
    Path(name): Path<String>,
    query: Result<Query<Callback>, QueryRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response {
    let caller = Caller::of_extensions(&extensions);
    let Ok(Query(callback)) = query else {
        let detail = "the callback's query cannot be read".to_owned();
        return failed(&Refusal { reason: Reason::InvalidRequest, detail });
    };
    let binding = cookie::find(&headers, cookie::OIDC);
    match auth.finish_oidc(&name, callback, binding, caller.peer.as_ref()).await {
        Ok(session) => {
            let session = cookie::session(&session.token, session.lifetime());
            redirect("/", &[session, cookie::end_oidc()])
        }
        Err(refusal) => failed(&refusal),
    }
}

fn failed(refusal: &Refusal) -> Response {
    let target = format!("/?login=failed&reason={}", refusal.reason.word());
    redirect(&target, &[cookie::end_oidc()])
}

fn redirect(target: &str, cookies: &[String]) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    let Ok(location) = HeaderValue::try_from(target) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    headers.insert(LOCATION, location);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for cookie in cookies {
        if let Ok(mut value) = HeaderValue::try_from(cookie) {
            value.set_sensitive(true);
            headers.append(SET_COOKIE, value);
        }
    }
    response
}

async fn config(State(auth): State<Auth>) -> Json<Value> {
    let providers: Vec<Value> = auth
        .inner
        .oidc
        .names()
        .map(|(name, label)| json!({"name": name, "label": label}))
        .collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "login": {"providers": providers, "password": auth.inner.options.password_login},
    }))
}

async fn ping() -> Json<Value> {
    Json(json!({"message": "Pong"}))
}

async fn clear_site_data() -> Response {
    let value = HeaderValue::from_static(r#""cache", "cookies", "storage""#);
    ([(CLEAR_SITE_DATA, value)], StatusCode::NO_CONTENT).into_response()
}
