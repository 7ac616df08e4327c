//! The section `[lvmd]` of the configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Options of the volume service.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Configuration file of lvmd (YAML), for volumes in LVM. Without one,
    /// volumes are image files in the data directory.
    pub config: Option<PathBuf>,
    /// GiB that the image files may hold together; 0: half of what is
    /// free at the first start.
    pub size_gb: u64,
}
