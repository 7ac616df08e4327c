//! Failures of a cluster, with the text of the API server.

use kube::core::Status;
use selvage_api::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server refused.
    #[error("{doing}: {}", message(.status))]
    Api { doing: String, status: Box<Status> },
    #[error("{doing}: the cluster does not answer: {reason}")]
    Unreachable { doing: String, reason: String },
    /// A kubeconfig or credentials that cannot be used.
    #[error("{what}: {reason}")]
    Config { what: String, reason: String },
    #[error("{what} not found")]
    NotFound { what: String },
    /// An object that was deleted and is still there.
    #[error("{what} does not go{reason}")]
    NotDeleted { what: String, reason: String },
    /// An applied workload does not run.
    #[error("{reason}")]
    Rollout { reason: String },
}

impl Error {
    /// Meaning of this failure to a caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Api { status, .. } => match status.code {
                400 | 422 => Code::InvalidArgument,
                401 => Code::Unauthenticated,
                403 => Code::PermissionDenied,
                404 => Code::NotFound,
                409 => Code::Aborted,
                429 | 503 | 504 => Code::Unavailable,
                _ => Code::Internal,
            },
            Self::Unreachable { .. } => Code::Unavailable,
            Self::NotFound { .. } => Code::NotFound,
            Self::Config { .. } | Self::NotDeleted { .. } | Self::Rollout { .. } => {
                Code::FailedPrecondition
            }
        }
    }

    /// Returns whether the API server refused to change a field that is set for life.
    pub fn is_immutable(&self) -> bool {
        const TEXTS: [&str; 4] =
            ["immutable", "may not change", "updates to statefulset spec", "pod updates may not"];
        let Self::Api { status, .. } = self else { return false };
        status.code == 422 && TEXTS.iter().any(|text| status.message.contains(text))
    }

    pub(crate) fn config(what: &str, error: &dyn std::error::Error) -> Self {
        Self::Config { what: what.to_owned(), reason: selvage_api::chain(error) }
    }
}

fn message(status: &Status) -> &str {
    if status.message.is_empty() { &status.reason } else { &status.message }
}

/// `.context("listing pods")` on an answer of the `kube` crate.
pub trait Context<T> {
    fn context(self, doing: &str) -> Result<T>;
}

impl<T> Context<T> for Result<T, kube::Error> {
    fn context(self, doing: &str) -> Result<T> {
        let doing = doing.to_owned();
        self.map_err(|error| match error {
            kube::Error::Api(status) => Error::Api { doing, status },
            other => Error::Unreachable { doing, reason: selvage_api::chain(&other) },
        })
    }
}

/// Returns none where the API server answers "not found".
pub fn ignore_not_found<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn refused(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(message, "Reason").with_code(code)))
    }

    #[test]
    fn refusals_keep_their_text_and_get_a_code() {
        for (status, code) in [
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (409, Code::Aborted),
            (422, Code::InvalidArgument),
            (503, Code::Unavailable),
            (500, Code::Internal),
        ] {
            let error = Err::<(), _>(refused(status, "no")).context("making it").unwrap_err();
            assert_eq!((error.code(), error.to_string()), (code, "making it: no".to_owned()));
        }
        let error = Err::<(), _>(refused(418, "")).context("making it").unwrap_err();
        assert_eq!(error.to_string(), "making it: Reason");
    }

    #[test]
    fn only_a_field_for_life_is_immutable() {
        let of = |code, text| Err::<(), _>(refused(code, text)).context("x").unwrap_err();
        assert!(of(422, "spec.selector: field is immutable").is_immutable());
        assert!(!of(403, "spec.selector: field is immutable").is_immutable());
        assert!(!of(422, "spec.replicas: invalid value").is_immutable());
    }

    #[test]
    fn what_is_gone_is_none() {
        assert!(ignore_not_found::<()>(Err(refused(404, "gone"))).unwrap().is_none());
        assert!(ignore_not_found::<()>(Err(refused(403, "no"))).is_err());
        assert_eq!(ignore_not_found(Ok(7)).unwrap(), Some(7));
    }
}
