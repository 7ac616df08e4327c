//! The plain pages that every listener has: is it alive, what does it count,
//! what can be called.

use std::sync::LazyLock;

use axum::{
    Router,
    body::Body,
    extract::{Extension, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header},
    response::{IntoResponse, Redirect},
    routing::get,
};
use bytes::Bytes;
use tonic::Status;

use super::{MetricsPage, Readiness, WebSocketPage, front::refuse, rpc::Rpc, web_socket};
use crate::{
    identity::{Connection, Kind, METRICS_PAGES, Role},
    telemetry::{self, Metrics},
};

#[derive(Clone)]
struct Pages {
    rpc: Rpc,
    metrics: Metrics,
    ready: Option<Readiness>,
}

pub(super) fn router(
    rpc: Rpc,
    metrics: Metrics,
    ready: Option<Readiness>,
    metrics_pages: Vec<(&'static str, MetricsPage)>,
    leads_to_docs: bool,
) -> Router {
    let mut router = Router::new();
    if leads_to_docs {
        router = router.route("/", get(|| async { Redirect::temporary("/docs") }));
    }
    for (path, page) in metrics_pages {
        router = router.route(path, get(more_metrics).layer(Extension(page)));
    }
    router
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readiness", get(readiness_page))
        .route("/metrics", get(metrics_page))
        .route("/openapi.json", get(openapi_page))
        .route("/docs", get(docs_page))
        .route("/docs/{*file}", get(docs_page))
        .fallback(|uri: Uri| async move {
            // As the gateways of the originals say it.
            let plain = uri.path().starts_with("/api/v1/");
            let hint = if plain { "" } else { ": see /docs" };
            (StatusCode::NOT_FOUND, format!("Not Found{hint}\n"))
        })
        .with_state(Pages { rpc, metrics, ready })
}

/// The places where web sockets are opened.
pub(super) fn web_sockets(rpc: &Rpc, places: Vec<(&'static str, WebSocketPage)>) -> Router {
    places.into_iter().fold(Router::new(), |router, (path, page)| {
        let rpc = rpc.clone();
        let open = move |request: Request<Body>| async move {
            web_socket::answer(&rpc, &page, request).await
        };
        router.route(path, get(open))
    })
}

async fn readiness_page(State(pages): State<Pages>) -> Response<Body> {
    match pages.ready.map_or(Ok(()), |ready| ready.borrow().clone()) {
        Ok(()) => "OK".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics_page(
    State(pages): State<Pages>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Response<Body> {
    if let Err(status) = may_see_metrics(&pages, &connection, &headers).await {
        return refuse(&status);
    }
    ([(header::CONTENT_TYPE, telemetry::CONTENT_TYPE)], pages.metrics.render()).into_response()
}

async fn more_metrics(
    State(pages): State<Pages>,
    Extension(connection): Extension<Connection>,
    Extension(page): Extension<MetricsPage>,
    headers: HeaderMap,
) -> Response<Body> {
    if let Err(status) = may_see_metrics(&pages, &connection, &headers).await {
        return refuse(&status);
    }
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], page().await).into_response()
}

/// Counts can tell a stranger a lot: machines and those who may look.
async fn may_see_metrics(
    pages: &Pages,
    connection: &Connection,
    headers: &HeaderMap,
) -> Result<(), Status> {
    let caller = pages.rpc.identify(headers, connection).await?;
    let known = matches!(caller.kind, Kind::Machine(_));
    if let Kind::Delegate(limits) = &caller.kind
        && !(limits.methods.is_empty() || limits.methods.iter().any(|it| it == METRICS_PAGES))
    {
        let text = "not authorized: this token is limited to methods, without /metrics";
        return Err(Status::permission_denied(text));
    }
    if known || caller.has_role(Role::Admin) || caller.has_role(Role::Viewer) {
        return Ok(());
    }
    Err(if caller.kind == Kind::Anonymous {
        Status::unauthenticated("no token: /metrics is for admins, viewers and machines")
    } else {
        Status::permission_denied("not authorized: /metrics is for admins and viewers")
    })
}

async fn openapi_page() -> Response<Body> {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        let document = selvage_transcode::openapi(version, super::SESSION_COOKIE);
        serde_json::to_vec(&document).unwrap_or_default().into()
    });
    // Making it takes a while, and most servers are never asked for it.
    let made = tokio::task::spawn_blocking(|| Bytes::clone(&DOCUMENT)).await;
    ([(header::CONTENT_TYPE, "application/json")], made.unwrap_or_default()).into_response()
}

async fn docs_page(uri: Uri) -> Response<Body> {
    let Some((content_type, bytes)) = selvage_transcode::page(uri.path()) else {
        return (StatusCode::NOT_FOUND, "Not Found\n").into_response();
    };
    ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], bytes).into_response()
}
