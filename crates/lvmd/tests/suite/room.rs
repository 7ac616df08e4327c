//! Thick snapshots on LVM, which are lost when there is no more room for the
//! changes of their origin.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use selvage_api::selvage::volumes::{BackupJob, JobState};

use super::{
    lvm::{Real, backup_config},
    served::{Served, noise},
    site::MIB,
};

const SIZE: u64 = 256 * MIB;
/// Two percent of the volume, in whole extents.
const FIRST_ROOM: u64 = 8 * MIB;
const CONTENT: usize = 32 << 20;

async fn served() -> Served {
    let real = Real::make();
    let folder = tempfile::tempdir().unwrap();
    let config = backup_config(folder.path());
    Served::start(config, Box::new((real, folder))).await
}

/// Writes to the second half of a volume for as long as it is kept.
struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// `each` bytes at a time, with a pause between.
    fn start(served: &Served, name: &str, each: usize, pause: Duration) -> Self {
        let device = served.volumes().backend().open("tg", name, true).unwrap();
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), written.clone());
        let thread = std::thread::spawn(move || {
            let mut at = 0;
            while !stopped.load(Ordering::SeqCst) {
                let offset = SIZE / 2 + at % (SIZE / 2);
                device.write_at(&noise(each, at), offset).unwrap();
                device.sync().unwrap();
                at += each as u64;
                counted.store(at, Ordering::SeqCst);
                std::thread::sleep(pause);
            }
        });
        Self { stop, written, thread: Some(thread) }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn room(served: &Served, job: &BackupJob) -> Option<u64> {
    served.volumes().find("", &format!("snap-{}", job.id)).ok()?.change_room
}

async fn volume(served: &Served) {
    served.create("busy", SIZE).await;
    served.write("tg", "busy", 0, CONTENT, 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn room_grows_before_a_writer_has_filled_it() {
    let served = served().await;
    volume(&served).await;
    let before = served.read("tg", "busy", SIZE / 2, CONTENT);
    served.limits(4 * MIB, 0).await;
    let job = served.start_backup("one", "busy").await.unwrap();
    served.until(&job, |job| job.phase == "upload").await;
    assert_eq!(room(&served, &job), Some(FIRST_ROOM), "nothing was written before");
    let writer = Writer::start(&served, "busy", 256 << 10, Duration::from_millis(200));
    served.wait("more than the first room", || async { writer.written() > 2 * FIRST_ROOM }).await;
    drop(writer);
    assert!(room(&served, &job).unwrap() > 2 * FIRST_ROOM);
    served.limits(0, 0).await;
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    assert_eq!(served.all_names(), ["busy"]);
    let job = served.start_restore("one", "back").await;
    assert_eq!(served.ended(&job).await.state(), JobState::JobComplete);
    assert!(served.read("tg", "back", 0, CONTENT) == noise(CONTENT, 1));
    assert!(served.read("tg", "busy", SIZE / 2, CONTENT) != before);
    let stored = served.read("tg", "back", SIZE / 2, CONTENT);
    assert!(stored == before, "as it was when it was asked for");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn room_is_made_for_what_is_being_written() {
    let served = served().await;
    volume(&served).await;
    served.limits(MIB, 0).await;
    let writer = Writer::start(&served, "busy", 1 << 20, Duration::from_millis(100));
    served.wait("writing", || async { writer.written() > 2 * MIB }).await;
    let job = served.start_backup("one", "busy").await.unwrap();
    let seen = AtomicU64::new(0);
    served
        .wait("a snapshot", || async {
            seen.store(room(&served, &job).unwrap_or_default(), Ordering::SeqCst);
            seen.load(Ordering::SeqCst) > 0
        })
        .await;
    drop(writer);
    let seen = seen.into_inner();
    assert!(seen > FIRST_ROOM, "{seen}");
    served.cancel(&job).await;
    assert_eq!(served.all_names(), ["busy"]);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by under_uml"]
async fn an_overflow_is_a_failure_with_its_reason() {
    let served = served().await;
    volume(&served).await;
    // Room for the first snapshot, and for no more.
    let free = served.volumes().free("").unwrap();
    served.create("filler", free - FIRST_ROOM).await;
    served.limits(4 * MIB, 0).await;
    let job = served.start_backup("one", "busy").await.unwrap();
    served.until(&job, |job| job.phase == "upload").await;
    let writer = Writer::start(&served, "busy", 1 << 20, Duration::ZERO);
    let ended = served.ended(&job).await;
    assert!(writer.written() > FIRST_ROOM, "the origin goes on");
    drop(writer);
    assert_eq!(ended.state(), JobState::JobFailed, "{ended:?}");
    assert!(ended.error.starts_with("snapshot overflow"), "{ended:?}");
    assert_eq!(served.stored().await, [], "half a backup is none");
    served
        .wait("its snapshot is gone", || async { served.all_names() == ["busy", "filler"] })
        .await;
    assert!(served.read("tg", "busy", 0, CONTENT) == noise(CONTENT, 1));

    // With room again it can be done.
    served.remove("filler").await.unwrap();
    served.limits(0, 0).await;
    let job = served.start_backup("two", "busy").await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    served.stop().await;
}
