//! Mounts with their space. A file system that does not answer (a server that
//! is gone) costs its own row, not the call.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future, stream};
use parking_lot::Mutex;
use selvage_api::machine::MountStat;
use tokio::{sync::oneshot, time::Instant};

use super::Error;

/// Timeout of one file system.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of file systems asked at the same time.
const AT_ONCE: usize = 16;

/// Space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) size: u64,
    pub(super) available: u64,
}

/// Asks a mount for its space; `None` when it is no folder. May hang.
type Probe = Arc<dyn Fn(&Path) -> io::Result<Option<Space>> + Send + Sync>;

/// Answer of a mount, shared by all who wait for it.
type Answer = Result<Option<Space>, String>;

/// A question that is not answered yet.
#[derive(Clone)]
struct PendingQuery {
    since: Instant,
    answer: future::Shared<future::BoxFuture<'static, Answer>>,
}

/// Asks mounts, and remembers those that hang: they are not asked again
/// before they have answered, so that they do not pile up. Whoever asks
/// meanwhile waits for the same answer.
#[derive(Clone)]
pub(super) struct Prober {
    probe: Probe,
    timeout: Duration,
    waiting: Arc<Mutex<HashMap<PathBuf, PendingQuery>>>,
}

impl Default for Prober {
    fn default() -> Self {
        Self { probe: Arc::new(ask), timeout: PROBE_TIMEOUT, waiting: Arc::default() }
    }
}

fn ask(path: &Path) -> io::Result<Option<Space>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(None);
    }
    let stat = rustix::fs::statvfs(path)?;
    Ok(Some(Space {
        size: stat.f_frsize.saturating_mul(stat.f_blocks),
        available: stat.f_frsize.saturating_mul(stat.f_bavail),
    }))
}

impl Prober {
    /// All mounts of this machine.
    pub(super) async fn mounts(&self) -> Result<Vec<MountStat>, Error> {
        let table = tokio::fs::read("/proc/self/mounts")
            .await
            .map_err(|error| Error::Read { what: "reading the mounts", error })?;
        Ok(self.rows(parse(&table)).await)
    }

    async fn rows(&self, mounts: Vec<(String, PathBuf)>) -> Vec<MountStat> {
        let rows = stream::iter(mounts).map(|(filesystem, path)| async move {
            let mut row = MountStat {
                filesystem,
                mounted_on: path.to_string_lossy().into_owned(),
                ..MountStat::default()
            };
            match self.space(path).await {
                Ok(Some(space)) => (row.size, row.available) = (space.size, space.available),
                Ok(None) => return None,
                Err(reason) => row.error = reason,
            }
            Some(row)
        });
        rows.buffered(AT_ONCE).filter_map(std::future::ready).collect().await
    }

    async fn space(&self, path: PathBuf) -> Answer {
        let PendingQuery { since, answer } = self.question(path)?;
        let left = self.timeout.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err("has not answered an earlier question yet".into());
        }
        tokio::time::timeout(left, answer).await.unwrap_or_else(|_| {
            Err(format!("does not answer within {} ms", self.timeout.as_millis()))
        })
    }

    /// The question that waits for an answer already, or a new one.
    fn question(&self, path: PathBuf) -> Result<PendingQuery, String> {
        let mut waiting = self.waiting.lock();
        if let Some(asked) = waiting.get(&path) {
            return Ok(asked.clone());
        }
        let (sender, receiver) = oneshot::channel();
        let (prober, asking) = (self.clone(), path.clone());
        // A thread of its own: one that hangs for ever must not keep a
        // runtime from stopping.
        std::thread::Builder::new()
            .name("mount".into())
            .spawn(move || {
                let answer = (prober.probe)(&asking).map_err(|error| words(&error));
                prober.waiting.lock().remove(&asking);
                let _ = sender.send(answer);
            })
            .map_err(|error| error.to_string())?;
        let answer = async { receiver.await.unwrap_or_else(|_| Err("asking has failed".into())) };
        let asked = PendingQuery { since: Instant::now(), answer: answer.boxed().shared() };
        waiting.insert(path, asked.clone());
        Ok(asked)
    }
}

