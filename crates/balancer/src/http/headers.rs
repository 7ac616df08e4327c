//! Headers of a message that are passed on, and those that are added.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Version,
    header::{
        CONNECTION, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
    },
};

/// Said from one side to the next, never further.
static ONE_HOP: [HeaderName; 8] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Returns the host that a request is for, or what is wrong with it.
pub(super) fn host<B>(request: &Request<B>) -> Result<Option<HeaderValue>, &'static str> {
    if let Some(authority) = request.uri().authority() {
        let text = authority.as_str();
        let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
        return HeaderValue::from_str(host).map(Some).map_err(|_| "bad host");
    }
    let mut values = request.headers().get_all(HOST).iter();
    match (values.next(), values.next()) {
        (Some(host), None) => Ok(Some(host.clone())),
        (Some(_), Some(_)) => Err("more than one host"),
        (None, _) if request.version() >= Version::HTTP_11 => Err("no host"),
        (None, _) => Ok(None),
    }
}

/// The protocol that a client wants to go on with on this connection. Not
/// HTTP/2: what it then says could not be looked at any more.
pub(super) fn upgrade<B>(request: &Request<B>) -> Option<HeaderValue> {
    if request.version() != Version::HTTP_11 || !names(request.headers(), "upgrade") {
        return None;
    }
    let wanted = request.headers().get(UPGRADE)?;
    let protocols = wanted.to_str().ok()?.split(',').map(str::trim);
    let http = |protocol: &str| {
        let name = protocol.split('/').next().unwrap_or_default();
        name.eq_ignore_ascii_case("h2c") || name.eq_ignore_ascii_case("http")
    };
    (!protocols.into_iter().any(http)).then(|| wanted.clone())
}

/// Returns whether this is a call that only HTTP/2 can carry.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_2
        && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// Returns whether `Connection` names this.
fn names(headers: &HeaderMap, name: &str) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(name))
}

/// Takes away what is not for the side after the next.
pub(super) fn strip_hop(headers: &mut HeaderMap) {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> = values
        .flat_map(|value| value.split(','))
        .filter_map(|item| item.trim().parse().ok())
        // Whoever names these wants us to take away what we go by.
        .filter(|name| *name != HOST && *name != http::header::CONTENT_LENGTH)
        .collect();
    for name in named.iter().chain(&ONE_HOP) {
        headers.remove(name);
    }
}

/// Sender of a request, as targets see it.
pub(super) struct Sender<'a> {
    pub(super) address: IpAddr,
    pub(super) encrypted: bool,
    pub(super) host: Option<&'a HeaderValue>,
    pub(super) prefix: &'a str,
}

/// Makes a client's headers those that a target gets. Nobody stands before
/// us, so what clients say about who they are is not passed on.
pub(super) fn towards_target(headers: &mut HeaderMap, sender: &Sender<'_>, grpc: bool) {
    strip_hop(headers);
    let claimed: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("x-forwarded-")).cloned().collect();
    for name in claimed.iter().chain(&[EXPECT, FORWARDED]) {
        headers.remove(name);
    }
    if let Ok(address) = HeaderValue::from_str(&sender.address.to_string()) {
        headers.insert(FORWARDED_FOR, address);
    }
    let protocol = if sender.encrypted { "https" } else { "http" };
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(protocol));
    if let Some(host) = sender.host {
        headers.insert(FORWARDED_HOST, host.clone());
        headers.insert(HOST, host.clone());
    }
    if !sender.prefix.is_empty()
        && let Ok(prefix) = HeaderValue::from_str(&format!("/{}", sender.prefix))
    {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
    if grpc {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    } else {
        join_cookies(headers);
    }
}

/// HTTP/2 may send cookies one by one; HTTP/1 has them in one line.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let mut line = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        line.extend_from_slice(b"; ");
        line.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(line) = HeaderValue::from_bytes(&line) {
        headers.insert(COOKIE, line);
    }
}

/// Asks, or agrees, to go on with another protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(pair).collect()
    }

    fn request(lines: &[(&'static str, &'static str)], uri: &str) -> Request<()> {
        let mut request = Request::get(uri).body(()).unwrap();
        *request.headers_mut() = headers(lines);
        request
    }

    #[test]
    fn only_what_is_for_the_target_goes_on() {
        let mut map = headers(&[
            ("connection", "close, X-Secret, host, content-length"),
            ("x-secret", "1"),
            ("content-length", "5"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "basic x"),
            ("expect", "100-continue"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-user", "root"),
            ("authorization", "bearer x"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);
        let host = HeaderValue::from_static("shop.example");
        let address = "192.0.2.7".parse().unwrap();
        let sender = Sender { address, encrypted: true, host: Some(&host), prefix: "a/b" };
        towards_target(&mut map, &sender, false);
        let mut left: Vec<_> =
            map.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        let expected = [
            ("authorization", "bearer x"),
            ("content-length", "5"),
            ("cookie", "a=1; b=2"),
            ("host", "shop.example"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-prefix", "/a/b"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn a_request_is_for_one_host() {
        let text = |request: &Request<()>| {
            host(request).map(|host| host.map(|host| host.to_str().unwrap().to_owned()))
        };
        assert_eq!(text(&request(&[("host", "a:1")], "/")), Ok(Some("a:1".into())));
        assert_eq!(text(&request(&[("host", "a")], "http://u@b/")), Ok(Some("b".into())));
        assert_eq!(text(&request(&[("host", "a"), ("host", "b")], "/")), Err("more than one host"));
        assert_eq!(text(&request(&[], "/")), Err("no host"));
        let mut old = request(&[], "/");
        *old.version_mut() = Version::HTTP_10;
        assert_eq!(text(&old), Ok(None));
    }

    #[test]
    fn http_is_no_protocol_to_go_on_with() {
        let wants = |connection: &'static str, protocol: &'static str| {
            upgrade(&request(&[("connection", connection), ("upgrade", protocol)], "/")).is_some()
        };
        assert!(wants("keep-alive, Upgrade", "websocket"));
        assert!(!wants("keep-alive", "websocket"));
        for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0"] {
            assert!(!wants("upgrade", protocol), "{protocol}");
        }
    }
}
