use serde::{Deserialize, Serialize};

use crate::Id;

/// Bits of a mode as restic writes it.
const DIRECTORY: u32 = 1 << 31;

/// Nothing in our trees has a time of its own: a part of a volume that did
/// not change must look the same every time.
const NO_TIME: &str = "1970-01-01T00:00:00Z";

/// A folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tree {
    /// Nodes in it, by name.
    #[serde(default, deserialize_with = "or_none")]
    pub nodes: Vec<Node>,
}

/// Something in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Of what kind it is.
    #[serde(rename = "type")]
    pub kind: NodeKind,
    /// Permissions.
    #[serde(default)]
    pub mode: u32,
    #[serde(default)]
    mtime: String,
    #[serde(default)]
    atime: String,
    #[serde(default)]
    ctime: String,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
    /// Length of a file.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub size: u64,
    /// The blobs of a file, in order.
    #[serde(default)]
    pub content: Option<Vec<Id>>,
    /// Tree of a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtree: Option<Id>,
}

fn is_nothing(size: &u64) -> bool {
    *size == 0
}

fn or_none<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Node>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// The kinds of things in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// Anything else, which holds no blobs.
    #[serde(other)]
    Other,
}

impl Tree {
    /// Its text, of which the SHA-256 is its id.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

impl Node {
    /// A file.
    pub fn file(name: &str, size: u64, content: Vec<Id>) -> Self {
        Self { size, content: Some(content), ..Self::plain(name, NodeKind::File, 0o600) }
    }

    /// A folder.
    pub fn folder(name: &str, subtree: Id) -> Self {
        Self { subtree: Some(subtree), ..Self::plain(name, NodeKind::Dir, DIRECTORY | 0o700) }
    }

    fn plain(name: &str, kind: NodeKind, mode: u32) -> Self {
        let time = || NO_TIME.to_owned();
        Self {
            name: name.to_owned(),
            kind,
            mode,
            mtime: time(),
            atime: time(),
            ctime: time(),
            uid: 0,
            gid: 0,
            size: 0,
            content: None,
            subtree: None,
        }
    }
}
