use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Lock of a process that works with the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockFile {
    /// Since when, or when it was last renewed.
    #[serde(with = "super::time")]
    pub time: Timestamp,
    /// True if nobody else may.
    pub exclusive: bool,
    /// The machine.
    #[serde(default)]
    pub hostname: String,
    /// The user.
    #[serde(default)]
    pub username: String,
    /// The process.
    #[serde(default)]
    pub pid: u32,
    /// The user's number.
    #[serde(default)]
    pub uid: u32,
    /// The group's number.
    #[serde(default)]
    pub gid: u32,
}