fn words(error: &io::Error) -> String {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    code.map_or_else(|| error.to_string(), super::confine::plain)
}

/// Returns devices and mount points, in the order of the table.
fn parse(table: &[u8]) -> Vec<(String, PathBuf)> {
    let lines = table.split(|byte| *byte == b'\n');
    let mounts = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let filesystem = unescape(fields.next()?);
        let path = unescape(fields.next()?);
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        Some((String::from_utf8_lossy(&filesystem).into_owned(), path))
    });
    mounts.collect()
}

/// Blanks and the like stand there as `\040`.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        plain.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;

    fn mounts(paths: &[&str]) -> Vec<(String, PathBuf)> {
        paths.iter().map(|path| ("dev".to_owned(), PathBuf::from(path))).collect()
    }

    #[test]
    fn the_table_is_read_with_its_escapes() {
        let table = b"/dev/sda1 / ext4 rw 0 0\nserver:/x /mnt/a\\040b\\134c nfs rw 0 0\n\n";
        let expected = [
            ("/dev/sda1".to_owned(), PathBuf::from("/")),
            ("server:/x".to_owned(), PathBuf::from("/mnt/a b\\c")),
        ];
        assert_eq!(parse(table), expected);
    }

    #[tokio::test]
    async fn a_mount_that_hangs_costs_its_own_row() {
        let (release, hanging) = mpsc::channel::<()>();
        let hanging = Mutex::new(hanging);
        let probe: Probe = Arc::new(move |path| match path.to_str() {
            Some("/dead") => {
                let _ = hanging.lock().recv();
                Ok(None)
            }
            Some("/bad") => Err(io::Error::from_raw_os_error(5)),
            Some("/file") => Ok(None),
            _ => Ok(Some(Space { size: 7, available: 3 })),
        });
        let timeout = Duration::from_millis(500);
        let prober = Prober { probe, timeout, waiting: Arc::default() };
        let rows = prober.rows(mounts(&["/dead", "/file", "/bad", "/good"])).await;
        let read: Vec<_> = rows
            .iter()
            .map(|row| (row.mounted_on.as_str(), row.size, row.error.as_str()))
            .collect();
        assert_eq!(
            read,
            [
                ("/dead", 0, "does not answer within 500 ms"),
                ("/bad", 0, "input/output error"),
                ("/good", 7, ""),
            ]
        );
        // Asked again while it hangs, it is not given another thread.
        let again = prober.rows(mounts(&["/dead"])).await;
        assert_eq!(again[0].error, "has not answered an earlier question yet");
        drop(release);
        while !prober.waiting.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn concurrent_callers_get_the_same_answer() {
        let (answer, answers) = mpsc::channel::<()>();
        let answers = Mutex::new(answers);
        let probe: Probe = Arc::new(move |_| {
            let _ = answers.lock().recv();
            Ok(Some(Space { size: 7, available: 3 }))
        });
        let timeout = Duration::from_secs(60);
        let prober = Prober { probe, timeout, waiting: Arc::default() };
        // One is mounted over the other; and somebody else asks as well.
        let (first, second) = (prober.clone(), prober.clone());
        let first =
            tokio::spawn(async move { first.rows(mounts(&["/dev/shm", "/dev/shm"])).await });
        let second = tokio::spawn(async move { second.rows(mounts(&["/dev/shm"])).await });
        while prober.waiting.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(answer);
        for rows in [first.await.unwrap(), second.await.unwrap()] {
            for row in rows {
                assert_eq!((row.size, row.error.as_str()), (7, ""));
            }
        }
    }

    #[tokio::test]
    async fn this_machine_has_a_root() {
        let rows = Prober::default().mounts().await.unwrap();
        let root = rows.iter().find(|row| row.mounted_on == "/").unwrap();
        assert!(root.size > 0 && root.available <= root.size, "{root:?}");
    }
}
