//! A backup holds a volume as it was at one moment, whoever writes to it and
//! from whenever on. The writer numbers its writes, first to the first block
//! and then to the last one, so that at any moment the first is as high as the
//! last or one higher.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use selvage_api::selvage::volumes::{BackupJob, JobState};
use selvage_lvmd::NewVolume;

use super::served::{Served, noise};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// Number of writes of a writer that ends by itself.
const SHORT: u64 = 13;

/// Writes until it is stopped or has made so many rounds.
struct Writer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    /// Begins when `begin` says so.
    fn start(
        path: PathBuf,
        size: u64,
        most: u64,
        mut begin: impl FnMut() -> bool + Send + 'static,
    ) -> Self {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            while !begin() && !stopped.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            let synced = rustix::fs::OFlags::DSYNC.bits() as i32;
            let device = OpenOptions::new().write(true).custom_flags(synced).open(&path).unwrap();
            for round in 1..=most {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let block = round.to_le_bytes().repeat(BLOCK / 8);
                device.write_all_at(&block, 0).unwrap();
                device.write_all_at(&block, size - BLOCK as u64).unwrap();
                counted.store(round, Ordering::SeqCst);
            }
        });
        Self { stop, rounds, thread: Some(thread) }
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.rounds()
    }
}

/// Behaviour of a backend with a volume that is written to all the time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    /// It is backed up all the same.
    Works,
    /// It may be refused, with the reason.
    MayBeRefused,
}

/// Trial of a backend.
#[derive(Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) busy: Busy,
    /// Bytes of the volume: where it is copied, enough for that to take a while.
    pub(crate) size: u64,
    /// Number of times each of the cases is tried.
    pub(crate) rounds: usize,
}

impl Trial {
    /// For backends that copy.
    pub(crate) fn of_copies(busy: Busy) -> Self {
        Self { busy, size: 192 * MIB, rounds: 3 }
    }

    /// For backends that take snapshots in one go.
    pub(crate) fn of_snapshots() -> Self {
        Self { busy: Busy::Works, size: 16 * MIB, rounds: 1 }
    }
}

/// A volume that a writer numbers.
struct Numbered<'a> {
    served: &'a Served,
    path: PathBuf,
    trial: Trial,
}

/// Opened before the start, at the start, and after it, and kept busy.
pub(crate) async fn are_what_backups_hold(served: &Served, class: &str, trial: Trial) {
    let numbered = Numbered::create(served, class, trial).await;
    let quiet = served.start_backup("quiet", "data").await.unwrap();
    numbered.check(&served.ended(&quiet).await, "quiet", Busy::Works).await;
    for number in 0..trial.rounds {
        numbered.before(&format!("before-{number}"), trial.busy).await;
        numbered.during(&format!("during-{number}"), u64::MAX, trial.busy).await;
    }
    served.remove_from(class, "data").await;
}

/// A writer that ends by itself is waited for.
pub(crate) async fn wait_for_short_writers(served: &Served, class: &str, trial: Trial) {
    let numbered = Numbered::create(served, class, trial).await;
    for number in 0..trial.rounds {
        numbered.during(&format!("short-{number}"), SHORT, Busy::Works).await;
    }
    served.remove_from(class, "data").await;
}

/// Volumes without room for a copy: quiet ones are backed up, those that are
/// written to are read again, and no mixture is stored.
pub(crate) async fn are_read_in_place(served: &Served, class: &str, size: u64) {
    let trial = Trial { busy: Busy::MayBeRefused, size, rounds: 1 };
    let numbered = Numbered::create(served, class, trial).await;
    // The first backup is slow: what is read before the writes differs from what
    // is read after them.
    served.limits(4 * MIB, 0).await;
    let job = served.start_backup("short", "data").await.unwrap();
    served.until(&job, |job| job.phase == "upload" && job.done_bytes > 0).await;
    assert_eq!(served.all_names(), ["data"], "there is no room for a snapshot");
    let writer = Writer::start(numbered.path.clone(), size, SHORT, || true);
    served.wait("the writer is done", async || writer.rounds() == SHORT).await;
    writer.end();
    // Another that begins now does not hide the writes from the first.
    let other = served.start_backup("other", "data").await.unwrap();
    served.until(&other, |job| job.phase == "upload" && job.done_bytes > 0).await;
    served.limits(0, 0).await;
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    assert!(ended.read_bytes > size, "it was read again: {ended:?}");
    let other = served.ended(&other).await;
    assert_eq!(other.state(), JobState::JobComplete, "{other:?}");

    let writer = Writer::start(numbered.path.clone(), size, u64::MAX, || true);
    served.wait("the writer writes", async || writer.rounds() > 3).await;
    let job = served.start_backup("busy", "data").await.unwrap();
    let busy = served.ended(&job).await;
    writer.end();
    assert_eq!(busy.state(), JobState::JobFailed, "{busy:?}");
    assert!(busy.error.contains("was written to each time"), "{busy:?}");
    let stored = served.stored().await.into_iter().map(|it| it.name);
    assert_eq!(stored.collect::<BTreeSet<_>>(), BTreeSet::from(["other".into(), "short".into()]));
    // Now there is room for them.
    served.remove_from(class, "data").await;
    numbered.check(&ended, "short", Busy::Works).await;
    numbered.check(&other, "other", Busy::Works).await;
}

