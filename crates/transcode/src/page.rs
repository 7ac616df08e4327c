//! The browsable page over the OpenAPI document.

/// Policy on what the page may load and call; the listener sends it with each
/// file.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; \
style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
form-action 'self'; frame-ancestors 'none'";

/// A file of the page with its content type, by the path it is served at.
pub fn page(path: &str) -> Option<(&'static str, &'static [u8])> {
    Some(match path {
        "/docs" | "/docs/" => {
            ("text/html; charset=utf-8", include_bytes!("../page/index.html").as_slice())
        }
        "/docs/docs.js" => {
            ("text/javascript; charset=utf-8", include_bytes!("../page/docs.js").as_slice())
        }
        "/docs/docs.css" => {
            ("text/css; charset=utf-8", include_bytes!("../page/docs.css").as_slice())
        }
        _ => return None,
    })
}
