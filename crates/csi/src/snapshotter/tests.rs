//! Snapshots by objects of an API server in memory, on a real lvmd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::Snapshotter;
use crate::{
    DRIVER, TOPOLOGY,
    cluster::Cluster,
    provision::{Pending, Provisioner},
    tests::{Site, mount},
    volume::GIB,
};

const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const SNAPSHOT_CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
/// Path of the snapshots of namespace `shop`.
const OWN: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots";
const OWN_CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";

/// A machine of a cluster with a volume for the claim `data-1`.
struct Shop {
    site: Site,
    cluster: Cluster,
    snapshotter: Snapshotter,
    provisioner: Provisioner,
}

fn claim(name: &str, size: &str, source: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop",
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER,
                "volume.kubernetes.io/selected-node": "m1",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "selvage-1",
            "resources": { "requests": { "storage": size } },
            "dataSource": source,
        },
    })
}

fn snapshot(name: &str, source: &Value) -> Value {
    json!({ "metadata": { "name": name, "namespace": "shop" }, "spec": { "source": source } })
}

fn of_claim(name: &str) -> Value {
    json!({ "persistentVolumeClaimName": name })
}

fn from_snapshot(name: &str) -> Value {
    json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name })
}

impl Shop {
    async fn open() -> Option<Self> {
        let site = Site::open().await?;
        let (cluster, connection) = Cluster::open().await;
        let shared = site.driver().shared;
        let snapshotter = Snapshotter::new(shared.clone(), connection.clone());
        let pending = Pending::new(Path::new(&site.path("pending")).to_owned());
        let provisioner = Provisioner::new(shared, connection, pending);
        let class = json!({ "metadata": { "name": "selvage-1" }, "provisioner": DRIVER });
        cluster.create(CLASSES, class);
        cluster.create(
            SNAPSHOT_CLASSES,
            json!({
                "metadata": { "name": "selvage-1", "annotations": {
                    "snapshot.storage.kubernetes.io/is-default-class": "true",
                }},
                "driver": DRIVER,
                "deletionPolicy": "Delete",
            }),
        );
        let shop = Self { site, cluster, snapshotter, provisioner };
        shop.claim("data-1", "1Gi", &Value::Null).await;
        Some(shop)
    }

    /// Makes a claim, and binds it as Kubernetes does.
    async fn claim(&self, name: &str, size: &str, source: &Value) -> Value {
        let claim = self.cluster.create(CLAIMS, claim(name, size, source));
        self.provisioner.pass().await.unwrap();
        let volume = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
        let made = self.volume(&volume).unwrap_or_else(|| panic!("{name}: no volume"));
        self.cluster.patch(
            &format!("{OWN_CLAIMS}/{name}"),
            &json!({
                "spec": { "volumeName": volume },
            }),
        );
        self.cluster.patch(
            &format!("{VOLUMES}/{volume}"),
            &json!({
                "status": { "phase": "Bound" },
            }),
        );
        made
    }

    fn volume(&self, name: &str) -> Option<Value> {
        self.cluster.get(&format!("{VOLUMES}/{name}"))
    }

    fn snapshot(&self, name: &str) -> Value {
        self.cluster.get(&format!("{OWN}/{name}")).unwrap()
    }

    /// Passes until nothing changes.
    async fn settle(&self) {
        for _ in 0..5 {
            self.snapshotter.pass().await.unwrap();
        }
    }

    fn listed(&self) -> Vec<String> {
        let volumes = self.site.lvmd.volumes().list("").unwrap();
        volumes.into_iter().map(|volume| volume.name).collect()
    }

    /// Stages a volume, and does something with what is mounted.
    async fn with<T>(&self, id: &str, work: impl FnOnce(&Path) -> T) -> T {
        self.site.stage(id, mount("xfs")).await.unwrap();
        let done = work(Path::new(&self.site.path("staging")));
        self.site.unstage(id).await;
        done
    }

