//! Objects of the cluster for snapshots: what they say, and what is to become of
//! them. Names, labels and fields are those of `snapshot.storage.k8s.io/v1`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvage_kube::{
    k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    kube::{
        ResourceExt,
        api::{ApiResource, DynamicObject},
    },
    resource,
};
use serde_json::{Value, json};

use crate::{
    DRIVER, TOPOLOGY,
    provision::made,
    snapshot::Snapshot,
    volume::{GIB, VolumeId},
};

pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
pub(crate) const SNAPSHOT: &str = "VolumeSnapshot";
pub(crate) const CONTENT: &str = "VolumeSnapshotContent";
const CLASS: &str = "VolumeSnapshotClass";
/// Annotation of a class that is meant where none is named.
const DEFAULT: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// Keeps the object of a content until its snapshot is gone from the disk.
pub(crate) const FINALIZER: &str = "lvm.selvage.io/snapshot";

/// Returns the resource of a kind of these.
pub(crate) fn kind(name: &str) -> ApiResource {
    resource(GROUP, "v1", name)
}

pub(super) fn classes() -> ApiResource {
    kind(CLASS)
}

/// Returns a text in an object; none where it is empty.
pub(super) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

pub(crate) fn is_ready(object: &DynamicObject) -> bool {
    object.data.pointer("/status/readyToUse").and_then(Value::as_bool) == Some(true)
}

/// Name of the content that a snapshot is bound to.
pub(crate) fn bound(snapshot: &DynamicObject) -> Option<&str> {
    text(snapshot, "/status/boundVolumeSnapshotContentName")
}

/// Name of the content that somebody else made for a snapshot.
pub(super) fn content_name(snapshot: &DynamicObject) -> Option<&str> {
    text(snapshot, "/spec/source/volumeSnapshotContentName")
}

pub(super) fn error(object: &DynamicObject) -> Option<&str> {
    text(object, "/status/error/message")
}

/// Name at lvmd of the snapshot of an object.
pub(super) fn name_for(uid: &str) -> String {
    format!("snap-{uid}")
}

/// A content and what it says.
pub(crate) struct Content<'a>(pub(crate) &'a DynamicObject);

impl<'a> Content<'a> {
    fn at(&self, pointer: &str) -> Option<&'a str> {
        text(self.0, pointer)
    }

    /// Handle of the volume that a snapshot is taken of.
    pub(super) fn volume(&self) -> Option<&'a str> {
        self.at("/spec/source/volumeHandle")
    }

    /// Handle of a snapshot that was there before the object.
    pub(super) fn given(&self) -> Option<&'a str> {
        self.at("/spec/source/snapshotHandle")
    }

    /// Handle of the snapshot, as soon as there is one.
    pub(crate) fn handle(&self) -> Option<&'a str> {
        self.at("/status/snapshotHandle").or_else(|| self.given())
    }

    /// Handle that the snapshot has, whether that is noted yet or not.
    pub(super) fn id(&self) -> Option<VolumeId> {
        if let Some(handle) = self.handle() {
            return handle.parse().ok();
        }
        let volume: VolumeId = self.volume()?.parse().ok()?;
        Some(VolumeId::for_name(&name_for(self.uid()?), &volume.class))
    }

    pub(super) fn is_ours(&self) -> bool {
        self.at("/spec/driver") == Some(DRIVER)
    }

    pub(super) fn is_deleted_with(&self) -> bool {
        self.at("/spec/deletionPolicy") == Some("Delete")
    }

    /// Namespace and name of the snapshot that it is for.
    pub(super) fn snapshot(&self) -> (&'a str, &'a str) {
        let at = |pointer| self.at(pointer).unwrap_or_default();
        (at("/spec/volumeSnapshotRef/namespace"), at("/spec/volumeSnapshotRef/name"))
    }

    /// Uid of that snapshot; none before it was bound.
    pub(super) fn uid(&self) -> Option<&'a str> {
        self.at("/spec/volumeSnapshotRef/uid")
    }

    pub(super) fn is_for(&self, snapshot: &DynamicObject) -> bool {
        let (namespace, name) = self.snapshot();
        let own = snapshot.uid();
        snapshot.namespace().as_deref() == Some(namespace)
            && snapshot.name_any() == name
            && self.uid().is_none_or(|uid| own.as_deref() == Some(uid))
    }

    /// Machine that has the snapshot.
    pub(crate) fn node(&self) -> Option<&'a str> {
        self.0.metadata.labels.as_ref()?.get(TOPOLOGY).map(String::as_str)
    }

    pub(crate) fn is_block(&self) -> bool {
        self.at("/spec/sourceVolumeMode") == Some("Block")
    }
}

