use serde::{Deserialize, Serialize};

use super::{BlobKind, PackedBlob};
use crate::Id;

/// Which blob is in which pack.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexFile {
    /// The packs and what is in them.
    #[serde(default)]
    pub packs: Vec<IndexPack>,
    /// Packs that nothing needs any more and that go at a later prune. Stock
    /// restic does not look at these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs_to_delete: Vec<IndexPack>,
}

/// One pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexPack {
    /// Its name.
    pub id: Id,
    /// Blobs in it.
    #[serde(default)]
    pub blobs: Vec<IndexBlob>,
    /// For a pack that is to go: since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// One blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexBlob {
    /// The SHA-256 of its plain text.
    pub id: Id,
    /// Of what kind it is.
    #[serde(rename = "type")]
    pub kind: BlobKind,
    /// Offset of its beginning.
    pub offset: u32,
    /// Length there.
    pub length: u32,
    /// Length of its plain text, if it is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncompressed_length: Option<u32>,
}

impl From<PackedBlob> for IndexBlob {
    fn from(blob: PackedBlob) -> Self {
        Self {
            id: blob.id,
            kind: blob.kind,
            offset: blob.offset,
            length: blob.length,
            uncompressed_length: blob.uncompressed_length,
        }
    }
}

impl From<IndexBlob> for PackedBlob {
    fn from(blob: IndexBlob) -> Self {
        Self {
            id: blob.id,
            kind: blob.kind,
            offset: blob.offset,
            length: blob.length,
            uncompressed_length: blob.uncompressed_length,
        }
    }
}
