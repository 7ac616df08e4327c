//! The plain pages that every listener has: is it alive, what does it count,
//! what can be called.

use std::{io::Write, sync::LazyLock};

use axum::{
    Router,
    body::Body,
    extract::{Extension, Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header},
    response::{IntoResponse, Redirect},
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use tonic::Status;

use super::{MetricsPage, Readiness, WebSocketPage, front::refuse, rpc::Rpc, web_socket};
use crate::{
    access::MachineKind,
    identity::{Connection, Identity, Kind, METRICS_PAGES, Role},
    telemetry::{self, Metrics},
};

/// Machines that may see the page of a process. A controller's tells of all
/// instances, so it is for no agent.
const OF_PROCESS: &[MachineKind] = &[MachineKind::Controller];
/// Machines that may see the pages of parts: a Prometheus joins as a node.
const OF_PARTS: &[MachineKind] = &[MachineKind::Controller, MachineKind::Node];

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
    if let Err(status) = may_see_metrics(&pages, &connection, &headers, OF_PROCESS).await {
        return refuse(&status);
    }
    counts(&headers, telemetry::CONTENT_TYPE, pages.metrics.render().into())
}

async fn more_metrics(
    State(pages): State<Pages>,
    Extension(connection): Extension<Connection>,
    Extension(page): Extension<MetricsPage>,
    headers: HeaderMap,
) -> Response<Body> {
    if let Err(status) = may_see_metrics(&pages, &connection, &headers, OF_PARTS).await {
        return refuse(&status);
    }
    counts(&headers, "text/plain; version=0.0.4; charset=utf-8", page().await)
}

/// A page of counts, compressed for those who take it so: scrapers come every
/// few seconds, and their links may be paid by the byte.
fn counts(asked: &HeaderMap, content_type: &'static str, page: Bytes) -> Response<Body> {
    let zipped = takes_gzip(asked).then(|| gzip(&page)).and_then(Result::ok);
    let is_zipped = zipped.is_some();
    let mut response = Response::new(Body::from(zipped.unwrap_or(page)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if is_zipped {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn gzip(page: &[u8]) -> std::io::Result<Bytes> {
    let mut zip = GzEncoder::new(Vec::with_capacity(page.len() / 4), Compression::fast());
    zip.write_all(page)?;
    Ok(zip.finish()?.into())
}

/// Returns true if `Accept-Encoding` names gzip, or everything, and does not
/// refuse it by `q=0`.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let listed = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|it| it.to_str().ok());
    let codings: Vec<&str> = listed.flat_map(|list| list.split(',')).collect();
    let weight = |wanted: &str| {
        codings.iter().find_map(|coding| {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let weight = parameters.trim().strip_prefix("q=").map(|q| q.trim().parse::<f32>());
            let is_it = name.trim().eq_ignore_ascii_case(wanted);
            is_it.then(|| weight.and_then(Result::ok).unwrap_or(1.0))
        })
    };
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0.0)
}

/// Counts can tell a stranger a lot: machines, what runs on them and those who
/// may look.
async fn may_see_metrics(
    pages: &Pages,
    connection: &Connection,
    headers: &HeaderMap,
    machines: &[MachineKind],
) -> Result<(), Status> {
    judge_scraper(&pages.rpc.identify(headers, connection).await?, machines)
}

fn judge_scraper(caller: &Identity, machines: &[MachineKind]) -> Result<(), Status> {
    if let Kind::Delegate(limits) = &caller.kind
        && !(limits.methods.is_empty() || limits.methods.iter().any(|it| it == METRICS_PAGES))
    {
        let text = "not authorized: this token is limited to methods, without /metrics";
        return Err(Status::permission_denied(text));
    }
    let known = match &caller.kind {
        Kind::Machine(machine) => machines.contains(&MachineKind::of(machine)),
        _ => caller.has_role(Role::Admin) || caller.has_role(Role::Viewer),
    };
    if known {
        return Ok(());
    }
    Err(if caller.kind == Kind::Anonymous {
        Status::unauthenticated("no token: /metrics is for admins and viewers")
    } else {
        Status::permission_denied(
            "not authorized: /metrics is for admins and viewers, and /metrics/node for nodes too; \
             `selvage token create scrape --role viewer --method /metrics` makes a token",
        )
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use http_body_util::BodyExt;

    use super::*;
    use crate::identity::Machine;

    fn asking(encodings: &[&str]) -> HeaderMap {
        encodings.iter().map(|it| (header::ACCEPT_ENCODING, it.parse().unwrap())).collect()
    }

    #[test]
    fn counts_are_for_those_who_see_all_of_them() {
        let judged = |caller: &Identity, machines| judge_scraper(caller, machines).is_ok();
        for (name, process, part) in [
            ("controller", true, true),
            ("node/rack1", false, true),
            ("cloudlet/tmus/west", false, false),
            ("dme/west", false, false),
        ] {
            let machine = Identity::machine(Machine::parse(name).unwrap());
            assert_eq!(judged(&machine, OF_PROCESS), process, "{name}");
            assert_eq!(judged(&machine, OF_PARTS), part, "{name}");
        }
        let nobody = judge_scraper(&Identity::anonymous(), OF_PARTS).unwrap_err();
        assert_eq!(nobody.code(), tonic::Code::Unauthenticated);
    }

    #[tokio::test]
    async fn counts_are_compressed_for_those_who_take_it() {
        let page = Bytes::from("up 1\n".repeat(500));
        let zipped =
            counts(&asking(&["deflate, gzip;q=0.5"]), telemetry::CONTENT_TYPE, page.clone());
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip");
        let bytes = zipped.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.len() < page.len());
        let mut read = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut read).unwrap();
        assert_eq!(read.as_bytes(), page);
        let plain = counts(&HeaderMap::new(), telemetry::CONTENT_TYPE, page.clone());
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        assert_eq!(plain.into_body().collect().await.unwrap().to_bytes(), page);
    }

    #[test]
    fn encodings_are_read_as_http_means_them() {
        for yes in [&["gzip"][..], &["br", "GZIP"], &["*"], &["gzip;q=1.0,*;q=0"]] {
            assert!(takes_gzip(&asking(yes)), "{yes:?}");
        }
        for no in [&[][..], &["br"], &["gzip;q=0"], &["gzip; q=0.0, *"], &["identity"]] {
            assert!(!takes_gzip(&asking(no)), "{no:?}");
        }
    }
}