    async fn close(self) {
        for volume in self.listed() {
            self.site.lvmd.volumes().remove("", &volume).await.unwrap();
        }
        self.site.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_restored_larger_and_removed() {
    let Some(shop) = Shop::open().await else { return };
    shop.with("pvc-u-data-1", |path| fs::write(path.join("row"), "one").unwrap()).await;
    shop.cluster.create(SNAPSHOTS, snapshot("snap-1", &of_claim("data-1")));
    shop.settle().await;
    let taken = shop.snapshot("snap-1");
    let status = &taken["status"];
    assert_eq!(status["readyToUse"], true, "{taken}");
    assert_eq!(status["restoreSize"], "1Gi");
    assert!(status["creationTime"].as_str().unwrap().starts_with("20"), "{taken}");
    let content = status["boundVolumeSnapshotContentName"].as_str().unwrap();
    let content = shop.cluster.get(&format!("{CONTENTS}/{content}")).unwrap();
    assert_eq!(content["metadata"]["labels"][TOPOLOGY], "m1");
    assert_eq!(content["status"]["restoreSize"], GIB);
    assert_eq!(content["status"]["snapshotHandle"], "snap-u-snap-1");
    shop.with("pvc-u-data-1", |path| fs::write(path.join("row"), "two").unwrap()).await;

    // The snapshot outlives its volume; the copy is larger, and grows its file system. The
    // scheduler knows nothing of all this and may have chosen another machine.
    let away = json!({ "volume.kubernetes.io/selected-node": "m2" });
    let mut copy = claim("copy-1", "2Gi", &from_snapshot("snap-1"));
    copy["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] =
        away["volume.kubernetes.io/selected-node"].clone();
    shop.cluster.create(CLAIMS, copy);
    shop.provisioner.pass().await.unwrap();
    let made = shop.volume("pvc-u-copy-1").expect("a volume of the snapshot");
    assert_eq!(made["spec"]["capacity"]["storage"], (2 * GIB).to_string());
    let term = &made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    assert_eq!(term["matchExpressions"][0]["values"], json!(["m1"]));
    let size = shop
        .with("pvc-u-copy-1", |path| {
            assert_eq!(fs::read_to_string(path.join("row")).unwrap(), "one");
            let stats = rustix::fs::statvfs(path).unwrap();
            stats.f_blocks * stats.f_frsize
        })
        .await;
    assert!(size > GIB + GIB / 2, "the file system has {size} bytes");

    shop.cluster.delete(&format!("{OWN}/snap-1"));
    shop.settle().await;
    assert_eq!(shop.cluster.get(&format!("{CONTENTS}/snapcontent-u-snap-1")), None);
    assert_eq!(shop.listed(), ["pvc-u-copy-1", "pvc-u-data-1"]);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_can_be_a_copy_of_another() {
    let Some(shop) = Shop::open().await else { return };
    shop.with("pvc-u-data-1", |path| fs::write(path.join("row"), "one").unwrap()).await;
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "data-1" });
    shop.claim("copy-1", "1Gi", &source).await;
    // Two of one UUID are mounted at the same time.
    shop.site.stage("pvc-u-data-1", mount("xfs")).await.unwrap();
    let other = shop.site.path("other");
    shop.site.stage_at("pvc-u-copy-1", &other, mount("xfs")).await.unwrap();
    assert_eq!(fs::read_to_string(Path::new(&other).join("row")).unwrap(), "one");
    shop.site.unstage_at("pvc-u-copy-1", &other).await;
    shop.site.unstage("pvc-u-data-1").await;

    // What fits nowhere, or in nothing, is not made.
    shop.cluster.create(CLAIMS, claim("small-1", "1Gi", &from_snapshot("none-1")));
    shop.provisioner.pass().await.unwrap();
    assert_eq!(shop.volume("pvc-u-small-1"), None);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_taken_says_why_until_it_can() {
    let Some(shop) = Shop::open().await else { return };
    let error = |name: &str| {
        let status = shop.snapshot(name)["status"].clone();
        assert_ne!(status["readyToUse"], true);
        status["error"]["message"].as_str().unwrap_or_default().to_owned()
    };
    // Its volume is gone from the disk.
    shop.site.lvmd.volumes().remove("", "pvc-u-data-1").await.unwrap();
    shop.cluster.create(SNAPSHOTS, snapshot("snap-1", &of_claim("data-1")));
    shop.settle().await;
    assert_eq!(error("snap-1"), "volume \"pvc-u-data-1\" is not on this machine");
    let told = shop.snapshot("snap-1")["metadata"]["resourceVersion"].clone();
    shop.settle().await;
    assert_eq!(shop.snapshot("snap-1")["metadata"]["resourceVersion"], told, "told once");
    shop.site.create("pvc-u-data-1", GIB).await.unwrap();
    shop.settle().await;
    let status = shop.snapshot("snap-1")["status"].clone();
    assert_eq!((&status["readyToUse"], &status["error"]), (&json!(true), &Value::Null));

    // No claim, no class.
    let mut none = snapshot("snap-2", &of_claim("none-1"));
    none["spec"]["volumeSnapshotClassName"] = json!("selvage-1");
    shop.cluster.create(SNAPSHOTS, none);
    let mut classless = snapshot("snap-3", &of_claim("data-1"));
    classless["spec"]["volumeSnapshotClassName"] = json!("other-1");
    shop.cluster.create(SNAPSHOTS, classless);
    shop.settle().await;
    assert_eq!(error("snap-2"), "persistentVolumeClaimName: claim none-1 is not there");
    assert_eq!(error("snap-3"), "volumeSnapshotClassName: other-1 is not there");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_kept_can_be_bound_again() {
    let Some(shop) = Shop::open().await else { return };
    let keeps = json!({
        "metadata": { "name": "keep-1" }, "driver": DRIVER, "deletionPolicy": "Retain",
    });
    shop.cluster.create(SNAPSHOT_CLASSES, keeps);
    let mut kept = snapshot("snap-1", &of_claim("data-1"));
    kept["spec"]["volumeSnapshotClassName"] = json!("keep-1");
    shop.cluster.create(SNAPSHOTS, kept);
    shop.settle().await;
    shop.cluster.delete(&format!("{OWN}/snap-1"));
    shop.settle().await;
    assert!(shop.cluster.get(&format!("{CONTENTS}/snapcontent-u-snap-1")).is_some());
    shop.cluster.delete(&format!("{CONTENTS}/snapcontent-u-snap-1"));
    shop.settle().await;
    assert_eq!(shop.cluster.get(&format!("{CONTENTS}/snapcontent-u-snap-1")), None);
    assert_eq!(shop.listed(), ["pvc-u-data-1", "snap-u-snap-1"]);

    let source = json!({ "volumeSnapshotContentName": "given-1" });
    shop.cluster.create(SNAPSHOTS, snapshot("again-1", &source));
    shop.cluster.create(SNAPSHOTS, snapshot("other-1", &source));
    shop.cluster.create(
        CONTENTS,
        json!({
            "metadata": { "name": "given-1", "labels": { TOPOLOGY: "m1" } },
            "spec": {
                "driver": DRIVER,
                "deletionPolicy": "Delete",
                "source": { "snapshotHandle": "snap-u-snap-1" },
                "volumeSnapshotRef": { "namespace": "shop", "name": "again-1" },
            },
        }),
    );
    shop.settle().await;
    let content = shop.cluster.get(&format!("{CONTENTS}/given-1"));
    assert_eq!(shop.snapshot("again-1")["status"]["readyToUse"], true, "{content:?}");
    let other = &shop.snapshot("other-1")["status"]["error"]["message"];
    assert_eq!(other, "volumeSnapshotContentName: given-1 is for another snapshot");
    shop.cluster.delete(&format!("{OWN}/again-1"));
    shop.settle().await;
    assert_eq!(shop.listed(), ["pvc-u-data-1"]);
    shop.close().await;
}
