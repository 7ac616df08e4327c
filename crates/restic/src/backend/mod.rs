//! Storage of the files of a repository.

mod directory;
mod options;
mod outage;
mod rest;
mod s3;
mod send;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Id, Result};

pub use directory::Directory;
pub use options::StoreOptions;
pub use outage::Outage;
pub use rest::Rest;
pub use s3::S3;

/// The kinds of files that are named by their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Many blobs in one file.
    Pack,
    /// Which blob is in which pack.
    Index,
    /// A master key, sealed with a password.
    Key,
    /// A moment of a volume.
    Snapshot,
    /// Locks of those who work with the repository.
    Lock,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pack, Self::Index, Self::Key, Self::Snapshot, Self::Lock];

    /// The folder they lie in.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Pack => "data",
            Self::Index => "index",
            Self::Key => "keys",
            Self::Snapshot => "snapshots",
            Self::Lock => "locks",
        }
    }
}

/// One file of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum File {
    /// The one that makes it a repository.
    Config,
    /// One of many.
    Named(Kind, Id),
}

impl File {
    /// Returns its path in the repository, as restic's default layout has it.
    pub fn path(&self) -> String {
        match self {
            Self::Config => "config".to_owned(),
            Self::Named(Kind::Pack, id) => {
                let name = id.to_string();
                format!("data/{}/{name}", &name[..2])
            }
            Self::Named(kind, id) => format!("{}/{id}", kind.folder()),
        }
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// A file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: Id,
    /// Size in bytes.
    pub size: u64,
}

/// Holds files. Each is written once, whole or not at all, and never changed.
///
/// An implementation tries again by itself what may go better the next time.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns its name for messages. No secrets.
    fn location(&self) -> String;

    /// Makes what has to be there before the first file of a repository.
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// All files of a kind, in no order. What is not named by an id is passed
    /// over.
    async fn list(&self, kind: Kind) -> Result<Vec<Listed>>;

    /// Returns the size of a file in bytes, `None` if it is not there.
    async fn size(&self, file: File) -> Result<Option<u64>>;

    /// A whole file. [`Error::MissingFile`](crate::Error::MissingFile) if it
    /// is not there.
    async fn read(&self, file: File) -> Result<Bytes>;

    /// A part of a file, exactly as long as asked for.
    async fn read_range(&self, file: File, offset: u64, length: u64) -> Result<Bytes>;

    /// Writes a file. It is there, whole and lasting, when this returns. A
    /// file that is there already is left as it is where the backend can
    /// tell; `true` means that it was not there before, as far as one knows.
    async fn write(&self, file: File, content: Bytes) -> Result<bool>;

    /// Takes a file away. That it is not there is no error.
    async fn remove(&self, file: File) -> Result<()>;

    /// Takes away what somebody began to write and did not live to finish,
    /// where that leaves anything behind. Says how many that were. What was
    /// touched within `age` is left: it may still become a file.
    async fn sweep(&self, kind: Kind, age: Duration) -> Result<usize> {
        let _ = (kind, age);
        Ok(0)
    }
}
