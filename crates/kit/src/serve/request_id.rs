//! Id of a request: in the header of its reply, in log lines and in the audit
//! log, so that what somebody reports can be found.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header that carries it. A caller may choose one.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken from a caller.
const LONGEST: usize = 64;

/// Id of one request.
#[derive(Debug, Clone)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the caller's id where it is one that a log line can hold, else a
    /// new one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let chosen = headers.get(HEADER).filter(|value| is_plain(value.as_bytes()));
        Self(chosen.cloned().unwrap_or_else(random))
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// Puts the id into the headers of a reply.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        headers.insert(HEADER, self.0);
    }
}

fn is_plain(text: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    (1..=LONGEST).contains(&text.len()) && text.iter().all(plain)
}

fn random() -> HeaderValue {
    let id = format!("{:016x}", rand::random::<u64>());
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id_for(chosen: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, chosen.parse().unwrap());
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn a_caller_chooses_an_id_that_a_log_line_can_hold() {
        assert_eq!(id_for("ci-42_a.b"), "ci-42_a.b");
        for chosen in ["", "two words", "\"quoted\"", "ümlaut", &"x".repeat(LONGEST + 1)] {
            let id = id_for(chosen);
            assert!(id.len() == 16 && id != chosen, "{chosen:?} became {id}");
        }
    }

    #[test]
    fn every_request_has_another_id() {
        let headers = HeaderMap::new();
        assert_ne!(RequestId::of(&headers).as_str(), RequestId::of(&headers).as_str());
    }
}
