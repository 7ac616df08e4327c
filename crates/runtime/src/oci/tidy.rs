//! Chores that have to be done now and then.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Weak,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, inotify};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    lifecycle::{Inner, blocking},
    strays::OrphanReaper,
};
use crate::logs::times;

const TIDY_UP: Duration = Duration::from_secs(5);
/// Time for which one may write to a log until somebody looks how long it is,
const LOG_INTERVAL: Duration = Duration::from_millis(50);
/// and one that writes as if to fill the disk.
const FLOOD_INTERVAL: Duration = Duration::from_millis(1);
/// Offsets beyond it come near to what file systems can do.
const LARGEST_OFFSET: u64 = 1 << 40;

/// Shortens logs, removes what is left of images and waits for strays until it
/// is told to end.
pub(super) async fn tidy_up(inner: Weak<Inner>, closed: CancellationToken) {
    let mut strays = OrphanReaper::default();
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            () = tokio::time::sleep(TIDY_UP) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        strays.reap();
        shorten(inner.logs(), inner.options.log_limit).await;
        if let Err(error) = inner.tidy_images().await {
            warn!(%error, "cannot remove what is left of images");
        }
    }
}

/// Shortens logs and returns how long they are.
async fn shorten(logs: Vec<PathBuf>, limit: u64) -> HashMap<PathBuf, u64> {
    let bounded = blocking(move || {
        let mut lengths = HashMap::new();
        for log in logs {
            match bound_log(&log, limit).and_then(|length| times::note(&log).map(|()| length)) {
                Ok(length) => drop(lengths.insert(log, length)),
                Err(error) => warn!(log = %log.display(), %error, "cannot shorten a log"),
            }
        }
        Ok(lengths)
    });
    bounded.await.unwrap_or_default()
}

/// Tells which logs are written to. Where the kernel has no more watches to
/// give, [`tidy_up`] is all there is.
pub(super) struct LogWatch {
    inotify: Option<OwnedFd>,
    logs: Mutex<HashMap<i32, PathBuf>>,
}

impl LogWatch {
    pub(super) fn open() -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Self { inotify: inotify::init(flags).ok(), logs: Mutex::default() }
    }

    pub(super) fn add(&self, log: &Path) {
        if let Err(error) = times::begin(log) {
            warn!(log = %log.display(), %error, "its lines will have no times");
        }
        let Some(inotify) = &self.inotify else { return };
        // Held over both: it may be written to at once.
        let mut logs = self.logs.lock();
        if let Ok(number) = inotify::add_watch(inotify, log, inotify::WatchFlags::MODIFY) {
            logs.insert(number, log.to_owned());
        }
    }

    /// The logs that these events are about.
    fn written_in(&self, events: &[u8]) -> HashSet<PathBuf> {
        let mut logs = self.logs.lock();
        let mut written = HashSet::new();
        // No event of a file's own watch has a name after it.
        for event in events.chunks_exact(size_of::<[u32; 4]>()) {
            let field = |at: usize| event[at..].first_chunk().map(|four| i32::from_ne_bytes(*four));
            let (Some(number), Some(kind)) = (field(0), field(4)) else { continue };
            if kind & inotify::ReadFlags::IGNORED.bits().cast_signed() != 0 {
                logs.remove(&number);
            } else {
                written.extend(logs.get(&number).cloned());
            }
        }
        written
    }
}

/// Shortens logs as they are written.
pub(super) async fn bound_logs(inner: Weak<Inner>, closed: CancellationToken) {
    let events =
        inner.upgrade().and_then(|inner| inner.log_watch.inotify.as_ref()?.try_clone().ok());
    let Some(events) = events.and_then(|events| crate::pollable(events).ok()) else { return };
    let mut lengths = HashMap::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            readable = events.readable() => if readable.is_err() { return },
        }
        let Ok(length) = events.try_read(&mut buffer) else { continue };
        let Some(inner) = inner.upgrade() else { return };
        let limit = inner.options.log_limit;
        let written = inner.log_watch.written_in(&buffer[..length]);
        drop(inner);
        let now = shorten(written.into_iter().collect(), limit).await;
        let grown = |(log, length): (&PathBuf, &u64)| {
            lengths.get(log).is_some_and(|before| length.saturating_sub(*before) > limit / 8)
        };
        let pause = if now.iter().any(grown) { FLOOD_INTERVAL } else { LOG_INTERVAL };
        lengths = now;
        tokio::time::sleep(pause).await;
    }
}

/// Punches out the beginning of a log that holds more than it should; how long
/// it is with what was punched out.
fn bound_log(path: &Path, limit: u64) -> std::io::Result<u64> {
    const BLOCK: u64 = 4096;
    let Ok(metadata) = fs::metadata(path) else { return Ok(0) };
    if metadata.blocks() * 512 <= limit {
        return Ok(metadata.len());
    }
    let file = fs::OpenOptions::new().write(true).open(path)?;
    let keep_from = metadata.len().saturating_sub(limit / 2) / BLOCK * BLOCK;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if metadata.len() < LARGEST_OFFSET && rustix::fs::fallocate(&file, flags, 0, keep_from).is_ok()
    {
        return Ok(metadata.len());
    }
    file.set_len(0)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_bounded_while_its_writer_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<u8>>();
        for _ in 0..256 {
            log.write_all(&line).unwrap();
        }
        log.sync_all().unwrap();
        bound_log(&path, 64 << 10).unwrap();
        log.write_all(b"the writer goes on\n").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.blocks() * 512 <= 48 << 10, "{} blocks", metadata.blocks());
        assert_eq!(metadata.len(), 256 * 1024 + 19);
        assert!(fs::read(&path).unwrap().ends_with(b"\nthe writer goes on\n"));
        bound_log(Path::new("/nonexistent"), 1).unwrap();
    }
}
