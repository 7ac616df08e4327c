//! Kinds of `snapshot.storage.k8s.io/v1`, as far as the driver of volumes and those who
//! use it need them. A cluster that has them of somebody else keeps those.

use std::time::Duration;

use selvage_csi::DRIVER;
use selvage_kube::{Error, Objects, Result, kube::Client, resource};
use serde_json::{Value, json};

/// Class of snapshots of those who name none.
const CLASS: &str = "selvage-lvm";
const GROUP: &str = "snapshot.storage.k8s.io";
/// Label of kinds that are kept as they are here.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "selvage");
/// Page where this API was approved, which the API server wants to see for its group.
const APPROVED: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/814";
/// An API server serves a new kind within moments.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// Makes the kinds known, and a class of snapshots.
pub(super) async fn provide(client: &Client) -> Result<()> {
    let kinds =
        Objects::all(client, &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    for kind in kinds_of_snapshots() {
        let known = kinds.get_metadata(selvage_kube::name(&kind)).await?;
        let is_foreign = known.is_some_and(|known| {
            let labels = known.metadata.labels.unwrap_or_default();
            labels.get(MANAGED.0).map(String::as_str) != Some(MANAGED.1)
        });
        if !is_foreign {
            kinds.apply(&kind).await?;
        }
    }
    let classes = Objects::all(client, &resource(GROUP, "v1", "VolumeSnapshotClass"));
    // What somebody changed in it is left so.
    if classes.get_metadata(CLASS).await?.is_none() {
        apply_when_served(&classes, &class()).await?;
    }
    Ok(())
}

async fn apply_when_served(objects: &Objects, object: &Value) -> Result<()> {
    for _ in 1..TRIES {
        match objects.apply(object).await {
            Err(error) if is_unknown(&error) => tokio::time::sleep(PAUSE).await,
            applied => return applied.map(drop),
        }
    }
    objects.apply(object).await.map(drop)
}

fn is_unknown(error: &Error) -> bool {
    error.code() == selvage_api::Code::NotFound
}

fn class() -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "VolumeSnapshotClass",
        "metadata": {
            "name": CLASS,
            "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "true" },
        },
        "driver": DRIVER,
        "deletionPolicy": "Delete",
    })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn object(properties: &Value) -> Value {
    json!({ "type": "object", "properties": properties })
}

/// A structure that is never changed once it is there.
fn fixed(properties: &Value, one_of: [&str; 2]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "oneOf": one_of.map(|name| json!({ "required": [name] })),
        "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "cannot be changed" }],
    })
}

fn error() -> Value {
    let time = json!({ "type": "string", "format": "date-time", "nullable": true });
    let error = object(&json!({ "message": text(), "time": time }));
    with(
        error,
        json!({ "nullable": true, "description": "Why it is not ready. It is tried again." }),
    )
}

fn policy() -> Value {
    json!({
        "type": "string",
        "enum": ["Delete", "Retain"],
        "description": "Whether the data are deleted with the VolumeSnapshot.",
    })
}

fn with(mut schema: Value, more: Value) -> Value {
    if let (Some(schema), Value::Object(more)) = (schema.as_object_mut(), more) {
        schema.extend(more);
    }
    schema
}

fn described(schema: Value, text: &str) -> Value {
    with(schema, json!({ "description": text }))
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn kinds_of_snapshots() -> [Value; 3] {
    [snapshot(), content(), snapshot_class()]
}

/// A kind with these parts and columns.
fn kind(name: &str, plural: &str, short: &str, scope: &str, parts: &Value, more: Value) -> Value {
    let base = json!({ "apiVersion": text(), "kind": text(), "metadata": { "type": "object" } });
    let mut schema = object(&with(base, parts.clone()));
    if parts.get("spec").is_some() {
        schema["required"] = json!(["spec"]);
    } else {
        schema["required"] = json!(["driver", "deletionPolicy"]);
    }
    let version = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "schema": { "openAPIV3Schema": schema },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": { "api-approved.kubernetes.io": APPROVED },
            "labels": { MANAGED.0: MANAGED.1 },
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": name,
                "listKind": format!("{name}List"),
                "plural": plural,
                "singular": name.to_lowercase(),
                "shortNames": [short],
            },
            "versions": [with(version, more)],
        },
    })
}

