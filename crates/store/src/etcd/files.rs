//! Files with certificates and keys, which change while we run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::options::TlsOptions;

/// Minimum interval of checking files for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Tells one content of a file from another; `None` of one that is not there.
type Stamp = Option<(u64, u64, i64, i64)>;

/// Files that are looked at now and then.
pub(super) struct Files {
    paths: Vec<PathBuf>,
    seen: Mutex<FileState>,
}

struct FileState {
    at: Instant,
    stamps: Vec<Stamp>,
    /// Counts the changes.
    state: u64,
    /// True if a request is to be retried with the same files.
    again: bool,
}

impl Files {
    pub(super) fn of(tls: Option<&TlsOptions>) -> Self {
        let paths = tls.into_iter().flat_map(|tls| [&tls.ca, &tls.cert, &tls.key]);
        let paths: Vec<PathBuf> = paths.flatten().cloned().collect();
        let stamps = stamps(&paths);
        let seen = FileState { at: Instant::now(), stamps, state: 0, again: false };
        Self { paths, seen: Mutex::new(seen) }
    }

    /// A number that is another when the files are others.
    pub(super) fn state(&self) -> u64 {
        let mut seen = self.seen.lock();
        if !self.paths.is_empty() && seen.at.elapsed() >= CHECK_INTERVAL {
            seen.at = Instant::now();
            let now = stamps(&self.paths);
            if std::mem::take(&mut seen.again) || now != seen.stamps {
                seen.stamps = now;
                seen.state += 1;
            }
        }
        seen.state
    }

    /// Takes the files for others the next time that they are looked at.
    pub(super) fn look_again(&self) {
        self.seen.lock().again = true;
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
    };
    paths.iter().map(stamp).collect()
}
