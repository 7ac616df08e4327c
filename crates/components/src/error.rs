//! Reasons why a machine is not what it has to be.

use std::{io, path::PathBuf};

use selvage_api::Code;
use tonic::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was refused, or did not happen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All fields that are wrong.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    #[error("generation {given} is older than {kept}, which this machine has")]
    OldGeneration { given: u64, kept: u64 },
    #[error("generation {0} was something else before: count it up with every change")]
    SameGeneration(u64),
    #[error("this machine is in cluster {0:?}: reset it first")]
    OtherCluster(String),
    #[error("this machine is in no cluster")]
    NoCluster,
    #[error("this machine is no member of the control plane")]
    NoControlPlane,
    #[error("certificates: {profile} does not fit the key of this machine: {reason}")]
    Certificate { profile: &'static str, reason: String },
    #[error("{name} {version} is not on this machine")]
    Missing { name: String, folder: &'static str, version: String },
    #[error("sha256: is {found}, {wanted} was expected")]
    Digest { wanted: String, found: String },
    #[error("{program}: {text}")]
    Program { program: &'static str, text: String },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{path}: {reason}")]
    Damaged { path: String, reason: String },
    #[error(transparent)]
    Runtime(#[from] selvage_runtime::Error),
    #[error("balancer: {0}")]
    Balancer(#[from] selvage_balancer::Error),
    #[error("key: {0}")]
    Key(#[from] rcgen::Error),
    #[error(transparent)]
    Pki(#[from] selvage_kit::pki::Error),
    #[error("etcd: {0}")]
    Etcd(#[from] etcd_client::Error),
    /// A state of etcd that forbids it.
    #[error("etcd: {0}")]
    EtcdState(String),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) | Self::Certificate { .. } | Self::Digest { .. } => {
                Code::InvalidArgument
            }
            Self::OldGeneration { .. }
            | Self::SameGeneration(_)
            | Self::OtherCluster(_)
            | Self::NoCluster
            | Self::NoControlPlane
            | Self::EtcdState(_)
            | Self::Missing { .. } => Code::FailedPrecondition,
            Self::Program { .. } | Self::File { .. } | Self::Damaged { .. } | Self::Key(_) => {
                Code::Internal
            }
            Self::Runtime(error) => error.code(),
            Self::Balancer(_) | Self::Etcd(_) => Code::Unavailable,
            Self::Pki(error) => error.code(),
        }
    }

    /// Makes an error of a file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code().grpc(), error.to_string())
    }
}
