//! The metadata by which a caller names nodes, and what of it nodes are sent.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use selvage_kit::{assertion, serve::relay};
use tonic::Status;

pub(super) const PROXY_FROM: &str = "proxyfrom";
pub(super) const NODES: &str = "nodes";
pub(super) const NODE: &str = "node";
pub(super) const NODE_TIMEOUT: &str = "node-timeout";
/// Header by which the listener tells the host that the caller asked for.
const AUTHORITY: &str = "x-selvage-authority";
/// Headers by which a listener speaks to itself.
const INTERNAL: &str = "x-selvage-";

/// Maximum number of nodes in a list.
const MAX_NODES: usize = 4096;

/// The values of a header that may be given several times, or once with
/// commas; an empty one is as wrong as the original has it.
pub(super) fn names(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Status> {
    let mut names = Vec::new();
    for value in headers.get_all(name) {
        let value = value
            .to_str()
            .map_err(|_| Status::invalid_argument(format!("{name} metadata is not text")))?;
        names.extend(value.split(',').map(|part| part.trim().to_owned()));
    }
    if names.iter().any(String::is_empty) {
        return Err(Status::invalid_argument("invalid target \"\""));
    }
    within_limit(&names).map(|()| names)
}

pub(super) fn within_limit(names: &[String]) -> Result<(), Status> {
    match names.len() {
        0..=MAX_NODES => Ok(()),
        count => Err(Status::invalid_argument(format!(
            "{count} nodes are named, at most {MAX_NODES} are called at once"
        ))),
    }
}

/// Returns the caller's headers that a node is sent.
pub(super) fn outgoing(
    incoming: &HeaderMap,
    timeout: Option<Duration>,
) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::with_capacity(incoming.len() + 6);
    for (name, value) in incoming {
        if !stays_here(name) {
            headers.append(name, value.clone());
        }
    }
    let from = incoming.get(AUTHORITY).or_else(|| incoming.get(header::HOST));
    let unknown = HeaderValue::from_static("unknown");
    headers.insert(PROXY_FROM, from.cloned().unwrap_or(unknown));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    if let Some(timeout) = timeout {
        let millis = timeout.as_millis().clamp(1, 99_999_999);
        headers.insert(
            "grpc-timeout",
            HeaderValue::try_from(format!("{millis}m"))
                .map_err(|_| Status::internal("a timeout cannot be written"))?,
        );
    }
    Ok(headers)
}

/// Headers about the caller's connection, browser or credentials.
fn stays_here(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with(INTERNAL)
        || name.starts_with("grpc-")
        || name.starts_with("connect-")
        || name.starts_with("proxy-")
        || name.starts_with("sec-")
        || name.starts_with("access-control-")
        || matches!(
            name,
            NODES
                | NODE
                | NODE_TIMEOUT
                | relay::CALLER
                | assertion::HEADER
                | "accept"
                | "accept-encoding"
                | "accept-language"
                | "authorization"
                | "cache-control"
                | "connection"
                | "content-encoding"
                | "content-length"
                | "content-type"
                | "cookie"
                | "expect"
                | "host"
                | "keep-alive"
                | "origin"
                | "pragma"
                | "referer"
                | "te"
                | "token"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn credentials_stay_with_the_entry() {
        let mut incoming = HeaderMap::new();
        for name in [
            "authorization",
            "cookie",
            "token",
            "nodes",
            "node",
            "selvage-caller-bin",
            "selvage-assertion",
            "x-selvage-protocol",
            "host",
            "grpc-timeout",
            "sec-fetch-site",
        ] {
            incoming.insert(HeaderName::from_static(name), HeaderValue::from_static("canary"));
        }
        incoming.insert("signal-only", HeaderValue::from_static("yes"));
        incoming.insert(AUTHORITY, HeaderValue::from_static("entry:1"));
        let sent = outgoing(&incoming, Some(Duration::from_secs(2))).unwrap();
        assert!(!format!("{sent:?}").contains("canary"), "{sent:?}");
        assert_eq!(sent["signal-only"], "yes");
        assert_eq!(sent["proxyfrom"], "entry:1");
        assert_eq!(sent["grpc-timeout"], "2000m");
    }

    #[test]
    fn lists_of_nodes() {
        let mut headers = HeaderMap::new();
        headers.append(NODES, HeaderValue::from_static("a, b"));
        headers.append(NODES, HeaderValue::from_static("::1"));
        assert_eq!(names(&headers, NODES).unwrap(), ["a", "b", "::1"]);
        headers.append(NODES, HeaderValue::from_static("c,,d"));
        assert_eq!(names(&headers, NODES).unwrap_err().message(), "invalid target \"\"");
    }
}
