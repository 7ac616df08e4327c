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
    oidc::{Arrival, Callback, Entrance, Program, ProgramQuery, Reason, Refusal},
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
    query: Result<Query<ProgramQuery>, QueryRejection>,
    extensions: Extensions,
) -> Response {
    let program = match query.map(|Query(asked)| Program::of(asked)) {
        Ok(Ok(program)) => program,
        Ok(Err(reason)) => return (StatusCode::BAD_REQUEST, reason).into_response(),
        Err(_) => return (StatusCode::BAD_REQUEST, "the query cannot be read").into_response(),
    };
    depart(&auth, &name, Entrance::Own, program, &extensions).await
}

async fn begin_legacy(
    State(auth): State<Auth>,
    Path(name): Path<String>,
    extensions: Extensions,
) -> Response {
    depart(&auth, &name, Entrance::Legacy, None, &extensions).await
}

async fn depart(
    auth: &Auth,
    name: &str,
    entrance: Entrance,
    program: Option<Program>,
    extensions: &Extensions,
) -> Response {
    let caller = Caller::of_extensions(extensions);
    let waiting = program.clone();
    match auth.begin_oidc(name, entrance, program, caller.peer.as_ref()).await {
        Ok(departure) => {
            let binding = cookie::oidc(&departure.binding, crate::oidc::LOGIN_LIFETIME);
            redirect(departure.url.as_str(), &[binding])
        }
        Err(refusal) => failed(&refusal, waiting.as_ref()),
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
        return failed(&Refusal { reason: Reason::InvalidRequest, detail }, None);
    };
    let binding = cookie::find(&headers, cookie::OIDC);
    match auth.finish_oidc(&name, callback, binding, caller.peer.as_ref()).await {
        Ok(Arrival::Page(session)) => {
            let session = cookie::session(&session.token, session.lifetime());
            redirect("/", &[session, cookie::end_oidc()])
        }
        Ok(Arrival::Program(place)) => redirect(place.as_str(), &[cookie::end_oidc()]),
        Err(back) => failed(&back.refusal, back.program.as_ref()),
    }
}

/// Tells the page, or the program that waits, in a fixed word.
fn failed(refusal: &Refusal, program: Option<&Program>) -> Response {
    let place = program.and_then(|program| program.place("error", refusal.reason.word()));
    if let Some(place) = place {
        return redirect(place.as_str(), &[cookie::end_oidc()]);
    }
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
