//! Volumes of pods: made where the pod is, kept through everything, grown,
//! removed with their claim, and gone with the cluster.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::site::{IMAGE, Site, agent, kill};

/// A database of one pod: says what it finds on its volume, then writes.
fn database() -> String {
    format!(
        r#"apiVersion: apps/v1
kind: StatefulSet
metadata: {{ name: db }}
spec:
  serviceName: db
  replicas: 1
  selector: {{ matchLabels: {{ app: db }} }}
  template:
    metadata: {{ labels: {{ app: db }} }}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: "{IMAGE}"
        command: [sh, -c, "cat /data/rows; echo row >> /data/rows; sleep 100000"]
        volumeMounts: [{{ name: data, mountPath: /data }}]
  volumeClaimTemplates:
  - metadata: {{ name: data }}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {{ requests: {{ storage: 1Gi }} }}
"#
    )
}

/// A snapshot of the database's claim, a claim that begins as a copy of it, and a pod that
/// says what is on the copy.
fn copy() -> String {
    format!(
        r#"apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {{ name: rows }}
spec: {{ source: {{ persistentVolumeClaimName: data-db-0 }} }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{ name: copy }}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{ requests: {{ storage: 3Gi }} }}
  dataSource: {{ apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: rows }}
---
apiVersion: v1
kind: Pod
metadata: {{ name: copy }}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: copy
    image: "{IMAGE}"
    command: [sh, -c, "cat /data/rows; sleep 100000"]
    volumeMounts: [{{ name: data, mountPath: /data }}]
  volumes: [{{ name: data, persistentVolumeClaim: {{ claimName: copy }} }}]
"#
    )
}

/// A copy has what the database wrote, is larger, and goes with its claim.
fn is_copied(site: &Site, rows: &str) {
    site.apply(&copy());
    let ready = ["get", "volumesnapshot", "rows", "-o", "jsonpath={.status.readyToUse}"];
    site.shows(&ready, "true");
    site.shows(&["logs", "copy"], rows);
    let size = ["get", "pvc", "copy", "-o", "jsonpath={.status.capacity.storage}"];
    site.shows(&size, "3221225472");
    assert_eq!(images(site).len(), 3, "a volume, its snapshot and a copy");
    site.kubectl(&["delete", "pod", "copy"]).unwrap();
    site.kubectl(&["delete", "pvc", "copy"]).unwrap();
    site.kubectl(&["delete", "volumesnapshot", "rows"]).unwrap();
    site.shows(&["get", "volumesnapshotcontent", "-o", "name"], "");
    site.until("a copy that is gone", || match images(site).len() {
        1 => Ok(()),
        left => Err(format!("{left} images")),
    });
}

/// Images of volumes on a machine, as the host sees them.
fn images(site: &Site) -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "img") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for (name, _) in site.machines() {
        let machine = site.folder().join("data/machines").join(name);
        below(&machine.join("files/var-lib/selvage/kubernetes/data/lvmd"), &mut found);
    }
    found
}

/// Loop devices of these images.
fn devices(images: &[(u64, u64)]) -> Vec<PathBuf> {
    let devices = selvage_memory::loop_devices();
    let ours = devices.filter(|device| device.inode.is_some_and(|inode| images.contains(&inode)));
    ours.map(|device| device.path).collect()
}

fn inode(path: &Path) -> (u64, u64) {
    let about = fs::metadata(path).unwrap();
    (about.dev(), about.ino())
}

const CAPACITY: [&str; 5] =
    ["get", "pvc", "data-db-0", "-o", "jsonpath={.status.capacity.storage}"];

/// The first pod looked, found nothing and went on to write.
fn has_an_empty_volume(site: &Site) {
    site.until("a pod with an empty volume", || match site.kubectl(&["logs", "db-0"])? {
        said if said.contains("/data/rows") => Ok(()),
        said => Err(said),
    });
}

/// The pod is removed, and the next one finds what all before it wrote.
fn comes_back(site: &Site, rows: &str) {
    site.kubectl(&["delete", "pod", "db-0", "--wait=false"]).unwrap();
    site.shows(&["logs", "db-0"], rows);
}

/// Returns true if this machine lets root grow a file system that is mounted.
fn can_grow() -> bool {
    const SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(held, 16).unwrap() & SYS_RESOURCE != 0
}

fn grows(site: &Site) {
    let patch = r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#;
    site.kubectl(&["patch", "pvc", "data-db-0", "-p", patch]).unwrap();
    let volume = ["get", "pv", "-o", "jsonpath={.items[0].spec.capacity.storage}"];
    site.shows(&volume, "2147483648");
    // The kubelet grows the file system when it mounts, or within a minute or two.
    comes_back(site, "row\nrow\nrow");
    site.shows(&CAPACITY, "2Gi");
}

#[test]
fn pods_have_volumes_that_outlive_everything_but_their_claims() {
    let Some(site) = Site::open(1) else { return };
    site.cli.ok(&["kaas", "create", "store", "--wait"]);
    site.apply(&database());
    has_an_empty_volume(&site);
    let made = images(&site);
    assert_eq!(made.len(), 1, "{made:?}");
    let known: Vec<(u64, u64)> = made.iter().map(|image| inode(image)).collect();
    assert_eq!(devices(&known).len(), 1);
    comes_back(&site, "row");

    // Its agent, and with it the driver.
    let (name, first) = site.machines().remove(0);
    let old = agent(first).expect(&name);
    kill(old);
    comes_back(&site, "row\nrow");
    if can_grow() {
        grows(&site);
    } else {
        let reason = "a mounted ext4 takes CAP_SYS_RESOURCE to grow";
        selvage_testkit::say_skipped("growing a volume", reason);
        comes_back(&site, "row\nrow\nrow");
    }

    // The machine, as by a cut of its power.
    kill(first);
    site.until("a machine that is back", || match site.machines() {
        now if now[0].1 != first => Ok(()),
        now => Err(format!("{now:?}")),
    });
    site.shows(&["logs", "db-0"], "row\nrow\nrow\nrow");
    assert_eq!(devices(&known).len(), 1, "its device was found again");
    is_copied(&site, "row\nrow\nrow\nrow\nrow");

    // The claim goes, and the volume with it.
    site.kubectl(&["delete", "statefulset", "db"]).unwrap();
    site.kubectl(&["delete", "pvc", "data-db-0"]).unwrap();
    site.shows(&["get", "pv", "-o", "name"], "");
    assert_eq!(images(&site), [] as [PathBuf; 0]);
    assert_eq!(devices(&known), [] as [PathBuf; 0]);

    // A cluster that is deleted leaves none of those that are in use.
    site.apply(&database());
    has_an_empty_volume(&site);
    let known: Vec<(u64, u64)> = images(&site).iter().map(|image| inode(image)).collect();
    assert_eq!(devices(&known).len(), 1);
    site.cli.ok(&["kaas", "delete", "store", "--yes", "--wait"]);
    assert_eq!(devices(&known), [] as [PathBuf; 0], "a loop device is left");
    site.close();
}
