//! Footprint of a cloudlet on its machine: enough to find everything that a crm
//! has made there, without the crm and without its configuration.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use serde::{Deserialize, Serialize};

use crate::{Kind, Settings};

/// Name of the file in the data directory.
const FILE: &str = "cloudlet.json";

/// Cloudlet that has made something on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    pub operator: String,
    pub name: String,
    pub kind: Kind,
    /// Range of the networks of its clusters.
    pub network_scheme: String,
    /// Socket of the containerd that runs its containers; none where they run
    /// without a daemon.
    pub containerd: Option<PathBuf>,
}

impl Footprint {
    pub(crate) fn of(settings: &Settings, containerd: Option<PathBuf>) -> Self {
        let cloudlet = &settings.cloudlet;
        let operator = cloudlet.operator_key.as_ref().map(|operator| operator.name.clone());
        Self {
            operator: operator.unwrap_or_default(),
            name: cloudlet.name.clone(),
            kind: settings.site.kind,
            network_scheme: settings.site.range.to_string(),
            containerd,
        }
    }

    pub(crate) fn cloudlet(&self) -> CloudletKey {
        let operator_key = Some(OperatorKey { name: self.operator.clone() });
        CloudletKey { operator_key, name: self.name.clone() }
    }

    /// Reads the footprint of the cloudlet with this data directory.
    pub(crate) fn read(data: &Path) -> anyhow::Result<Option<Self>> {
        let path = data.join(FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| path.display().to_string())?,
        };
        serde_json::from_slice(&bytes).map(Some).with_context(|| path.display().to_string())
    }

    /// Writes it into the data directory.
    pub(crate) fn write(&self, data: &Path) -> anyhow::Result<()> {
        let path = data.join(FILE);
        let bytes = serde_json::to_vec_pretty(self)?;
        selvage_files::replace(&path, &bytes, 0o600).with_context(|| path.display().to_string())
    }
}

impl std::fmt::Display for Footprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.operator, self.name)
    }
}
