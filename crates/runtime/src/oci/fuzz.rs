//! Input of strangers for the fuzzer. Not for anything else.

use std::{fs, path::Path};

use super::unpack::{self, Budget};

/// Largest image of the fuzzer.
const LIMIT: u64 = 4 << 20;

/// Unpacks a layer in an empty folder: whatever is in it, nothing beside the
/// layer is made, changed or removed.
#[allow(clippy::unwrap_used, reason = "a failure here is one of the fuzzer's own folder")]
pub fn layer(bytes: &[u8], folder: &Path) {
    let (blob, into, below) = (folder.join("blob"), folder.join("into"), folder.join("below"));
    fs::write(&blob, bytes).unwrap();
    fs::create_dir(&into).unwrap();
    fs::create_dir_all(below.join("etc")).unwrap();
    fs::write(below.join("etc/passwd"), "root").unwrap();
    std::os::unix::fs::symlink("/", below.join("up")).unwrap();
    fs::write(folder.join("outside"), "as it was").unwrap();
    let diff_id = format!("sha256:{}", "0".repeat(64));
    let lower = [below.clone()];
    let unpacked = unpack::layer(&blob, &into, &lower, &diff_id, &mut Budget::new(LIMIT));
    assert!(unpacked.is_err(), "nobody knows a layer of that digest");
    let mut beside: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    beside.sort();
    assert_eq!(beside, ["below", "blob", "into", "outside"]);
    assert_eq!(fs::read_to_string(folder.join("outside")).unwrap(), "as it was");
    assert_eq!(fs::read_to_string(below.join("etc/passwd")).unwrap(), "root");
    assert_eq!(fs::read_dir(below.join("etc")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&below).unwrap().count(), 2);
}

/// Reads an index, a manifest and a configuration.
pub fn manifest(bytes: &[u8]) {
    crate::image::fuzz(bytes);
}

/// Reads what a registry answers, and names of images.
pub fn registry_reply(bytes: &[u8]) {
    crate::image::fuzz_registry(bytes);
}
