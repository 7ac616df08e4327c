//! Claims: which are for this machine, and what volume each asks for.

use std::collections::BTreeMap;

use selvage_kube::{
    k8s_openapi::api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    kube::ResourceExt,
    quantity,
};
use serde_json::{Value, json};

use super::made;
use crate::{
    DRIVER, Error, Result, TOPOLOGY,
    filesystem::Kind,
    volume::{self, VolumeId},
};

/// Node that the scheduler chose for the claim's pod.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotations that name the provisioner; Kubernetes writes one or both.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// A volume is on one machine, for one pod or all pods there.
const MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.annotations().get(key).map(String::as_str)
}

/// Returns whether the scheduler chose this machine for its pod.
pub(super) fn is_placed(claim: &PersistentVolumeClaim, node: &str) -> bool {
    annotation(claim, SELECTED_NODE) == Some(node)
}

/// Returns whether a volume of this driver has to be made for it.
pub(super) fn is_open(claim: &PersistentVolumeClaim) -> bool {
    let unbound = claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
    unbound
        && claim.metadata.deletion_timestamp.is_none()
        && PROVISIONER.iter().any(|key| annotation(claim, key) == Some(DRIVER))
}

/// Name of the volume of a claim.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    name_for(&claim.uid().unwrap_or_default())
}

pub(super) fn name_for(uid: &str) -> String {
    format!("pvc-{uid}")
}

pub(super) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

/// Volume that a claim asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) bytes: u64,
    pub(super) device_class: String,
    kind: Kind,
    pub(super) block: bool,
    modes: Vec<String>,
}

/// Returns the volume that a claim asks for, or what is wrong with it.
pub(super) fn plan(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Plan> {
    if class.provisioner != DRIVER {
        return Err(Error::invalid("storageClassName", "is another driver's"));
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let modes = spec.access_modes.clone().unwrap_or_default();
    if let Some(mode) = modes.iter().find(|mode| !MODES.contains(&mode.as_str())) {
        let text = format!("{mode} is not possible: a volume is on one machine");
        return Err(Error::invalid("accessModes", text));
    }
    if spec.selector.is_some() {
        return Err(Error::invalid("selector", "is not supported for volumes that are made"));
    }
    let parameters: BTreeMap<String, String> =
        class.parameters.clone().unwrap_or_default().into_iter().collect();
    let kind = parameters.get(FSTYPE).map(String::as_str).unwrap_or_default().parse()?;
    Ok(Plan {
        bytes: requested(claim).ok_or_else(|| Error::invalid("resources", "storage is needed"))?,
        device_class: volume::device_class(&parameters)?,
        kind,
        block: spec.volume_mode.as_deref() == Some("Block"),
        modes,
    })
}

/// Bytes that a claim asks for.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<u64> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Some(quantity::whole(&requests.get("storage")?.0)).filter(|bytes| *bytes > 0)
}

impl Plan {
    /// Returns the object of the volume.
    pub(super) fn volume(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        id: &VolumeId,
        size: u64,
        node: &str,
    ) -> PersistentVolume {
        let mut csi = json!({ "driver": DRIVER, "volumeHandle": id.to_string() });
        if !self.block {
            csi["fsType"] = json!(self.kind.name());
        }
        let object = json!({
            "metadata": {
                "name": volume_name(claim),
                "annotations": { made::PROVISIONED_BY: DRIVER },
                "finalizers": [made::FINALIZER],
            },
            "spec": {
                "capacity": { "storage": size.to_string() },
                "accessModes": self.modes,
                "volumeMode": if self.block { "Block" } else { "Filesystem" },
                "persistentVolumeReclaimPolicy":
                    class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
                "storageClassName": class.name_any(),
                "mountOptions": class.mount_options.clone().unwrap_or_default(),
                "claimRef": claim_reference(claim),
                "csi": csi,
                "nodeAffinity": affinity(node),
            },
        });
        serde_json::from_value(object).unwrap_or_default()
    }
}

fn claim_reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace(),
        "name": claim.name_any(),
        "uid": claim.uid(),
    })
}

fn affinity(node: &str) -> Value {
    json!({ "required": { "nodeSelectorTerms": [{
        "matchExpressions": [{ "key": TOPOLOGY, "operator": "In", "values": [node] }],
    }]}})
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(crate) fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut value = json!({
            "metadata": {
                "name": "data", "namespace": "shop", "uid": "u-1",
                "annotations": {
                    "volume.kubernetes.io/storage-provisioner": DRIVER,
                    "volume.kubernetes.io/selected-node": "a",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "resources": { "requests": { "storage": "1500Mi" } },
            },
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    pub(crate) fn class(parameters: &Value) -> StorageClass {
        let value = json!({
            "metadata": { "name": "fast" },
            "provisioner": DRIVER,
            "parameters": parameters,
            "mountOptions": ["noatime"],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_claims_of_this_machine_are_served() {
        let is_for = |claim: &PersistentVolumeClaim, node| is_open(claim) && is_placed(claim, node);
        assert!(is_for(&claim(|_| {}), "a"));
        assert!(!is_for(&claim(|_| {}), "b"));
        let bound = claim(|claim| claim["spec"]["volumeName"] = json!("pvc-x"));
        assert!(!is_for(&bound, "a"));
        let going = claim(|claim| {
            claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        assert!(!is_for(&going, "a"));
        let other = claim(|claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] =
                json!("x.example");
        });
        assert!(!is_for(&other, "a"));
    }

    #[test]
    fn a_volume_is_tied_to_its_claim_and_machine() {
        let (claim, class) = (claim(|_| {}), class(&json!({ "selvage.io/device-class": "thin" })));
        let plan = plan(&claim, &class).unwrap();
        assert_eq!(plan.bytes, 1500 << 20);
        let id = VolumeId::for_name(&volume_name(&claim), &plan.device_class);
        let volume = serde_json::to_value(plan.volume(&claim, &class, &id, 2 << 30, "a")).unwrap();
        assert_eq!(volume["metadata"]["name"], "pvc-u-1");
        let spec = &volume["spec"];
        assert_eq!(spec["csi"]["volumeHandle"], "thin/pvc-u-1");
        assert_eq!(spec["csi"]["fsType"], "ext4");
        assert_eq!(spec["capacity"]["storage"], "2147483648");
        assert_eq!(spec["claimRef"]["uid"], "u-1");
        assert_eq!(spec["mountOptions"][0], "noatime");
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchExpressions"][0]["values"][0], "a");
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let none = json!({});
        for (field, change) in [
            ("accessModes", json!({ "accessModes": ["ReadWriteMany"] })),
            ("selector", json!({ "selector": { "matchLabels": { "a": "b" } } })),
            ("resources", json!({ "resources": { "requests": { "storage": "0" } } })),
        ] {
            let asked = claim(|claim| {
                for (key, value) in change.as_object().unwrap() {
                    claim["spec"][key] = value.clone();
                }
            });
            let error = plan(&asked, &class(&none)).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
        for parameters in
            [json!({ "fstype": "ext4" }), json!({ "csi.storage.k8s.io/fstype": "ntfs" })]
        {
            assert!(plan(&claim(|_| {}), &class(&parameters)).is_err(), "{parameters}");
        }
    }
}
