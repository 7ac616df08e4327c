//! Keeping a mounted volume still while it is copied.
//!
//! A frozen file system stays frozen when the process that froze it is
//! killed. So another process is started before, which thaws it when this one
//! has ended or takes too long; and a note on disk lets the next start thaw
//! it, should both have been killed.

use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Instant,
};

use selvage_memory::LoopDevice;

use super::attach::run;
use crate::{Error, Result, backend::command};

const NOTE: &str = "frozen";

/// Seconds for which a file system is frozen at most.
const LONGEST: &str = "30";

/// Ends when its input does or after so many seconds, and thaws then.
const WATCHDOG: &str = "timeout \"$1\" cat >/dev/null 2>&1; exec fsfreeze --unfreeze \"$2\"";

/// A file system that is frozen until this is dropped, but not for ever.
pub(super) struct Frozen {
    mount: File,
    since: Instant,
    // Both go when it is thawed.
    _watchdog: Watchdog,
    _note: Note,
}

/// Freezes the file system on a device. None if there is none.
pub(super) fn freeze(device: &LoopDevice, folder: &Path) -> Result<Option<Frozen>> {
    // One file system has one state, however often it is mounted.
    let Some(mount) = mounts_of(device).into_iter().next() else { return Ok(None) };
    let note = Note::write(folder.join(format!("{}.{NOTE}", device.minor)), &mount)?;
    let watchdog = Watchdog::start(&mount)?;
    let opened = File::open(&mount).map_err(Error::file(&mount))?;
    // What is on the device before need not get there while all stands still.
    rustix::fs::syncfs(&opened).map_err(|error| Error::file(&mount)(error.into()))?;
    let since = Instant::now();
    selvage_memory::freeze(&opened).map_err(Error::file(&mount))?;
    Ok(Some(Frozen { mount: opened, since, _watchdog: watchdog, _note: note }))
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It was thawed before if this is refused.
        let _ = selvage_memory::thaw(&self.mount);
        let milliseconds = self.since.elapsed().as_millis();
        tracing::info!(milliseconds, "a file system was frozen");
    }
}

/// Says on disk what is frozen.
struct Note(PathBuf);

impl Note {
    fn write(path: PathBuf, mount: &Path) -> Result<Self> {
        let text = serde_json::to_vec(&[mount])
            .map_err(|error| Error::Malformed { path: path.clone(), what: error.to_string() })?;
        fs::write(&path, text).map_err(Error::file(&path))?;
        Ok(Self(path))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The process that thaws if this one does not.
struct Watchdog(Child);

impl Watchdog {
    fn start(mount: &Path) -> Result<Self> {
        let mut command = command("/bin/sh");
        command.args(["-c", WATCHDOG, "thaw", LONGEST]).arg(mount);
        // Not ended by what ends our terminal.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let started = command.spawn();
        started.map(Self).map_err(|source| Error::Program { program: "/bin/sh".to_owned(), source })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
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

/// Returns where a device is mounted, in whatever mount namespace: first as this
/// process sees it, then through the root of a process that does.
fn mounts_of(device: &LoopDevice) -> Vec<PathBuf> {
    let number = format!("{}:{}", device.major, device.minor);
    let own = mounts_in(Path::new("/proc/self"), &number);
    if !own.is_empty() {
        return own;
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .map(|entry| entry.path());
    let mut seen = HashSet::new();
    let namespaces = processes
        .filter(|process| fs::read_link(process.join("ns/mnt")).is_ok_and(|ns| seen.insert(ns)));
    namespaces
        .flat_map(|process| {
            let root = process.join("root");
            let mounts = mounts_in(&process, &number).into_iter();
            mounts.map(move |mount| root.join(mount.strip_prefix("/").unwrap_or(&mount)))
        })
        .collect()
}

/// Returns where one process sees a device mounted.
fn mounts_in(process: &Path, number: &str) -> Vec<PathBuf> {
    let table = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&number)).then(|| fields.get(4).map(|path| unescape(path)))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::{fs::File, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn what_is_frozen_is_thawed_when_this_process_has_ended() {
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("mounts", "only root may make them");
        }
        let folder = tempfile::tempdir().unwrap();
        let (image, mount) = (folder.path().join("image"), folder.path().join("mount"));
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run("mkfs.ext4", &["-q"], &image).unwrap();
        fs::create_dir(&mount).unwrap();
        run("mount", &["-o", "loop", image.to_str().unwrap()], &mount).unwrap();
        let number = fs::metadata(&mount).unwrap().dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = LoopDevice { image: image.clone(), path: image, major, minor, inode: None };
        let frozen = freeze(&device, folder.path());
        let thawed = frozen.as_ref().is_ok_and(Option::is_some).then(|| {
            let mut frozen = frozen.unwrap().unwrap();
            // As when this process ends.
            drop(frozen._watchdog.0.stdin.take());
            frozen._watchdog.0.wait().unwrap();
            run("fsfreeze", &["--unfreeze"], &mount).is_err()
        });
        run("umount", &[], &mount).unwrap();
        assert_eq!(thawed, Some(true), "it was frozen, and is not any more");
    }
}
