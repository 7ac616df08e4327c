use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Id;

/// A moment of a volume, or of whatever stock restic was pointed at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its own id; not part of the file, whose hash it is.
    #[serde(skip, default = "nothing")]
    pub id: Id,
    /// When it was taken.
    #[serde(with = "super::time")]
    pub time: Timestamp,
    /// The snapshot it was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id>,
    /// Tree of its content.
    pub tree: Id,
    /// Paths that it is a snapshot of.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Machine on which it was taken.
    #[serde(default)]
    pub hostname: String,
    /// By whom.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// Free words. Ours hold `key=value`: see [`Snapshot::tag`].
    #[serde(default, deserialize_with = "or_none")]
    pub tags: Vec<String>,
    /// Program that wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program_version: String,
}

fn nothing() -> Id {
    Id::from_bytes([0; Id::LENGTH])
}

/// Stock restic writes `null` where there are no tags.
fn or_none<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Snapshot {
    /// Returns the value of a tag `key=value`.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
    }

    /// The name it was made under, if we made it.
    pub fn name(&self) -> Option<&str> {
        self.tag("name")
    }

    /// The volume it is of, if we made it.
    pub fn volume(&self) -> Option<&str> {
        self.tag("volume")
    }

    /// Volume group that the volume was in, if we made it since version 0.3.
    pub fn group(&self) -> Option<&str> {
        self.tag("group")
    }

    /// Returns the size of the volume in bytes, if we made it.
    pub fn size(&self) -> Option<u64> {
        self.tag("size")?.parse().ok()
    }

    /// At which multiples the volume is cut, if we made it.
    pub fn chunk(&self) -> Option<u32> {
        self.tag("chunk")?.parse().ok()
    }
}
