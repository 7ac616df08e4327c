//! Real LVM under a kernel with a device mapper: what changed is told by thin
//! snapshots, and thick ones run out of room.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use selvage_tests::{process::binary, real::skip};

use crate::site::{PASSWORD, Restic};

fn uml(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("uml").join(path)
}

#[test]
fn thin_and_thick_volumes_in_use() {
    for (part, path) in [
        ("user-mode-linux", "/usr/bin/linux.uml"),
        ("lvm2", "/usr/sbin/lvm"),
        ("thin-provisioning-tools", "/usr/sbin/thin_delta"),
        ("kmod", "/usr/sbin/modprobe"),
    ] {
        if !Path::new(path).exists() {
            return skip(part, "not installed");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(6 << 30).unwrap();
    fs::copy(uml("lvm.conf"), folder.path().join("lvm.conf")).unwrap();
    let output = Command::new(uml("run"))
        .env("LVM_SYSTEM_DIR", folder.path())
        .env("RESTIC_PASSWORD", PASSWORD)
        .args(["-t", "550", "-d"])
        .arg(&disk)
        .arg("--")
        .arg(uml("backup.sh"))
        .args([binary(), folder.path().to_owned()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{trouble}", output.status);
    assert_eq!(said.lines().last(), Some("ok"), "{said}");
    for class in ["thin", "thick"] {
        let Some(restic) = Restic::at(&folder.path().join("backups/vm").join(class)) else {
            return;
        };
        restic.check();
        let told = fs::read(folder.path().join(format!("{class}.two"))).unwrap();
        let job: serde_json::Value = serde_json::from_slice(&told).unwrap();
        let hash = fs::read_to_string(folder.path().join(format!("{class}.hash"))).unwrap();
        let snapshot = job["snapshot"].as_str().unwrap();
        assert_eq!(restic.hash(snapshot, &format!("{class}-v")), hash);
    }
}
