//! What has to be done now and then.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Weak,
    time::Duration,
};

use rustix::fs::FallocateFlags;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    lifecycle::{Inner, blocking},
    strays::Strays,
};

const TIDY_UP: Duration = Duration::from_secs(5);
/// Offsets beyond it come near to what file systems can do.
const LARGEST_OFFSET: u64 = 1 << 40;

/// Shortens logs and waits for strays until it is told to end.
pub(super) async fn tidy_up(inner: Weak<Inner>, closed: CancellationToken) {
    let mut strays = Strays::default();
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            () = tokio::time::sleep(TIDY_UP) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        strays.reap();
        let limit = inner.options.log_limit;
        let logs: Vec<PathBuf> = inner.logs();
        let bounded = blocking(move || {
            for log in logs {
                if let Err(error) = bound_log(&log, limit) {
                    warn!(log = %log.display(), %error, "cannot shorten a log");
                }
            }
            Ok(())
        });
        let _ = bounded.await;
    }
}

/// Punches out the beginning of a log that holds more than it should.
fn bound_log(path: &Path, limit: u64) -> std::io::Result<()> {
    const BLOCK: u64 = 4096;
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    if metadata.blocks() * 512 <= limit {
        return Ok(());
    }
    let file = fs::OpenOptions::new().write(true).open(path)?;
    let keep_from = metadata.len().saturating_sub(limit / 2) / BLOCK * BLOCK;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if metadata.len() < LARGEST_OFFSET && rustix::fs::fallocate(&file, flags, 0, keep_from).is_ok()
    {
        return Ok(());
    }
    file.set_len(0)
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