impl<'a> Numbered<'a> {
    async fn create(served: &'a Served, class: &str, trial: Trial) -> Self {
        let new = NewVolume { name: "data".into(), size: trial.size, ..NewVolume::default() };
        let volume = served.volumes().create(class, new).await.unwrap();
        let numbered = Self { served, path: volume.path, trial };
        numbered.fill();
        numbered
    }

    fn open(&self) -> File {
        File::options().write(true).open(&self.path).unwrap()
    }

    fn last(&self) -> u64 {
        self.trial.size - BLOCK as u64
    }

    fn fill(&self) {
        let (content, device) = (noise(MIB as usize, 7), self.open());
        for at in 0..self.trial.size / MIB {
            device.write_all_at(&content, at * MIB).unwrap();
        }
        self.clear();
    }

    /// Both counts are 0 again.
    fn clear(&self) {
        let device = self.open();
        device.write_all_at(&[0; BLOCK], 0).unwrap();
        device.write_all_at(&[0; BLOCK], self.last()).unwrap();
        device.sync_all().unwrap();
    }

    async fn before(&self, name: &str, busy: Busy) {
        self.clear();
        let writer = Writer::start(self.path.clone(), self.trial.size, u64::MAX, || true);
        self.served.wait("the writer writes", async || writer.rounds() > 3).await;
        let job = self.served.start_backup(name, "data").await.unwrap();
        let ended = self.served.ended(&job).await;
        writer.end();
        self.check(&ended, name, busy).await;
    }

    /// The writer opens the volume when its snapshot is being made. The backup waits
    /// for its first write, however busy the machine is.
    async fn during(&self, name: &str, rounds: u64, busy: Busy) {
        self.clear();
        self.served.limits(1, 0).await;
        let began = Arc::<AtomicBool>::default();
        let folder = self.served.image_folder();
        let started = Arc::clone(&began);
        let writer = Writer::start(self.path.clone(), self.trial.size, rounds, move || {
            let copying = folder.as_deref().is_none_or(has_snapshot);
            copying && started.load(Ordering::SeqCst)
        });
        began.store(true, Ordering::SeqCst);
        let job = self.served.start_backup(name, "data").await.unwrap();
        self.served.wait("the writer writes", async || writer.rounds() > 0).await;
        self.served.limits(0, 0).await;
        let ended = self.served.ended(&job).await;
        writer.end();
        self.check(&ended, name, busy).await;
    }

    async fn check(&self, ended: &BackupJob, name: &str, busy: Busy) {
        let served = self.served;
        if ended.state() == JobState::JobFailed && busy == Busy::MayBeRefused {
            assert!(ended.error.contains("was written to each time"), "{ended:?}");
            assert!(served.stored().await.iter().all(|backup| backup.name != name));
            return;
        }
        assert_eq!(ended.state(), JobState::JobComplete, "{name}: {ended:?}");
        let job = served.start_restore(name, "back").await;
        let restored = served.ended(&job).await;
        assert_eq!(restored.state(), JobState::JobComplete, "{restored:?}");
        let count = |at: u64| {
            let block = served.read("tg", "back", at, BLOCK);
            assert!(block.chunks(8).all(|one| one == &block[..8]), "{name}: half a block at {at}");
            u64::from_le_bytes(block[..8].try_into().unwrap())
        };
        let (first, last) = (count(0), count(self.last()));
        let was = first == last || first == last + 1;
        assert!(was, "{name}: a state that never was: {first} {last}");
        served.remove("back").await.unwrap();
    }
}

/// The image of a snapshot is there.
fn has_snapshot(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b"snap-"))
}
