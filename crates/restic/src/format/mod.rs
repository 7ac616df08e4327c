//! Formats of the files of a repository. No files are touched here.

mod config;
mod envelope;
mod index;
mod lock;
mod pack;
mod snapshot;
mod time;
mod tree;

pub use config::Config;
pub(crate) use config::VERSIONS;
pub use envelope::{decode, encode};
pub use index::{IndexBlob, IndexFile, IndexPack};
pub use lock::LockFile;
pub use pack::{BlobKind, PackedBlob, header_plain, parse_header};
pub use snapshot::Snapshot;
pub use time::CLOCK_TOLERANCE;
pub(crate) use time::is_ahead;
pub use tree::{Node, NodeKind, Tree};

/// The text of a file does not follow the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    pub(crate) fn because(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}