/// The API as it was read for one pass.
pub(super) struct View {
    pub(super) snapshots: Vec<DynamicObject>,
    pub(super) contents: Vec<DynamicObject>,
    pub(super) classes: BTreeMap<String, DynamicObject>,
    pub(super) claims: Vec<PersistentVolumeClaim>,
    pub(super) volumes: Vec<PersistentVolume>,
}

/// Work of a machine for a snapshot that has no content yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is another machine's, or another driver's.
    NotOurs,
    /// Nobody can take it.
    Wrong(String),
    /// It is taken here: this is its content.
    Take(Box<Value>),
    /// It is for a content that is there.
    Bind(String),
}

impl View {
    fn class_of(&self, snapshot: &DynamicObject) -> Result<&DynamicObject, String> {
        let ours = |class: &&DynamicObject| text(class, "/driver") == Some(DRIVER);
        let found = match text(snapshot, "/spec/volumeSnapshotClassName") {
            Some(name) => match self.classes.get(name) {
                None => Err(format!("{name} is not there")),
                Some(class) => {
                    Some(class).filter(ours).ok_or_else(|| format!("{name} is another driver's"))
                }
            },
            None => {
                let is_default = |class: &&DynamicObject| {
                    class.annotations().get(DEFAULT).is_some_and(|value| value == "true")
                };
                let class = self.classes.values().filter(ours).find(is_default);
                class.ok_or_else(|| "none is named, and no class of this driver is default".into())
            }
        };
        found.map_err(|reason| format!("volumeSnapshotClassName: {reason}"))
    }

    /// Decides about a snapshot that is not bound. What no machine can be found for,
    /// all say.
    pub(super) fn judge(&self, snapshot: &DynamicObject, node: &str) -> Verdict {
        if let Some(name) = content_name(snapshot) {
            return self.judge_given(snapshot, name, node);
        }
        let class = self.class_of(snapshot);
        let name = text(snapshot, "/spec/source/persistentVolumeClaimName").unwrap_or_default();
        let volume = match self.volume_of(snapshot.namespace().as_deref(), name) {
            Ok(volume) => volume,
            // Without a class of ours it is not known to be for us.
            Err(_)
                if class.is_err() || text(snapshot, "/spec/volumeSnapshotClassName").is_none() =>
            {
                return Verdict::NotOurs;
            }
            Err(reason) => return Verdict::Wrong(format!("persistentVolumeClaimName: {reason}")),
        };
        if !made::is_on(volume, node) {
            return Verdict::NotOurs;
        }
        match class {
            Ok(class) => Verdict::Take(Box::new(content(snapshot, class, volume, node))),
            Err(reason) => Verdict::Wrong(reason),
        }
    }

    fn judge_given(&self, snapshot: &DynamicObject, name: &str, node: &str) -> Verdict {
        let found = self.contents.iter().find(|content| content.name_any() == name);
        let Some(content) = found.map(Content).filter(Content::is_ours) else {
            return Verdict::NotOurs;
        };
        if content.node() != Some(node) {
            return Verdict::NotOurs;
        }
        match content.is_for(snapshot) {
            true if content.uid().is_none() => Verdict::Bind(name.to_owned()),
            // It is served as any other.
            true => Verdict::NotOurs,
            false => {
                Verdict::Wrong(format!("volumeSnapshotContentName: {name} is for another snapshot"))
            }
        }
    }

