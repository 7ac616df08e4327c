//! The page, as it was built into the binary: compressed before, under names
//! that change with the content, so that browsers keep what they have.

use axum::{Router, body::Body, routing::get};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};

/// A file of the page.
struct File {
    /// Path under which it is served.
    path: &'static str,
    media: &'static str,
    etag: &'static str,
    /// Another content would have another path.
    immutable: bool,
    plain: &'static [u8],
    gzip: &'static [u8],
    brotli: &'static [u8],
}

/// Files that `ui/` was built into; none where it was not built.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

const STUB: &str = include_str!("stub.html");
const YEAR: &str = "public, max-age=31536000, immutable";

/// The page and everything it consists of.
pub fn page() -> Router {
    let serve = |uri: Uri, headers: HeaderMap| async move { answer(FILES, uri.path(), &headers) };
    Router::new().route("/", get(serve)).route("/assets/{*file}", get(serve))
}

fn answer(files: &[File], path: &str, headers: &HeaderMap) -> Response<Body> {
    if files.is_empty() && path == "/" {
        return with(StatusCode::OK, "text/html; charset=utf-8", Body::from(STUB));
    }
    let Some(file) = files.iter().find(|file| file.path == path) else {
        return with(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "Not Found\n".into());
    };
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let fresh = known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == file.etag));
    let mut response = if fresh {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let (coding, bytes) = coded(file, headers);
        let mut response = with(StatusCode::OK, file.media, Body::from(bytes));
        if let Some(coding) = coding {
            let coding = HeaderValue::from_static(coding);
            response.headers_mut().insert(header::CONTENT_ENCODING, coding);
        }
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::ETAG, HeaderValue::from_static(file.etag));
    let caching = if file.immutable { YEAR } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

fn with(status: StatusCode, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// The smallest form that the browser takes.
fn coded(file: &File, headers: &HeaderMap) -> (Option<&'static str>, &'static [u8]) {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let takes = |coding: &str| {
        accepted.iter().flat_map(|line| line.split(',')).any(|part| {
            let mut words = part.split(';').map(str::trim);
            let named = words.next().is_some_and(|name| name.eq_ignore_ascii_case(coding));
            named && !words.any(|word| matches!(word, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
        })
    };
    if takes("br") {
        (Some("br"), file.brotli)
    } else if takes("gzip") {
        (Some("gzip"), file.gzip)
    } else {
        (None, file.plain)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PAGE: &[File] = &[
        File {
            path: "/",
            media: "text/html; charset=utf-8",
            etag: "\"a\"",
            immutable: false,
            plain: b"page",
            gzip: b"gz",
            brotli: b"br",
        },
        File {
            path: "/assets/app-1.js",
            media: "text/javascript; charset=utf-8",
            etag: "\"b\"",
            immutable: true,
            plain: b"code",
            gzip: b"gz",
            brotli: b"br",
        },
    ];

    fn asked(path: &str, name: header::HeaderName, value: &str) -> Response<Body> {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
        answer(PAGE, path, &headers)
    }

    fn coding(response: &Response<Body>) -> Option<&HeaderValue> {
        response.headers().get(header::CONTENT_ENCODING)
    }

    #[test]
    fn browsers_get_the_smallest_form_they_take() {
        let ask = |accept: &str| asked("/", header::ACCEPT_ENCODING, accept);
        assert_eq!(coding(&ask("gzip, deflate, br, zstd")).unwrap(), "br");
        assert_eq!(coding(&ask("gzip;q=0.5, br;q=0")).unwrap(), "gzip");
        assert_eq!(coding(&ask("identity")), None);
        assert_eq!(ask("br").headers()[header::VARY], "accept-encoding");
    }

    #[test]
    fn what_never_changes_is_kept_and_the_page_is_asked_for_again() {
        let script = asked("/assets/app-1.js", header::ACCEPT, "*/*");
        assert_eq!(script.headers()[header::CACHE_CONTROL], YEAR);
        let page = asked("/", header::ACCEPT, "*/*");
        assert_eq!(page.headers()[header::CACHE_CONTROL], "no-cache");
        let again = asked("/", header::IF_NONE_MATCH, "\"x\", \"a\"");
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        let other = asked("/", header::IF_NONE_MATCH, "\"x\"");
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[test]
    fn without_a_built_page_the_answer_says_how_to_build_it() {
        let stub = answer(&[], "/", &HeaderMap::new());
        assert_eq!(stub.status(), StatusCode::OK);
        assert!(STUB.contains("./dev ui"));
        assert_eq!(answer(PAGE, "/assets/../x", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&[], "/assets/x", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
