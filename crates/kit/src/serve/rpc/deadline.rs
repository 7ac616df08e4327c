//! Deadline of a call, as gRPC says it.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use tokio::time::Instant;
use tonic::Status;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

pub(super) fn deadline_of(headers: &HeaderMap, now: Instant) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(parse_timeout).ok_or_else(|| {
        Status::invalid_argument("grpc-timeout is not 1 to 8 digits and one of H, M, S, m, u, n")
    })?;
    Ok(now.checked_add(parsed))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(amount * 3600)),
        'M' => Some(Duration::from_secs(amount * 60)),
        'S' => Some(Duration::from_secs(amount)),
        'm' => Some(Duration::from_millis(amount)),
        'u' => Some(Duration::from_micros(amount)),
        'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_as_grpc_writes_them() {
        assert_eq!(parse_timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse_timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "S", "1", "1x", "-1S", "123456789S", "1 S", "１S"] {
            assert_eq!(parse_timeout(wrong), None, "{wrong}");
        }
    }
}
