//! Objects of the cluster that volumes of pods need.

use selvage_csi::DRIVER;
use selvage_kube::{Objects, Result, kube::Client, resource};
use serde_json::{Value, json};

use super::snapshot_kinds;
use crate::pki::VOLUMES;

/// Class of volumes of those who name none.
const CLASS: &str = "selvage-lvm";
const GROUP: &str = "storage.k8s.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// Makes the driver known, and a class of its volumes.
pub(super) async fn provide(client: &Client) -> Result<()> {
    Objects::all(client, &resource(GROUP, "v1", "CSIDriver")).apply(&driver()).await?;
    let classes = Objects::all(client, &resource(GROUP, "v1", "StorageClass"));
    // What somebody changed in it is left so.
    if classes.get_metadata(CLASS).await?.is_none() {
        classes.apply(&class()).await?;
    }
    snapshot_kinds::provide(client).await
}

fn driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": { "name": DRIVER },
        "spec": {
            "attachRequired": false,
            "podInfoOnMount": false,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

fn class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": CLASS,
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": DRIVER,
        "reclaimPolicy": "Delete",
        // A volume is where its pod is, so the pod comes first.
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    })
}

/// Rights of those who serve claims and snapshots: no secrets, no pods, no nodes.
pub(super) fn role() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": VOLUMES },
        "rules": [
            rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
            rule(
                "",
                &["persistentvolumes"],
                &["get", "list", "watch", "create", "patch", "delete"],
            ),
            rule("", &["events"], &["create", "patch"]),
            rule(GROUP, &["storageclasses"], &["get", "list", "watch"]),
            rule(SNAPSHOTS, &["volumesnapshotclasses"], &["get", "list", "watch"]),
            rule(SNAPSHOTS, &["volumesnapshots"], &["get", "list", "watch"]),
            rule(
                SNAPSHOTS,
                &["volumesnapshotcontents"],
                &["get", "list", "watch", "create", "patch", "delete"],
            ),
            rule(
                SNAPSHOTS,
                &["volumesnapshots/status", "volumesnapshotcontents/status"],
                &["patch"],
            ),
        ],
    })
}
