//! Keeping a mounted volume still while it is copied.
//!
//! A frozen file system stays frozen when the process that froze it is
//! killed. A note on disk, made before, lets the next start thaw it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::attach::{Attached, is_claimed, run, stays_open};
use crate::{Error, Result};

const NOTE: &str = "frozen";

/// File systems that are frozen until this is dropped.
pub(super) struct Frozen {
    note: PathBuf,
    mounts: Vec<PathBuf>,
}

/// Makes sure that nobody writes to the device. None if nobody does anyway.
pub(super) fn hold_still(device: &Attached, folder: &Path) -> Result<Option<Frozen>> {
    let mounts = mounts_of(device);
    if mounts.is_empty() {
        if is_claimed(device) || stays_open(device) {
            return Err(Error::Precondition(format!(
                "{} is in use, and the file system below it cannot make a snapshot of it meanwhile",
                device.path.display()
            )));
        }
        return Ok(None);
    }
    let note = folder.join(format!("{}.{NOTE}", device.minor));
    let text = serde_json::to_vec(&mounts)
        .map_err(|error| Error::Malformed { path: note.clone(), what: error.to_string() })?;
    fs::write(&note, text).map_err(Error::file(&note))?;
    let mut frozen = Frozen { note, mounts: Vec::new() };
    // One file system has one state, however often it is mounted.
    if let Some(mount) = mounts.first() {
        run("fsfreeze", &["--freeze"], mount)?;
        frozen.mounts.push(mount.clone());
    }
    Ok(Some(frozen))
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for mount in &self.mounts {
            if let Err(error) = run("fsfreeze", &["--unfreeze"], mount) {
                tracing::error!(mount = %mount.display(), %error, "a file system stays frozen");
            }
        }
        let _ = fs::remove_file(&self.note);
    }
}

/// Thaws what a process that was killed left frozen.
pub(super) fn thaw_left_behind(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for note in entries.map(|entry| entry.path()) {
        if note.extension().is_none_or(|end| end != NOTE) {
            continue;
        }
        let text = fs::read(&note).unwrap_or_default();
        let mounts: Vec<PathBuf> = serde_json::from_slice(&text).unwrap_or_default();
        if let Some(mount) = mounts.first() {
            // It may not have come to freezing it, or somebody else thawed it.
            let _ = run("fsfreeze", &["--unfreeze"], mount);
        }
        let _ = fs::remove_file(&note);
    }
}

/// Where a device is mounted, as this process sees it.
fn mounts_of(device: &Attached) -> Vec<PathBuf> {
    let number = format!("{}:{}", device.major, device.minor);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&number.as_str())).then(|| fields.get(4).map(|path| unescape(path)))
    };
    table.lines().filter_map(mount).flatten().collect()
}

/// Spaces and the like are written as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain += before;
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                rest = &after[3..];
            }
            None => {
                plain.push('\\');
                rest = after;
            }
        }
    }
    plain += rest;
    plain.into()
}