fn snapshot() -> Value {
    let source = fixed(
        &json!({
            "persistentVolumeClaimName":
                described(text(), "Claim in this namespace whose volume is kept as it is."),
            "volumeSnapshotContentName":
                described(text(), "VolumeSnapshotContent that is there already."),
        }),
        ["persistentVolumeClaimName", "volumeSnapshotContentName"],
    );
    let class = described(text(), "VolumeSnapshotClass. Empty: the default class of the driver.");
    let spec = object(&json!({ "source": source, "volumeSnapshotClassName": class }));
    let size = json!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "nullable": true,
        "description": "Size that a volume has to have at least that is made of it.",
    });
    let status = object(&json!({
        "boundVolumeSnapshotContentName": text(),
        "creationTime": { "type": "string", "format": "date-time", "nullable": true },
        "readyToUse": { "type": "boolean" },
        "restoreSize": size,
        "error": error(),
    }));
    let spec = with(spec, json!({ "required": ["source"] }));
    let more = json!({
        "subresources": { "status": {} },
        "additionalPrinterColumns": [
            column("ReadyToUse", "boolean", ".status.readyToUse"),
            column("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
            column("RestoreSize", "string", ".status.restoreSize"),
            column("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
            column("CreationTime", "date", ".status.creationTime"),
            column("Error", "string", ".status.error.message"),
        ],
    });
    let parts = json!({ "spec": spec, "status": status });
    kind("VolumeSnapshot", "volumesnapshots", "vs", "Namespaced", &parts, more)
}

fn content() -> Value {
    let source = fixed(
        &json!({
            "volumeHandle": described(text(), "Volume that the snapshot is taken of."),
            "snapshotHandle": described(text(), "Snapshot that is there already."),
        }),
        ["volumeHandle", "snapshotHandle"],
    );
    let reference = object(&json!({
        "apiVersion": text(), "kind": text(), "namespace": text(), "name": text(), "uid": text(),
        "fieldPath": text(), "resourceVersion": text(),
    }));
    let reference = described(reference, "VolumeSnapshot that it is for.");
    let spec = object(&json!({
        "driver": text(),
        "deletionPolicy": policy(),
        "volumeSnapshotClassName": text(),
        "sourceVolumeMode": described(text(), "Filesystem or Block, as its volume."),
        "source": source,
        "volumeSnapshotRef": reference,
    }));
    let required = json!(["driver", "deletionPolicy", "source", "volumeSnapshotRef"]);
    let whole = |what: &str| json!({ "type": "integer", "format": "int64", "description": what });
    let status = object(&json!({
        "snapshotHandle": text(),
        "creationTime": whole("Nanoseconds since 1970."),
        "restoreSize": whole("Bytes."),
        "readyToUse": { "type": "boolean" },
        "error": error(),
    }));
    let more = json!({
        "subresources": { "status": {} },
        "additionalPrinterColumns": [
            column("ReadyToUse", "boolean", ".status.readyToUse"),
            column("RestoreSize", "integer", ".status.restoreSize"),
            column("DeletionPolicy", "string", ".spec.deletionPolicy"),
            column("Driver", "string", ".spec.driver"),
            column("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
        ],
    });
    let parts = json!({ "spec": with(spec, json!({ "required": required })), "status": status });
    let short = "vsc";
    kind("VolumeSnapshotContent", "volumesnapshotcontents", short, "Cluster", &parts, more)
}

fn snapshot_class() -> Value {
    let parameters = json!({ "type": "object", "additionalProperties": text() });
    let parts = json!({ "driver": text(), "deletionPolicy": policy(), "parameters": parameters });
    let more = json!({
        "additionalPrinterColumns": [
            column("Driver", "string", ".driver"),
            column("DeletionPolicy", "string", ".deletionPolicy"),
        ],
    });
    let short = "vsclass";
    kind("VolumeSnapshotClass", "volumesnapshotclasses", short, "Cluster", &parts, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every schema has a type where the API server wants one: it refuses kinds without.
    #[test]
    fn schemas_are_structural() {
        fn check(schema: &Value, at: &str) {
            let is_any = schema["x-kubernetes-int-or-string"] == true;
            assert!(is_any || schema["type"].is_string(), "{at}: {schema}");
            for (name, part) in schema["properties"].as_object().into_iter().flatten() {
                check(part, &format!("{at}.{name}"));
            }
        }
        for kind in kinds_of_snapshots() {
            let names = &kind["spec"]["names"];
            let plural = names["plural"].as_str().unwrap_or_default();
            assert_eq!(kind["metadata"]["name"], format!("{plural}.{GROUP}"));
            // Names of a kind have to differ.
            assert_eq!(
                resource(GROUP, "v1", names["kind"].as_str().unwrap_or_default()).plural,
                plural
            );
            check(&kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"], plural);
        }
    }
}
