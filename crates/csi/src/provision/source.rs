//! Content that the volume of a claim is to begin with: a snapshot, or another claim's
//! volume. A copy is made where its source is.

use selvage_kube::{
    k8s_openapi::api::core::v1::PersistentVolumeClaim,
    kube::{ResourceExt, api::DynamicObject},
};

use super::{View, made};
use crate::{
    Error, Result,
    snapshot::Origin,
    snapshotter::object::{self, Content},
};

/// Object that a claim names as its source, by its name in the claim's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DataSource {
    Snapshot(String),
    Claim(String),
}

/// Content to copy, and the machine that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) origin: Origin,
    pub(super) node: String,
    is_block: bool,
}

/// Returns the source that a claim names, if it names one.
pub(super) fn named(claim: &PersistentVolumeClaim) -> Result<Option<DataSource>> {
    let Some(spec) = &claim.spec else { return Ok(None) };
    let (group, kind, name) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(source), _) => {
            let elsewhere = source.namespace.is_some() && source.namespace != claim.namespace();
            if elsewhere {
                return Err(Error::invalid("dataSourceRef", "is in another namespace"));
            }
            (&source.api_group, &source.kind, &source.name)
        }
        (None, Some(source)) => (&source.api_group, &source.kind, &source.name),
        (None, None) => return Ok(None),
    };
    match (group.as_deref().unwrap_or_default(), kind.as_str()) {
        (object::GROUP, object::SNAPSHOT) => Ok(Some(DataSource::Snapshot(name.clone()))),
        ("", "PersistentVolumeClaim") => Ok(Some(DataSource::Claim(name.clone()))),
        _ => {
            let text = format!("{kind} is neither a VolumeSnapshot nor a PersistentVolumeClaim");
            Err(Error::invalid("dataSource", text))
        }
    }
}

/// Returns whether a volume begins with something.
pub(super) fn has_one(claim: &PersistentVolumeClaim) -> bool {
    !matches!(named(claim), Ok(None))
}

impl Source {
    /// Refuses content that somebody wrote as a device where it is to be mounted: a file
    /// system of anybody's making would go to the kernel.
    pub(super) fn check_mode(&self, is_block: bool) -> Result<()> {
        match self.is_block && !is_block {
            true => {
                let text = "Filesystem is not possible: the source has the mode Block";
                Err(Error::invalid("volumeMode", text))
            }
            false => Ok(()),
        }
    }
}

impl View {
    /// Returns what a claim's volume is to be a copy of.
    pub(super) fn source_of(&self, claim: &PersistentVolumeClaim) -> Result<Option<Source>> {
        let missing = |reason: String| Error::invalid("dataSource", reason);
        match named(claim)? {
            None => Ok(None),
            Some(DataSource::Snapshot(name)) => {
                let found = self.snapshots.iter().find(|one| is_named(one, claim, &name));
                let snapshot = found.ok_or_else(|| missing(format!("{name} is not there")))?;
                let source = self.snapshot_source(snapshot);
                source.map(Some).ok_or_else(|| missing(format!("{name} is not ready to use")))
            }
            Some(DataSource::Claim(name)) => {
                let source = self.claim_source(claim, &name);
                let reason = || missing(format!("claim {name} has no volume of this driver"));
                source.map(Some).ok_or_else(reason)
            }
        }
    }

    fn snapshot_source(&self, snapshot: &DynamicObject) -> Option<Source> {
        if !object::is_ready(snapshot) || snapshot.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let bound = object::bound(snapshot)?;
        let content = self.contents.iter().find(|content| content.name_any() == bound)?;
        let content = Content(content);
        Some(Source {
            origin: Origin::Snapshot(content.handle()?.parse().ok()?),
            node: content.node()?.to_owned(),
            is_block: content.is_block(),
        })
    }

    fn claim_source(&self, claim: &PersistentVolumeClaim, name: &str) -> Option<Source> {
        let is_meant = |other: &&PersistentVolumeClaim| {
            other.namespace() == claim.namespace() && other.name_any() == name
        };
        let bound = self.claims.iter().find(is_meant)?.spec.as_ref()?.volume_name.clone()?;
        let volume = self.volumes.iter().find(|volume| volume.name_any() == bound)?;
        let mode = volume.spec.as_ref()?.volume_mode.as_deref();
        Some(Source {
            origin: Origin::Volume(made::handle(volume)?.parse().ok()?),
            node: made::node_of(volume)?.to_owned(),
            is_block: mode == Some("Block"),
        })
    }

    /// Returns whether the volume of a claim is for a machine to make: where its pod is, or
    /// where its source is. The scheduler does not know of sources; once the volume is
    /// there, it sends the pod after it.
    pub(super) fn is_for(&self, claim: &PersistentVolumeClaim, node: &str) -> bool {
        if !super::claim::is_open(claim) {
            return false;
        }
        match self.source_of(claim) {
            Ok(Some(source)) => source.node == node,
            // What is wrong is said by the machine of the pod.
            Ok(None) | Err(_) => super::claim::is_placed(claim, node),
        }
    }
}

fn is_named(snapshot: &DynamicObject, claim: &PersistentVolumeClaim, name: &str) -> bool {
    snapshot.namespace() == claim.namespace() && snapshot.name_any() == name
}
