//! A backup holds a volume as it was at one moment, whoever writes to it and
//! whenever he begins. The writer numbers its writes, first to the first block
//! and then to the last one, so that at any moment the first is as high as the
//! last or one higher.

use std::{
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
/// Enough that a copy takes a while.
const SIZE: u64 = 192 * MIB;
/// How many writes a writer makes that ends by itself.
const SHORT: u64 = 13;

/// Writes until it is stopped or has made so many rounds.
struct Writer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    /// Begins when `begin` says so.
    fn start(path: PathBuf, most: u64, mut begin: impl FnMut() -> bool + Send + 'static) -> Self {
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
                device.write_all_at(&block, SIZE - BLOCK as u64).unwrap();
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

/// What a backend lets one do to a volume that is written to all the time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    /// It is backed up all the same.
    Works,
    /// It may be refused, with the reason.
    MayBeRefused,
}

/// Opened before the start, at the start, and after it.
pub(crate) async fn are_what_backups_hold(served: &Served, class: &str, busy: Busy) {
    let new = NewVolume { name: "data".into(), size: SIZE, ..NewVolume::default() };
    let volume = served.volumes().create(class, new).await.unwrap();
    fill(&volume.path);
    let quiet = served.start_backup("quiet", "data").await.unwrap();
    check(served, &served.ended(&quiet).await, "quiet", Busy::Works).await;
    for number in 0..3 {
        before(served, &volume.path, &format!("before-{number}"), busy).await;
        during(served, &volume.path, &format!("during-{number}"), u64::MAX, busy).await;
        let name = format!("short-{number}");
        during(served, &volume.path, &name, SHORT, Busy::Works).await;
    }
    served.remove_from(class, "data").await;
}

fn fill(path: &Path) {
    let (content, device) = (noise(MIB as usize, 7), File::options().write(true).open(path));
    let device = device.unwrap();
    for at in 0..SIZE / MIB {
        device.write_all_at(&content, at * MIB).unwrap();
    }
    clear(&device);
}

/// Both counts are 0 again.
fn clear(device: &File) {
    device.write_all_at(&[0; BLOCK], 0).unwrap();
    device.write_all_at(&[0; BLOCK], SIZE - BLOCK as u64).unwrap();
    device.sync_all().unwrap();
}

async fn before(served: &Served, path: &Path, name: &str, busy: Busy) {
    clear(&File::options().write(true).open(path).unwrap());
    let writer = Writer::start(path.to_owned(), u64::MAX, || true);
    served.wait("the writer writes", async || writer.rounds() > 3).await;
    let job = served.start_backup(name, "data").await.unwrap();
    let ended = served.ended(&job).await;
    writer.end();
    check(served, &ended, name, busy).await;
}

/// The writer opens the volume when its snapshot is being made.
async fn during(served: &Served, path: &Path, name: &str, rounds: u64, busy: Busy) {
    clear(&File::options().write(true).open(path).unwrap());
    let (began, at) = (Arc::<AtomicBool>::default(), path.to_owned());
    let folder = served.image_folder();
    let started = Arc::clone(&began);
    let writer = Writer::start(at, rounds, move || {
        let copying = folder.as_deref().is_none_or(has_snapshot);
        copying && started.load(Ordering::SeqCst)
    });
    began.store(true, Ordering::SeqCst);
    let job = served.start_backup(name, "data").await.unwrap();
    let ended = served.ended(&job).await;
    let rounds = writer.end();
    assert!(rounds > 0, "it wrote before all was over");
    check(served, &ended, name, busy).await;
}

/// The image of a snapshot is there.
fn has_snapshot(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b"snap-"))
}

async fn check(served: &Served, ended: &BackupJob, name: &str, busy: Busy) {
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
    let (first, last) = (count(0), count(SIZE - BLOCK as u64));
    assert!(first == last || first == last + 1, "{name}: a state that never was: {first} {last}");
    served.remove("back").await.unwrap();
}
