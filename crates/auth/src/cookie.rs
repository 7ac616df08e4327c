//! The cookies of browsers. `__Host-` binds them to this very host and makes
//! the browser insist on `Secure` and `Path=/`.

use std::time::Duration;

use http::HeaderMap;

/// Carries the session.
pub(crate) const SESSION: &str = "__Host-sid";
/// Binds an OpenID Connect login to the browser that began it.
pub(crate) const OIDC: &str = "__Host-oidc";

pub(crate) fn session(token: &str, lifetime: Duration) -> String {
    cookie(SESSION, token, "Strict", lifetime)
}

pub(crate) fn end_session() -> String {
    cookie(SESSION, "", "Strict", Duration::ZERO)
}

/// Lax: the browser comes back from the provider, which is another site.
pub(crate) fn oidc(binding: &str, lifetime: Duration) -> String {
    cookie(OIDC, binding, "Lax", lifetime)
}

pub(crate) fn end_oidc() -> String {
    cookie(OIDC, "", "Lax", Duration::ZERO)
}

fn cookie(name: &str, value: &str, same_site: &str, lifetime: Duration) -> String {
    let age = lifetime.as_secs();
    format!("{name}={value}; Path=/; Secure; HttpOnly; SameSite={same_site}; Max-Age={age}")
}

/// The value of a cookie in a request.
pub(crate) fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(http::header::COOKIE)
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cookies_carry_every_attribute_that_their_prefix_needs() {
        let text = session("slv_x", Duration::from_secs(60));
        assert_eq!(text, "__Host-sid=slv_x; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=60");
        assert!(end_session().starts_with("__Host-sid=; ") && end_session().ends_with("Max-Age=0"));
    }

    #[test]
    fn a_cookie_is_found_among_others_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append("cookie", "a=1; x__Host-sid=no".parse().unwrap());
        headers.append("cookie", "b=2; __Host-sid=yes".parse().unwrap());
        assert_eq!(find(&headers, SESSION), Some("yes"));
        assert_eq!(find(&headers, OIDC), None);
    }
}
