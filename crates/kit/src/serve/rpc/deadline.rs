//! Deadline of a call, as gRPC says it.

use http::{HeaderMap, HeaderName};
use selvage_transcode::grpc_timeout;
use tokio::time::Instant;
use tonic::Status;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

pub(super) fn deadline_of(headers: &HeaderMap, now: Instant) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(grpc_timeout::parse).ok_or_else(|| {
        Status::invalid_argument("grpc-timeout is not 1 to 8 digits and one of H, M, S, m, u, n")
    })?;
    Ok(now.checked_add(parsed))
}
