//! Knowledge of the kernel: which volume has which device.

use std::{collections::HashMap, fs, path::PathBuf};

/// Device numbers by the kernel's name of a volume.
pub(super) fn devices() -> HashMap<String, (u32, u32)> {
    let mut found = HashMap::new();
    for entry in mapped() {
        let Ok(id) = fs::read_to_string(entry.join("dm/uuid")) else { continue };
        let Ok(numbers) = fs::read_to_string(entry.join("dev")) else { continue };
        let numbers = numbers.trim().split_once(':');
        let numbers =
            numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        if let Some(numbers) = numbers {
            found.insert(id.trim().to_owned(), numbers);
        }
    }
    found
}

/// The devices that the mapper has made.
pub(super) fn mapped() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut mapped: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"dm-"))
        .map(|entry| entry.path())
        .collect();
    mapped.sort();
    mapped
}

/// Devices that hold no physical volume, and that may be slow to open.
const NEVER: [&[u8]; 4] = [b"sr", b"fd", b"ram", b"zram"];

/// All block devices that could be physical volumes. Logical volumes could not:
/// what is in them is their users'.
pub(super) fn candidates() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            !NEVER.iter().any(|start| name.as_encoded_bytes().starts_with(start))
        })
        .filter(|entry| {
            let size = fs::read_to_string(entry.path().join("size"));
            let id = fs::read_to_string(entry.path().join("dm/uuid"));
            size.is_ok_and(|size| size.trim() != "0") && !id.is_ok_and(|id| id.starts_with("LVM-"))
        })
        .map(|entry| PathBuf::from("/dev").join(entry.file_name()))
        .collect();
    found.sort();
    found
}
