//! Headers that cross between the outer request and the inner call.

use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};

use crate::{Error, grpc_timeout};

/// Tells the inner service which protocol the caller spoke: `rest` or
/// `connect`. Absent on calls that came as gRPC.
pub const PROTOCOL_HEADER: HeaderName = HeaderName::from_static("x-selvage-protocol");

/// The content type of the caller's request, for rules about browsers.
pub const CONTENT_TYPE_HEADER: HeaderName = HeaderName::from_static("x-selvage-content-type");

/// Removes what only the transcoder may say, for requests that do not go
/// through it.
pub fn strip_internal(headers: &mut HeaderMap) {
    headers.remove(PROTOCOL_HEADER);
    headers.remove(CONTENT_TYPE_HEADER);
}

/// Headers about one connection or one encoding of the body: they end here.
fn is_of_this_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "accept"
            | "accept-encoding"
            | "connection"
            | "content-encoding"
            | "content-length"
            | "content-type"
            | "expect"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// The headers of the inner call.
pub(crate) fn for_inner(
    parts: &Parts,
    protocol: &'static str,
    timeout: Option<HeaderValue>,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(parts.headers.len() + 6);
    for (name, value) in &parts.headers {
        let own = name.as_str().starts_with("grpc-") || name.as_str().starts_with("connect-");
        if !own && !is_of_this_hop(name) {
            headers.append(name, value.clone());
        }
    }
    strip_internal(&mut headers);
    if let Some(value) = parts.headers.get(header::CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE_HEADER, value.clone());
    }
    let authority = parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    if let (Some(authority), false) = (authority, headers.contains_key(header::HOST)) {
        headers.insert(header::HOST, authority);
    }
    headers.insert(PROTOCOL_HEADER, HeaderValue::from_static(protocol));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    if let Some(timeout) = timeout {
        headers.insert("grpc-timeout", timeout);
    }
    headers
}

/// The deadline of a REST call: a `Grpc-Timeout` header, checked.
pub(crate) fn rest_timeout(headers: &HeaderMap) -> Result<Option<HeaderValue>, Error> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    if value.to_str().is_ok_and(|text| grpc_timeout::parse(text).is_some()) {
        return Ok(Some(value.clone()));
    }
    Err(Error::Header {
        name: "Grpc-Timeout",
        reason: "expected at most eight digits and one of H M S m u n".to_owned(),
    })
}

/// The deadline of a Connect call as gRPC spells it.
pub(crate) fn connect_timeout(headers: &HeaderMap) -> Result<Option<HeaderValue>, Error> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let digits = value.as_bytes();
    let valid = (1..=10).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let millis = value.to_str().ok().filter(|_| valid).and_then(|text| text.parse::<u64>().ok());
    let Some(millis) = millis else {
        return Err(Error::Header {
            name: "Connect-Timeout-Ms",
            reason: "expected at most ten digits".to_owned(),
        });
    };
    // gRPC allows eight digits; what has more is given in seconds.
    let text =
        if millis < 100_000_000 { format!("{millis}m") } else { format!("{}S", millis / 1000) };
    Ok(HeaderValue::from_str(&text).ok())
}

/// Metadata of the inner reply that the caller should see, under its own name
/// or with a prefix.
pub(crate) fn pass_on(from: &HeaderMap, to: &mut HeaderMap, prefix: &str) {
    for (name, value) in metadata(from) {
        if prefix.is_empty() {
            to.append(name, value.clone());
        } else if let Ok(prefixed) = HeaderName::try_from(format!("{prefix}{name}")) {
            to.append(prefixed, value.clone());
        }
    }
}

/// Headers or trailers that are neither gRPC's own nor about this hop.
pub(crate) fn metadata(from: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    from.iter().filter(|(name, _)| {
        !is_of_this_hop(name) && !name.as_str().starts_with("grpc-") && *name != header::DATE
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn one(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )])
    }

    #[test]
    fn deadlines_are_checked_and_translated() {
        let connect = |value: &str| connect_timeout(&one("connect-timeout-ms", value));
        assert_eq!(connect("250").unwrap().unwrap(), "250m");
        assert_eq!(connect("9999999999").unwrap().unwrap(), "9999999S");
        for bad in ["", "-1", "1.5", "12345678901", "soon"] {
            assert!(connect(bad).is_err(), "{bad}");
        }
        let rest = |value: &str| rest_timeout(&one("grpc-timeout", value));
        assert_eq!(rest("3S").unwrap().unwrap(), "3S");
        for bad in ["", "S", "3", "123456789S", "3x"] {
            assert!(rest(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_caller_cannot_say_what_only_we_may() {
        let request = http::Request::builder()
            .uri("https://edge.example/show/app")
            .header("authorization", "Bearer x")
            .header("cookie", "a=b")
            .header("cookie", "c=d")
            .header("x-selvage-protocol", "grpc")
            .header("x-selvage-content-type", "forged")
            .header("grpc-encoding", "gzip")
            .header("connection", "close")
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let headers = for_inner(&request.into_parts().0, "rest", None);
        assert_eq!(headers.get_all("x-selvage-protocol").iter().collect::<Vec<_>>(), ["rest"]);
        assert_eq!(headers["x-selvage-content-type"], "application/json");
        assert_eq!(headers["content-type"], "application/grpc");
        assert_eq!(headers["host"], "edge.example");
        assert_eq!(headers.get_all("cookie").iter().count(), 2);
        assert_eq!(headers["authorization"], "Bearer x");
        assert!(!headers.contains_key("grpc-encoding") && !headers.contains_key("connection"));

        let silent = http::Request::builder().header("x-selvage-content-type", "forged").body(());
        let headers = for_inner(&silent.unwrap().into_parts().0, "connect", None);
        assert!(!headers.contains_key("x-selvage-content-type"));
    }
}
