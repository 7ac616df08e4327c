//! Processes that have a device open.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::PathBuf,
    time::Duration,
};

/// Number and interval of looks at which a device must be seen open to be in use.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Returns whether some process has the device of this number open and keeps it so. Others
/// only look: udev, or a child of ours between fork and exec. Blocks.
pub(crate) fn stays_open(number: u64) -> bool {
    for _ in 0..LOOKS {
        if !is_open(number) {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    true
}

/// Returns whether some process has the device open, by whatever name.
fn is_open(number: u64) -> bool {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries("/proc".into())
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut files = processes.flat_map(|process| entries(process.path().join("fd")));
    files.any(|file| {
        let seen = fs::metadata(file.path());
        seen.is_ok_and(|seen| seen.file_type().is_block_device() && seen.rdev() == number)
    })
}
