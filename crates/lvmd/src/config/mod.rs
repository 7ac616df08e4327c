//! The configuration file, with the keys of the original and a few of ours.
//!
//! Keys match whatever their case, and unknown ones are ignored, as in the
//! original.

mod backup;
mod classes;
mod validate;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

pub use backup::Backup;
pub use classes::Classes;

use crate::{Error, Result};

const DEFAULT_SOCKET: &str = "/run/topolvm/lvmd.sock";
const DEFAULT_SPARE_GIB: u64 = 10;
const DEFAULT_COPY_TIMEOUT: u64 = 60;

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Config {
    pub socket_name: PathBuf,
    /// Permissions of the socket, in octal.
    pub socket_mode: Option<String>,
    pub device_classes: Vec<DeviceClass>,
    pub lvcreate_option_classes: Vec<OptionClass>,
    /// Command that runs LVM, such as `nsenter … /sbin/lvm`.
    pub lvm_command_prefix: Vec<String>,
    /// Backend of the volume groups.
    pub backend: Option<BackendKind>,
    /// Volume groups of the loop backend.
    #[serde(rename = "loop")]
    pub loop_files: LoopFiles,
    /// Removing a volume that is not there fails.
    pub strict_remove: bool,
    /// Without it there are no backups.
    pub backup: Option<Backup>,
}

/// Backend of the volume groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    Lvm,
    Loop,
}

/// A class of devices.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DeviceClass {
    pub name: String,
    pub volume_group: String,
    pub default: bool,
    pub spare_gb: Option<u64>,
    pub stripe: Option<u32>,
    pub stripe_size: String,
    pub lvcreate_options: Vec<String>,
    /// `thick`, `thin` or nothing.
    pub r#type: String,
    pub thin_pool: Option<ThinPool>,
}

/// The thin pool of a class.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ThinPool {
    pub name: String,
    pub overprovision_ratio: f64,
}

/// Options of lvcreate by name.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct OptionClass {
    pub name: String,
    pub options: Vec<String>,
}

/// The loop backend.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct LoopFiles {
    pub directory: PathBuf,
    pub groups: Vec<LoopGroup>,
    /// Seconds for which an image is copied again that is written to meanwhile,
    /// on file systems that cannot share blocks.
    pub copy_timeout: u64,
}

impl Default for LoopFiles {
    fn default() -> Self {
        Self { directory: PathBuf::new(), groups: Vec::new(), copy_timeout: DEFAULT_COPY_TIMEOUT }
    }
}

/// A volume group of image files.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct LoopGroup {
    pub name: String,
    /// 0: half of what is free when the group is first seen.
    pub size_gb: u64,
    pub thin_pools: Vec<LoopPool>,
    /// Reserve the space of thick volumes on disk; true when absent.
    pub preallocate: Option<bool>,
}

/// A thin pool in it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct LoopPool {
    pub name: String,
    /// 0: half of the group.
    pub size_gb: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket_name: DEFAULT_SOCKET.into(),
            socket_mode: None,
            device_classes: Vec::new(),
            lvcreate_option_classes: Vec::new(),
            lvm_command_prefix: Vec::new(),
            backend: None,
            loop_files: LoopFiles::default(),
            strict_remove: false,
            backup: None,
        }
    }
}

impl DeviceClass {
    /// Bytes that are not offered to clients.
    pub fn spare(&self) -> u64 {
        self.spare_gb.unwrap_or(DEFAULT_SPARE_GIB).saturating_mul(1 << 30)
    }

    /// Its thin pool, if it is a thin class.
    pub fn pool(&self) -> Option<&ThinPool> {
        if self.r#type == "thin" { self.thin_pool.as_ref() } else { None }
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        let malformed = |what: String| Error::Malformed { path: path.to_owned(), what };
        Self::parse(&text).map_err(malformed)
    }

    /// Reads and checks a text; the failure is the original's sentence.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let document: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let document = in_lower_case(document);
        let config: Self = serde_json::from_value(document).map_err(|error| error.to_string())?;
        config.validate()?;
        Ok(config)
    }

    /// Finds the first thing that is wrong.
    pub fn validate(&self) -> std::result::Result<(), String> {
        validate::device_classes(&self.device_classes)?;
        validate::loop_files(self)?;
        self.backup.as_ref().map_or(Ok(()), Backup::validate)?;
        self.mode().map(|_| ())
    }

    /// Permissions of the socket.
    pub fn mode(&self) -> std::result::Result<u32, String> {
        let Some(text) = &self.socket_mode else { return Ok(0o600) };
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(mode),
            _ => Err(format!("socket-mode: {text:?} is not octal permissions such as \"0660\"")),
        }
    }

    /// Returns the backend of the groups: LVM, unless the file says otherwise.
    pub fn backend(&self) -> BackendKind {
        self.backend.unwrap_or(BackendKind::Lvm)
    }
}

/// Keys of objects in lower case, and without those that are null: both mean
/// the default.
fn in_lower_case(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(key, value)| (key.to_lowercase(), in_lower_case(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(in_lower_case).collect(),
        Value::Null => Value::Object(serde_json::Map::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