    /// Returns the volume of a claim; an error where no driver of ours has it.
    fn volume_of(&self, namespace: Option<&str>, name: &str) -> Result<&PersistentVolume, String> {
        let mut claims = self.claims.iter();
        let claim = claims
            .find(|claim| claim.namespace().as_deref() == namespace && claim.name_any() == name)
            .ok_or_else(|| format!("claim {name} is not there"))?;
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let volume = self.volumes.iter().find(|volume| Some(volume.name_any()) == bound);
        let volume = volume.ok_or_else(|| format!("claim {name} has no volume yet"))?;
        match made::handle(volume) {
            Some(_) => Ok(volume),
            None => Err(format!("the volume of claim {name} is another driver's")),
        }
    }

    /// Returns the machine that has the snapshot of a content, or its volume.
    pub(super) fn node_of<'a>(&'a self, content: &Content<'a>) -> Option<&'a str> {
        let by_volume = || {
            let handle = content.volume()?;
            let found = self.volumes.iter().find(|volume| made::handle(volume) == Some(handle))?;
            made::node_of(found)
        };
        content.node().or_else(by_volume)
    }

    pub(super) fn snapshot_of(&self, content: &Content<'_>) -> Option<&DynamicObject> {
        self.snapshots.iter().find(|snapshot| {
            let named = content_name(snapshot).is_none_or(|name| name == content.0.name_any());
            named && content.uid().is_some() && content.is_for(snapshot)
        })
    }
}

/// Returns the object of a snapshot's content.
fn content(
    snapshot: &DynamicObject,
    class: &DynamicObject,
    volume: &PersistentVolume,
    node: &str,
) -> Value {
    let uid = snapshot.uid().unwrap_or_default();
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": CONTENT,
        "metadata": {
            "name": format!("snapcontent-{uid}"),
            "labels": { TOPOLOGY: node },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": text(class, "/deletionPolicy").unwrap_or("Delete"),
            "volumeSnapshotClassName": class.name_any(),
            "sourceVolumeMode": mode.unwrap_or_else(|| "Filesystem".into()),
            "source": { "volumeHandle": made::handle(volume) },
            "volumeSnapshotRef": {
                "apiVersion": format!("{GROUP}/v1"),
                "kind": SNAPSHOT,
                "namespace": snapshot.namespace(),
                "name": snapshot.name_any(),
                "uid": uid,
            },
        },
    })
}

/// Returns the status of a content whose snapshot is there.
pub(super) fn taken(snapshot: &Snapshot) -> Value {
    json!({
        "snapshotHandle": snapshot.id.to_string(),
        "creationTime": i64::try_from(snapshot.taken.as_nanosecond()).unwrap_or_default(),
        "restoreSize": snapshot.size,
        "readyToUse": true,
        "error": null,
    })
}

/// Returns the status of what could not be done, which is tried again.
pub(super) fn failed(message: &str) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "readyToUse": false, "error": { "message": message, "time": now } })
}

/// Returns the status of a snapshot by that of its content.
pub(super) fn mirrored(content: &str, status: &Value) -> Value {
    let taken = status["creationTime"].as_i64().and_then(|nanoseconds| {
        let taken = Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()?;
        Some(taken.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    });
    let size = status["restoreSize"].as_u64().map(|bytes| match bytes % GIB {
        0 => format!("{}Gi", bytes / GIB),
        _ => bytes.to_string(),
    });
    json!({
        "boundVolumeSnapshotContentName": content,
        "creationTime": taken,
        "restoreSize": size,
        "readyToUse": status["readyToUse"].as_bool().unwrap_or_default(),
        "error": status["error"],
    })
}

/// Returns whether a status already says all this.
pub(super) fn says(object: &DynamicObject, status: &Value) -> bool {
    let has = object.data.get("status").unwrap_or(&Value::Null);
    status.as_object().into_iter().flatten().all(|(key, value)| has[key] == *value)
}
