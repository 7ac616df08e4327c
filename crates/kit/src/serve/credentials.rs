//! Credentials of a call: a bearer token, the browser's cookie, or the
//! certificate of its connection. In this order; the first decides.

use http::HeaderMap;
use selvage_api::Code;
use selvage_transcode::CONTENT_TYPE_HEADER;

use crate::{
    access::{Denied, Effect},
    identity::{Credentials, Secret},
};

/// Header of a call that a program makes on its own, such as a page that keeps
/// itself fresh while nobody looks. It is no use of the session.
pub const UNATTENDED: &str = "x-selvage-unattended";

/// Name of the browser's session cookie. `__Host-` binds it to this host, to
/// encrypted connections and to the root path.
pub const SESSION_COOKIE: &str = "__Host-sid";

/// The credentials in the headers. A cookie counts only if the browser can be
/// seen to have meant this call.
pub(super) fn shown(headers: &HeaderMap, effect: Effect) -> Result<Option<Credentials>, Denied> {
    if let Some(token) = bearer(headers) {
        return Ok(Some(Credentials::Bearer(token)));
    }
    let Some(cookie) = cookie(headers) else { return Ok(None) };
    if meant_by_the_page(headers, effect) {
        Ok(Some(Credentials::Cookie(cookie)))
    } else {
        Err(Denied {
            code: Code::PermissionDenied,
            message: "cross-site request refused: the session cookie is good only for calls \
                      from this server's own pages"
                .into(),
        })
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<Secret> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.trim();
    // The original dashboard's clients send the bare token as well.
    let token = match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        Some(_) => return Some(Secret::new(value)),
        None => value,
    };
    (!token.is_empty()).then(|| Secret::new(token))
}

fn cookie(headers: &HeaderMap) -> Option<Secret> {
    headers
        .get_all(http::header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == SESSION_COOKIE && !value.is_empty())
        .map(|(_, value)| Secret::new(value))
}

/// A foreign page can make a browser send our cookie, but it cannot forge
/// `Sec-Fetch-Site` or `Origin`, nor send a content type that HTML forms do
/// not know without asking us first.
fn meant_by_the_page(headers: &HeaderMap, effect: Effect) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin" || (site == "none" && effect != Effect::Write);
    }
    if let Some(origin) = text("origin") {
        let host = text(super::front::AUTHORITY).or_else(|| text("host"));
        return host.is_some_and(|host| origin_is(origin, host));
    }
    effect != Effect::Write || form_cannot_send(text(CONTENT_TYPE_HEADER.as_str()))
}

/// Returns whether a call to a server without any credentials can only come
/// from this machine's own user: it was asked for by a name of this machine,
/// and no page of another origin asked. A foreign page can make a browser call
/// loopback, under its own name too; stock clients send none of these headers.
pub(super) fn from_this_machine(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let authority = text(super::front::AUTHORITY).or_else(|| text("host"));
    if authority.is_some_and(|authority| !is_loopback(authority)) {
        return false;
    }
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return false;
    }
    match (text("origin"), authority) {
        (None, _) => true,
        (Some(origin), Some(authority)) => origin_is(origin, authority),
        (Some(_), None) => false,
    }
}

fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<http::uri::Authority>() else { return false };
    let host = authority.host().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn origin_is(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

fn form_cannot_send(content_type: Option<&str>) -> bool {
    let Some(content_type) = content_type else { return false };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("application/") && essence != "application/x-www-form-urlencoded"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONTENT_TYPE: &str = "x-selvage-content-type";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn token(pairs: &[(&'static str, &'static str)]) -> Option<String> {
        match shown(&headers(pairs), Effect::Write).unwrap()? {
            Credentials::Bearer(secret) | Credentials::Cookie(secret) => {
                Some(secret.expose().to_owned())
            }
            Credentials::Certificate(_) | Credentials::Assertion(_) => None,
        }
    }

    #[test]
    fn bearer_with_or_without_the_word() {
        assert_eq!(token(&[("authorization", "Bearer abc")]).as_deref(), Some("abc"));
        assert_eq!(token(&[("authorization", "bearer  abc ")]).as_deref(), Some("abc"));
        assert_eq!(token(&[("authorization", "abc")]).as_deref(), Some("abc"));
        assert_eq!(token(&[("authorization", "")]), None);
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn a_cookie_counts_only_from_our_own_pages() {
        let cookie = ("cookie", "theme=dark; __Host-sid=abc");
        let host = ("host", "edge.example:8443");
        let same = [cookie, ("sec-fetch-site", "same-origin")];
        assert_eq!(token(&same).as_deref(), Some("abc"));
        let origin = [cookie, host, ("origin", "https://edge.example:8443")];
        assert_eq!(token(&origin).as_deref(), Some("abc"));
        let json = [cookie, (CONTENT_TYPE, "application/json; charset=utf-8")];
        assert_eq!(token(&json).as_deref(), Some("abc"));

        for forged in [
            &[cookie, ("sec-fetch-site", "cross-site")][..],
            &[cookie, ("sec-fetch-site", "same-site")],
            &[cookie, ("sec-fetch-site", "none")],
            &[cookie, host, ("origin", "https://evil.example")],
            &[cookie, host, ("origin", "null")],
            &[cookie, (CONTENT_TYPE, "text/plain")],
            &[cookie, (CONTENT_TYPE, "application/x-www-form-urlencoded")],
            &[cookie],
        ] {
            let refused = shown(&headers(forged), Effect::Write).unwrap_err();
            assert_eq!(refused.code, Code::PermissionDenied, "{forged:?}");
        }
        assert!(shown(&headers(&[cookie]), Effect::Read).unwrap().is_some());
    }

    #[test]
    fn without_credentials_only_this_machine_is_served() {
        for own in [
            &[][..],
            &[("host", "127.0.0.1:8443")],
            &[("host", "[::1]:8443")],
            &[("host", "localhost:8443"), ("origin", "http://localhost:8443")],
            &[("host", "localhost"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(from_this_machine(&headers(own)), "{own:?}");
        }
        for foreign in [
            &[("host", "evil.example")][..],
            &[("host", "127.0.0.1.evil.example:8443")],
            &[("host", "127.0.0.1:8443"), ("origin", "http://evil.example")],
            &[("host", "127.0.0.1:8443"), ("origin", "null")],
            &[("host", "127.0.0.1:8443"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(!from_this_machine(&headers(foreign)), "{foreign:?}");
        }
    }
}
