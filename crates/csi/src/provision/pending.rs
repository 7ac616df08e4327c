//! Volumes that were begun and have no object in the cluster yet: one file each,
//! so that a volume is never left behind by a process that was killed.

use std::{fs, io, path::PathBuf};

use selvage_kube::{k8s_openapi::api::core::v1::PersistentVolumeClaim, kube::ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::claim;
use crate::{Error, Result, volume::VolumeId};

/// A volume that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) handle: String,
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) uid: String,
}

impl Begun {
    pub(crate) fn id(&self) -> Result<VolumeId> {
        self.handle.parse()
    }

    /// Name of its object.
    pub(crate) fn volume(&self) -> String {
        claim::name_for(&self.uid)
    }

    fn read(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        Some(Self {
            handle: field("handle")?,
            namespace: field("namespace")?,
            claim: field("claim")?,
            uid: field("uid")?,
        })
    }
}

/// Folder of such volumes.
pub(crate) struct Pending {
    folder: PathBuf,
}

impl Pending {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn file(&self, id: &VolumeId) -> PathBuf {
        self.folder.join(hex::encode(&Sha256::digest(id.to_string())[..16]))
    }

    /// Notes a volume before it is made.
    pub(crate) fn begin(&self, id: &VolumeId, claim: &PersistentVolumeClaim) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        let text = json!({
            "handle": id.to_string(),
            "namespace": claim.namespace(),
            "claim": claim.name_any(),
            "uid": claim.uid(),
        });
        let path = self.file(id);
        let written = selvage_kit::pki::replace_private(&path, text.to_string().as_bytes());
        written.map_err(|error| Error::file(&path)(io::Error::other(error.to_string())))
    }

    /// Forgets a volume that is in the cluster, or is gone.
    pub(crate) fn end(&self, id: &VolumeId) -> Result<()> {
        let path = self.file(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
            _ => Ok(()),
        }
    }

    /// Returns all that were begun.
    pub(crate) fn all(&self) -> Result<Vec<Begun>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file(&self.folder)(error)),
        };
        let texts = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
        Ok(texts.filter_map(|text| Begun::read(&text)).collect())
    }
}
