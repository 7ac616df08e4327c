//! Real LVM under a kernel with a device mapper: what changed is told by thin
//! snapshots, and thick ones run out of room.

use std::{fs, path::Path};

use selvage_tests::{
    process::binary,
    real::{on_lvm, skip},
};

use crate::site::{PASSWORD, Restic};

#[test]
fn thin_and_thick_volumes_in_use() {
    if !Path::new("/usr/sbin/thin_delta").exists() {
        return skip("thin-provisioning-tools", "not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let ran = on_lvm(folder.path(), 550, "backup.sh", |script| {
        script.env("RESTIC_PASSWORD", PASSWORD).arg(binary()).arg(folder.path());
    });
    if !ran {
        return;
    }
    for class in ["thin", "thick"] {
        let Some(restic) = Restic::at(&folder.path().join("backups/vm").join(class)) else {
            return;
        };
        restic.check();
        let restored = fs::read(folder.path().join(format!("{class}.two"))).unwrap();
        let job: serde_json::Value = serde_json::from_slice(&restored).unwrap();
        let hash = fs::read_to_string(folder.path().join(format!("{class}.hash"))).unwrap();
        let snapshot = job["snapshot"].as_str().unwrap();
        assert_eq!(restic.hash(snapshot, &format!("{class}-v")), hash);
    }
}
