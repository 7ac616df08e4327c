//! Cases that cannot be had on loop files: a map of changed blocks, and snapshots
//! that run out of room. A backend that pretends stands in front of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use selvage_api::selvage::volumes::{self as wire, BackupJob, JobState, Repository};
use selvage_store::{Store, embedded, embedded::Embedded};
use selvage_work::{Engine, Options};
use tokio_util::sync::CancellationToken;

use super::{
    Backups, NewRestore, Origin, Pruning,
    record::{Forgotten, Job, Parent, State},
};
use crate::{
    NewVolume, Result, Volumes,
    backend::{self, Backend, Create, Device, Groups, Ranges, Snapshot},
    config::{self, Config},
};

const BLOCK: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// Loop files that know more than loop files do.
struct Pretender {
    below: Arc<dyn Backend>,
    /// Use of snapshots of thick volumes, in percent; 0 if they have no
    /// limit.
    used: AtomicU64,
    /// Size that the last one was extended to.
    extended: AtomicU64,
    /// True if snapshots cannot be removed, for somebody has them open.
    stuck: AtomicBool,
}

impl Backend for Pretender {
    fn kind(&self) -> &'static str {
        "pretender"
    }

    fn configure(&self, config: &Config) -> Result<()> {
        self.below.configure(config)
    }

    fn scan(&self) -> Result<Groups> {
        let mut groups = self.below.scan()?;
        if self.used.load(Ordering::SeqCst) > 0 {
            for group in groups.values_mut() {
                let group = Arc::make_mut(group);
                for volume in group.volumes.values_mut().filter(|volume| volume.origin.is_some()) {
                    volume.change_room = Some(100 * MIB);
                }
            }
        }
        Ok(groups)
    }

    fn fingerprint(&self) -> u64 {
        self.below.fingerprint()
    }

    fn create(&self, create: &Create) -> Result<()> {
        self.below.create(create)
    }

    fn remove(&self, group: &str, name: &str) -> Result<()> {
        if self.stuck.load(Ordering::SeqCst) && name.starts_with("snap-") {
            let why = format!("Logical volume {group}/{name} in use.");
            return Err(crate::Error::Precondition(why));
        }
        self.below.remove(group, name)
    }

    fn resize(&self, group: &str, name: &str, size: u64) -> Result<()> {
        self.below.resize(group, name, size)
    }

    fn snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.below.snapshot(snapshot)
    }

    fn room_in_pool(&self, group: &str, pool: &str) -> Result<u64> {
        self.below.room_in_pool(group, pool)
    }

    fn snapshots_are_volumes(&self, group: &str, name: &str) -> Result<bool> {
        self.below.snapshots_are_volumes(group, name)
    }

    fn change_room_used(&self, _: &str, _: &str) -> Result<Option<f64>> {
        let used = self.used.load(Ordering::SeqCst);
        Ok((used > 0).then_some(used as f64))
    }

    fn extend_change_room(&self, _: &str, _: &str, size: u64) -> Result<()> {
        self.extended.store(size, Ordering::SeqCst);
        Ok(())
    }

    fn tag(&self, group: &str, name: &str, add: &[String], remove: &[String]) -> Result<()> {
        self.below.tag(group, name, add, remove)
    }

    fn open(&self, group: &str, name: &str, write: bool) -> Result<Device> {
        self.below.open(group, name, write)
    }

    fn allocated(&self, group: &str, name: &str) -> Result<Option<Ranges>> {
        self.below.allocated(group, name)
    }

    fn changed(&self, group: &str, older: &str, newer: &str) -> Result<Option<Ranges>> {
        let older = self.below.open(group, older, false)?;
        let newer = self.below.open(group, newer, false)?;
        let (mut one, mut other) = (vec![0; BLOCK], vec![0; BLOCK]);
        let mut ranges = Ranges::new();
        for at in (0..newer.size()).step_by(BLOCK) {
            older.read_at(&mut one, at).unwrap();
            newer.read_at(&mut other, at).unwrap();
            if one != other {
                ranges.push(at..at + BLOCK as u64);
            }
        }
        Ok(Some(ranges))
    }
}

struct Site {
    pretender: Arc<Pretender>,
    volumes: Volumes,
    backups: Backups,
    config: config::Backup,
    running: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "
backend: loop
loop:
  directory: {0}/volumes
  groups: [{{name: vg, size-gb: 8, thin-pools: [{{name: pool, size-gb: 4}}]}}]
device-classes:
- {{name: thin, volume-group: vg, default: true, spare-gb: 0, type: thin,
    thin-pool: {{name: pool, overprovision-ratio: 10}}}}
backup: {{workdir: {0}/work, directory: {0}/backups, full-every: 3}}
",
            folder.path().display()
        );
        let config = Config::parse(&text).unwrap();
        let below = backend::open(&config).unwrap();
        let pretender = Arc::new(Pretender {
            below,
            used: AtomicU64::new(0),
            extended: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
        });
        let backend: Arc<dyn Backend> = Arc::clone(&pretender) as _;
        let volumes = Volumes::open(backend, &config).await.unwrap();
        let config = config.backup.unwrap();
        let backups = Backups::open(volumes.clone(), config.clone()).await.unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(backups.clone().run(stop.clone()));
        Self { pretender, volumes, backups, config, running, stop, _folder: folder }
    }

    /// Ends, lets the operations of the store be changed, and begins again.
    async fn restart(&mut self, change: impl AsyncFnOnce(&Engine)) {
        self.stop.cancel();
        (&mut self.running).await.unwrap();
        let path = self.config.workdir.join("backups.redb");
        let store = Embedded::open(&path, embedded::Options::default()).await.unwrap();
        let engine = Engine::open(store.clone(), "test", Options::default()).await.unwrap();
        change(&engine).await;
        drop(engine);
        store.close().await.unwrap();
        let opened = Backups::open(self.volumes.clone(), self.config.clone()).await;
        self.backups = opened.unwrap();
        self.stop = CancellationToken::new();
        self.running = tokio::spawn(self.backups.clone().run(self.stop.clone()));
    }

    async fn create(&self, name: &str) {
        let new = NewVolume { name: name.into(), size: 64 * MIB, ..NewVolume::default() };
        self.volumes.create("", new).await.unwrap();
    }

    fn write(&self, name: &str, offset: u64, length: usize, seed: u8) {
        let device = self.volumes.backend().open("vg", name, true).unwrap();
        let content: Vec<u8> = (0..length).map(|at| seed ^ (at * 7 + at / 251) as u8).collect();
        device.write_at(&content, offset).unwrap();
        device.sync().unwrap();
    }

    async fn back_up(&self, name: &str) -> BackupJob {
        self.back_up_of("vol", name).await
    }

    async fn back_up_of(&self, volume: &str, name: &str) -> BackupJob {
        let access = self.backups.access(repository()).unwrap();
        let asked = Origin::Request("");
        let job = self.backups.backup(name, volume, access, None, asked, "me").await.unwrap();
        let _ = self.backups.attach(&job).unwrap().ended().await;
        let ended = self.backups.find(&job.operation).unwrap();
        self.backups.describe(&ended)
    }

    /// As lvmd's clients do it.
    async fn poll(&self, name: &str) -> Job {
        let access = self.backups.access(repository()).unwrap();
        let job = self.backups.backup(name, "vol", access, None, Origin::Poll, "me").await.unwrap();
        let _ = self.backups.attach(&job).unwrap().ended().await;
        self.backups.find(&job.operation).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let listed = self.volumes.list("").unwrap();
        listed.into_iter().map(|volume| volume.name).collect()
    }
}

fn repository() -> Repository {
    Repository {
        path: "bucket/here".into(),
        endpoint: "file:".into(),
        encryption_key: "word".into(),
        ..Repository::default()
    }
}

impl Drop for Site {
    /// Devices go with their volumes.
    fn drop(&mut self) {
        self.stop.cancel();
        for name in self.names() {
            let _ = self.volumes.backend().remove("vg", &name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_changes_are_known_only_those_are_read() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 8 << 20, 1);
    let first = site.back_up("one").await;
    assert_eq!(first.state(), JobState::JobComplete, "{first:?}");
    assert!(first.read_bytes >= 8 * MIB, "{first:?}");
    assert_eq!(site.names().len(), 2, "its snapshot is kept");
    assert!(site.backups.orphans().is_empty());

    site.write("vol", 5 * MIB, BLOCK, 2);
    let second = site.back_up("two").await;
    assert_eq!(second.state(), JobState::JobComplete, "{second:?}");
    assert!(second.read_bytes <= MIB / 2, "{second:?}");
    assert_eq!(site.names().len(), 2, "one is kept, not two");

    let nothing = site.back_up("three").await;
    assert_eq!((nothing.read_bytes, nothing.new_bytes), (0, 0), "{nothing:?}");
    let all = site.back_up("four").await;
    assert!(all.read_bytes >= 8 * MIB, "one in three reads all: {all:?}");
    assert_eq!(all.stored_bytes, 0, "and stores nothing: {all:?}");
    assert!(site.names().iter().any(|name| name.starts_with("snap-")));

    site.volumes.remove("", "vol").await.unwrap();
    site.backups.forget_lost_volumes().await;
    assert!(site.names().is_empty(), "what was kept for it goes with it");
}

/// Another backup was stored meanwhile, and still has its snapshot: what differs from that
/// of an earlier one does not tell what differs from it.
#[tokio::test(flavor = "multi_thread")]
async fn what_changed_is_told_of_the_backup_it_was_compared_with() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 8 << 20, 1);
    let first = site.back_up("one").await;
    site.write("vol", 5 * MIB, BLOCK, 2);
    let second = site.back_up("two").await;
    // As while the first is stored after the second, and has not let go of its snapshot.
    let parents = &site.backups.shared.parents;
    let known = parents.list()[0].value.clone();
    assert_eq!(known.snapshot, second.snapshot);
    let stored = Parent { snapshot: first.snapshot, comparison_snapshot: String::new(), ..known };
    site.backups.shared.remember(stored).await.unwrap();
    let third = site.back_up("three").await;
    assert_eq!(third.state(), JobState::JobComplete, "{third:?}");
    let of = Repository { path: "bucket/here@three".into(), ..repository() };
    let new = NewRestore { volume: "back".into(), ..NewRestore::default() };
    let access = site.backups.access(of).unwrap();
    let job = site.backups.restore(new, access, None, "me").await.unwrap();
    site.backups.attach(&job).unwrap().ended().await.unwrap();
    let content = |name: &str| {
        let mut content = vec![0; 8 << 20];
        let device = site.volumes.backend().open("vg", name, false).unwrap();
        device.read_at(&mut content, 0).unwrap();
        content
    };
    assert!(content("back") == content("vol"), "it holds what the first one does");
    assert!(third.read_bytes >= 8 * MIB, "{third:?}");
    assert!(site.back_up("four").await.read_bytes < MIB, "the next one is compared again");
}

/// It is in the repository, whatever becomes of its snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_whose_snapshot_cannot_be_removed_has_succeeded() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    site.pretender.used.store(75, Ordering::SeqCst);
    site.pretender.stuck.store(true, Ordering::SeqCst);
    let job = site.back_up("one").await;
    assert_eq!((job.state(), job.error.as_str()), (JobState::JobComplete, ""), "{job:?}");
    assert_eq!(site.backups.orphans().len(), 1, "it is known that it is of no use");
    site.pretender.stuck.store(false, Ordering::SeqCst);
    site.backups.remove_orphans().await;
    assert_eq!(site.names(), ["vol"]);
}

/// The process ended when the backup was in the repository, and before that was written
/// down: it is stored once.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_stored_already_is_not_stored_again() {
    let mut site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    assert_eq!(site.back_up("zero").await.state(), JobState::JobComplete);
    let backups = site.backups.clone();
    let all = u32::try_from(site.config.jobs).unwrap();
    let nobody_works = backups.shared.slots.acquire_many(all).await.unwrap();
    let access = || site.backups.access(repository()).unwrap();
    let begun = backups.backup("one", "vol", access(), None, Origin::Poll, "me").await.unwrap();
    while !site.names().contains(&begun.snapshot_volume()) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let begun = backups.find(&begun.operation).unwrap();
    let stored = site.store_as(&begun).await;
    // Which it notes before it begins to store.
    backups.shared.note(&begun, |job| job.storing = true).await.unwrap();
    site.restart(async |_| {}).await;
    drop(nobody_works);
    drop(backups);
    let again = site.poll("one").await;
    assert_eq!((&again.operation, again.state()), (&begun.operation, State::Complete));
    assert_eq!(again.snapshot, stored);
    let listed = site.backups.stored(&site.backups.access(repository()).unwrap(), "vol").await;
    let names: Vec<_> = listed.unwrap().iter().map(|it| it.name().unwrap().to_owned()).collect();
    assert_eq!(names, ["zero", "one"]);
    let next = site.back_up("two").await;
    assert_eq!((next.state(), next.stored_bytes), (JobState::JobComplete, 0), "{next:?}");
}

/// The process ended when some of the backups were gone that a prune removes.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_goes_on_names_what_it_removed_before() {
    let mut site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let mut made = Vec::new();
    for name in ["one", "two", "three"] {
        made.push(site.back_up(name).await.snapshot);
    }
    let backups = site.backups.clone();
    let all = u32::try_from(site.config.jobs).unwrap();
    let nobody_works = backups.shared.slots.acquire_many(all).await.unwrap();
    let keep = super::Keep { last: 1, ..Default::default() };
    let what = Pruning { keep: Some(keep), ..Pruning::default() };
    let access = || backups.access(repository()).unwrap();
    let begun = backups.prune(access(), None, what, "me").await.unwrap();
    let snapshots = backups.stored(&access(), "").await.unwrap();
    let planned: Vec<Forgotten> = snapshots.iter().take(2).map(Forgotten::from).collect();
    backups.shared.note(&begun, |job| job.planned.clone_from(&planned)).await.unwrap();
    let repository_folder = site._folder.path().join("backups/bucket/here/snapshots");
    std::fs::remove_file(repository_folder.join(&made[0])).unwrap();
    site.restart(async |_| {}).await;
    drop(nobody_works);
    let again = site.backups.prune(access(), None, what, "me").await.unwrap();
    drop(backups);
    assert_eq!(again.operation, begun.operation);
    site.backups.attach(&again).unwrap().ended().await.unwrap();
    let ended = site.backups.find(&again.operation).unwrap();
    assert_eq!(ended.state(), State::Complete, "{ended:?}");
    let named: Vec<&str> = ended.forgotten.iter().map(|gone| gone.snapshot.as_str()).collect();
    assert_eq!(named, [made[0].as_str(), made[1].as_str()]);
    assert!(ended.message.starts_with("forgotten=2 "), "{ended:?}");
    let left = site.backups.jobs("vol");
    let left: Vec<&str> = left.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(left, ["three"], "their jobs are forgotten too");
}

/// The plan is on record before anything is removed, and tells only what is to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_writes_down_what_it_is_about_to_remove() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let first = site.back_up("one").await;
    site.back_up("two").await;
    let keep = super::Keep { last: 1, ..Default::default() };
    for (dry_run, expected) in [(true, 0), (false, 1)] {
        let what = Pruning { keep: Some(keep), dry_run, ..Pruning::default() };
        let access = site.backups.access(repository()).unwrap();
        let job = site.backups.prune(access, None, what, "me").await.unwrap();
        site.backups.attach(&job).unwrap().ended().await.unwrap();
        let ended = site.backups.find(&job.operation).unwrap();
        assert_eq!(ended.forgotten.len(), 1, "{ended:?}");
        assert_eq!(ended.forgotten[0].snapshot, first.snapshot);
        assert_eq!(ended.planned.len(), expected, "{ended:?}");
    }
}

/// A failure that was written down while the clock was ahead is not the answer until then,
/// and a backup of such a time is looked for.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_to_come_tells_nothing() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let first = site.poll("one").await;
    let to_come = async |job: &Job, state: State| {
        let noted = site.backups.shared.note(job, |job| {
            job.set_state(state);
            job.ended_at = u64::MAX / 2;
        });
        noted.await.unwrap();
    };
    to_come(&first, State::Failed).await;
    let second = site.poll("one").await;
    assert_ne!(second.operation, first.operation, "it failed some day, and is tried again");
    to_come(&second, State::Complete).await;
    assert_eq!(site.poll("one").await.operation, second.operation, "it is there");
    let stored = site._folder.path().join("backups/bucket/here/snapshots");
    std::fs::remove_file(stored.join(&second.snapshot)).unwrap();
    assert_ne!(site.poll("one").await.operation, second.operation, "somebody removed it");
}

/// The same request is answered with what it did only as long as that is so.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_no_answer_for_ever() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let request = async || {
        let access = site.backups.access(repository()).unwrap();
        let asked = Origin::Request("a");
        let job = site.backups.backup("one", "vol", access, None, asked, "me").await.unwrap();
        let _ = site.backups.attach(&job).unwrap().ended().await;
        site.backups.find(&job.operation).unwrap()
    };
    let first = request().await;
    assert_eq!(request().await.operation, first.operation);
    let noted = site.backups.shared.note(&first, |job| job.ended_at = 1);
    noted.await.unwrap();
    assert_eq!(request().await.operation, first.operation, "long ago, and still there");
    let stored = site._folder.path().join("backups/bucket/here/snapshots");
    std::fs::remove_file(stored.join(&first.snapshot)).unwrap();
    let second = request().await;
    assert_ne!(second.operation, first.operation, "somebody removed it");
    let failed = site.backups.shared.note(&second, |job| {
        job.set_state(State::Failed);
        job.ended_at = 1;
    });
    failed.await.unwrap();
    assert_ne!(request().await.operation, second.operation, "it failed long ago");
}

/// Another run by the name of the last good backup fails: its age is known all the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_the_last_good_backup_outlives_its_job() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let first = site.poll("nightly").await;
    let now = site.backups.shared.clock.now();
    let known = || site.backups.last_successes(now + 1000).get("vg/vol").copied();
    assert_eq!(known(), Some(first.frozen_at));
    site.pretender.used.store(100, Ordering::SeqCst);
    let second = site.back_up("nightly").await;
    assert_eq!(second.state(), JobState::JobFailed, "{second:?}");
    site.pretender.used.store(0, Ordering::SeqCst);
    assert_eq!(site.backups.jobs("vol").len(), 1, "the record of the first is the second's");
    assert_eq!(known(), Some(first.frozen_at));

    // A clock that was ahead takes nothing away, and a backup that is gone has no age.
    let ahead = Job { frozen_at: now * 2, ..first.clone() };
    site.backups.shared.note_last_good(&ahead, now).await.unwrap();
    assert_eq!(known(), Some(first.frozen_at));
    let of = Repository { path: format!("bucket/here#{}", first.snapshot), ..repository() };
    let access = site.backups.access(of).unwrap();
    site.backups.delete(&access, "vol", "", false).await.unwrap();
    assert_eq!(known(), None);
}

/// Records of backups are for their owner alone, also in a folder that existed before.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_reads_what_is_known_of_backups() {
    use std::os::unix::fs::PermissionsExt;
    let mut site = Site::new().await;
    let folders = [site.config.workdir.clone(), site.config.workdir.join("credentials")];
    let open = std::fs::Permissions::from_mode(0o755);
    folders.iter().for_each(|folder| std::fs::set_permissions(folder, open.clone()).unwrap());
    site.restart(async |_| {}).await;
    for folder in folders {
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_gets_more_room_before_it_is_full() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    site.pretender.used.store(75, Ordering::SeqCst);
    let job = site.back_up("one").await;
    assert_eq!((job.state(), job.error_code), (JobState::JobComplete, 0), "{job:?}");
    assert_eq!(site.pretender.extended.load(Ordering::SeqCst), 156 * MIB);
    assert_eq!(site.names(), ["vol"], "such a snapshot is not kept");

    site.pretender.used.store(100, Ordering::SeqCst);
    let job = site.back_up("two").await;
    assert_eq!(job.state(), JobState::JobFailed, "{job:?}");
    assert!(job.error.starts_with("snapshot overflow"), "{job:?}");
    assert_eq!(job.error_code, tonic::Code::FailedPrecondition as i32, "{job:?}");
    site.pretender.used.store(0, Ordering::SeqCst);
    assert_eq!(site.names(), ["vol"]);
}

/// Whoever polls is told of a backup only as long as it is there, and is of the
/// volume that has the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_gone_is_made_again() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let first = site.poll("one").await;
    assert_eq!(site.poll("one").await.operation, first.operation);
    // Long ago, and still there.
    let age = async |job: &Job| {
        let noted = site.backups.shared.note(job, |job| job.ended_at = 1);
        noted.await.unwrap();
    };
    age(&first).await;
    assert_eq!(site.poll("one").await.operation, first.operation);
    let stored = site._folder.path().join("backups/bucket/here");
    std::fs::remove_file(stored.join("snapshots").join(&first.snapshot)).unwrap();
    let second = site.poll("one").await;
    assert_ne!(second.operation, first.operation, "somebody removed it");
    age(&second).await;
    std::fs::remove_dir_all(&stored).unwrap();
    let third = site.poll("one").await;
    assert_ne!(third.operation, second.operation, "somebody removed all of them");
    assert_eq!(third.state(), State::Complete, "{third:?}");

    site.volumes.remove("", "vol").await.unwrap();
    assert_eq!(site.poll("one").await.operation, third.operation, "done is done");
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 2);
    let fourth = site.poll("one").await;
    assert_ne!(fourth.operation, third.operation, "it is another volume");
    assert_ne!(fourth.snapshot, third.snapshot);
}

/// All jobs were operations of one kind before; what was under way then goes on
/// where it was.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_an_earlier_version_go_on() {
    let mut site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    assert_eq!(site.back_up("zero").await.state(), JobState::JobComplete);

    let backups = site.backups.clone();
    let all = u32::try_from(site.config.jobs).unwrap();
    let nobody_works = backups.shared.slots.acquire_many(all).await.unwrap();
    let begun = ask_for_all(&site).await;
    let snapshot = begun[0].snapshot_volume();
    while !site.names().contains(&snapshot) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    site.restart(async |engine| {
        for kind in KINDS {
            let replaced = engine.replace_kind(kind, |_| Some(super::work::REPLACED_KIND)).await;
            assert!(replaced.unwrap() >= 1, "{kind}");
        }
    })
    .await;
    drop(nobody_works);
    drop(backups);

    let asked_again = ask_for_all(&site).await;
    for ((before, now), kind) in begun.iter().zip(&asked_again).zip(KINDS) {
        assert_eq!(now.operation, before.operation, "{kind} is the one that was begun");
        site.backups.attach(now).unwrap().ended().await.unwrap();
        let ended = site.backups.find(&now.operation).unwrap();
        assert_eq!(ended.state(), State::Complete, "{ended:?}");
        assert_eq!(site.backups.engine.get(&now.operation).unwrap().kind, kind);
    }
}

const KINDS: [&str; 4] = ["BackUpVolume", "RestoreVolume", "VerifyRepository", "PruneRepository"];

/// One job of each of [`KINDS`].
async fn ask_for_all(site: &Site) -> [Job; 4] {
    let (backups, access) = (&site.backups, || site.backups.access(repository()).unwrap());
    let latest = Repository { path: "bucket/here@zero".into(), ..repository() };
    let new = NewRestore { volume: "back".into(), ..NewRestore::default() };
    [
        backups.backup("one", "vol", access(), None, Origin::Poll, "me").await.unwrap(),
        backups.restore(new, backups.access(latest).unwrap(), None, "me").await.unwrap(),
        backups.verify(access(), None, 100, "", "me").await.unwrap(),
        backups.prune(access(), None, Pruning::default(), "me").await.unwrap(),
    ]
}

/// Schedule of a volume.
fn schedule_of(volume: &str) -> wire::Schedule {
    let repository =
        Repository { encryption_key: String::new(), credentials: "here".into(), ..repository() };
    wire::Schedule {
        name: format!("of-{volume}"),
        volume: volume.into(),
        repository: Some(repository),
        // Ten years: no test sees one end.
        every_seconds: 3650 * 86_400,
        keep: Some(wire::Retention { last: 1, ..Default::default() }),
        ..Default::default()
    }
}

impl Site {
    /// Writes down what opens the repository.
    fn set_password(&self, password: &str) {
        use std::os::unix::fs::PermissionsExt;
        let credentials = self._folder.path().join("work/credentials/here");
        std::fs::write(&credentials, format!("RESTIC_PASSWORD={password}\n")).unwrap();
        std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Sets a schedule that is due, as one is after a while.
    async fn set_due(&self, schedule: wire::Schedule) {
        let set = self.backups.set_schedule(schedule).await.unwrap();
        let due = super::record::Schedule { period: set.period - 1, ..set };
        self.backups.shared.schedules.put(due).await.unwrap();
    }

    async fn until_schedules(&self, fit: impl Fn(&super::record::Schedule) -> bool) {
        let done = async {
            while !self.backups.schedules().iter().all(&fit) {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(120), done).await;
        waited.unwrap_or_else(|_| panic!("{:?}", self.backups.schedules()));
    }

    /// Stores a volume as a job does, which has not come to write that down; returns the
    /// snapshot.
    async fn store_as(&self, job: &Job) -> String {
        let access = self.backups.access(repository()).unwrap();
        let opened = access.open(&self.config, &self.backups.shared.limits, None).await.unwrap();
        let name = job.snapshot_volume();
        let source = super::device::Source::open(&self.volumes, "vg", &name).await.unwrap();
        let options = super::save::backup_options(job, job.frozen_at, None, true);
        let stored = opened.backup(source, options, &selvage_restic::Job::new()).await;
        stored.unwrap().snapshot.id.to_string()
    }

    /// Stores a volume as another machine does, which has one of that name.
    async fn back_up_elsewhere(&self, hostname: &str, name: &str, tags: &[&str]) {
        let path = self._folder.path().join("backups/bucket/here");
        let backend = Arc::new(selvage_restic::Directory::new(path));
        let options =
            selvage_restic::RepositoryOptions { hostname: hostname.into(), ..Default::default() };
        let password = selvage_restic::Secret::new("word");
        let opened = selvage_restic::Repository::open_or_init(backend, &password, options);
        let image = self._folder.path().join("elsewhere");
        std::fs::write(&image, vec![7; 1 << 20]).unwrap();
        let source = selvage_restic::FileSource::open(&image).unwrap();
        let options = selvage_restic::BackupOptions {
            volume: "vol".into(),
            name: name.into(),
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            ..Default::default()
        };
        let job = selvage_restic::Job::new();
        opened.await.unwrap().backup(Arc::new(source), options, &job).await.unwrap();
    }
}

/// Two into one repository, each with its rules.
#[tokio::test(flavor = "multi_thread")]
async fn every_schedule_prunes_what_is_its_own() {
    let site = Site::new().await;
    site.set_password("word");
    for volume in ["vol", "other"] {
        site.create(volume).await;
        site.write(volume, 0, 1 << 20, 1);
        for name in ["one", "two"] {
            let made = site.back_up_of(volume, name).await;
            assert_eq!(made.state(), JobState::JobComplete, "{made:?}");
        }
    }
    // Another machine keeps more, and so does another group of this one.
    for name in ["three", "four"] {
        site.back_up_elsewhere("elsewhere", name, &["group=vg"]).await;
        site.back_up_elsewhere(&super::own_hostname(), name, &["group=vg2"]).await;
    }
    for volume in ["vol", "other"] {
        site.set_due(schedule_of(volume)).await;
    }
    site.until_schedules(|it| !it.job.is_empty() && it.pruned).await;
    let access = site.backups.access(repository()).unwrap();
    let left = site.backups.stored(&access, "").await.unwrap();
    let describe = |it: &selvage_restic::Snapshot| {
        let own = it.hostname == super::own_hostname();
        format!("{own} {}/{}", it.group().unwrap(), it.volume().unwrap())
    };
    let mut left: Vec<_> = left.iter().map(describe).collect();
    left.sort();
    let expected = [
        "false vg/vol",
        "false vg/vol",
        "true vg/other",
        "true vg/vol",
        "true vg2/vol",
        "true vg2/vol",
    ];
    assert_eq!(left, expected);
    let schedules = site.backups.schedules();
    assert!(schedules.iter().all(|schedule| schedule.error.is_empty()), "{schedules:?}");
}

/// Restores and deletions mean a backup of this machine, whatever others have stored since.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_means_a_backup_of_this_machine() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let own = site.back_up("monday").await;
    site.back_up_elsewhere("elsewhere", "monday", &["group=vg"]).await;
    let named = Repository { path: "bucket/here@monday".into(), ..repository() };
    let access = || site.backups.access(named.clone()).unwrap();
    let meant = async |volume: &str, hostname: &str| {
        site.backups.delete(&access(), volume, hostname, true).await
    };
    for volume in ["", "vol", "vg/vol"] {
        assert_eq!(meant(volume, "").await.unwrap().id.to_string(), own.snapshot, "{volume}");
    }
    assert_eq!(meant("vol", "elsewhere").await.unwrap().hostname, "elsewhere");
    assert!(meant("vg2/vol", "").await.is_err());
    let restore = async |hostname: &str, volume: &str| {
        let new = NewRestore {
            volume: volume.into(),
            source_hostname: hostname.into(),
            ..NewRestore::default()
        };
        let job = site.backups.restore(new, access(), None, "me").await.unwrap();
        site.backups.attach(&job).unwrap().ended().await.unwrap();
        site.backups.find(&job.operation).unwrap().snapshot
    };
    assert_eq!(restore("", "back").await, own.snapshot);
    assert_ne!(restore("elsewhere", "theirs").await, own.snapshot);
    // One of two others is never chosen for anybody.
    site.backups.delete(&access(), "", "", false).await.unwrap();
    site.back_up_elsewhere("third", "monday", &["group=vg"]).await;
    let refused = meant("", "").await.unwrap_err().text();
    assert!(refused.contains("vg/vol on elsewhere ("), "{refused}");
    assert!(refused.contains("vg/vol on third ("), "{refused}");
}

/// A run that fails after it has begun is told of until one has succeeded, and tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_reported_and_tried_again() {
    let site = Site::new().await;
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    assert_eq!(site.back_up("zero").await.state(), JobState::JobComplete);
    site.set_password("another");
    site.set_due(schedule_of("vol")).await;
    site.until_schedules(|it| it.failures == 1).await;
    let failed = site.backups.schedules().remove(0);
    let described = site.backups.describe_schedule(&failed);
    assert!(described.error.contains("the encryption key does not open"), "{described:?}");
    let jobs = site.backups.jobs("vol");
    let job = jobs.iter().find(|job| job.state() == JobState::JobFailed).unwrap();
    assert_eq!(job.error_code, tonic::Code::PermissionDenied as i32, "{job:?}");
    let again = described.next_at.unwrap().seconds;
    assert_eq!(again, i64::try_from(failed.failed_at / 1000 + 60).unwrap(), "{described:?}");

    // Nobody waits a minute here: it failed long ago.
    let shared = &site.backups.shared;
    let long_ago = async || {
        let change = |schedule: &mut super::record::Schedule| {
            schedule.failed_at = 0;
            Ok::<_, selvage_store::Error>(())
        };
        shared.schedules.update(&failed.name, change).await.unwrap();
    };
    long_ago().await;
    site.until_schedules(|it| it.failures == 2).await;
    assert_eq!(site.backups.describe_schedule(&failed).error, described.error);
    site.set_password("word");
    long_ago().await;
    site.until_schedules(|it| it.failures == 0 && it.pruned).await;
    let done = site.backups.schedules().remove(0);
    assert_eq!((done.error.as_str(), done.period), ("", failed.period));
    let access = site.backups.access(repository()).unwrap();
    let left = site.backups.stored(&access, "vol").await.unwrap();
    assert_eq!(left.len(), 1);
    assert!(left[0].name().unwrap().starts_with("of-vol-"), "{left:?}");
}

/// A disk that is not mounted leaves an empty folder. A schedule fills no other disk
/// instead; somebody who asks for a backup there gets one.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_makes_no_repository_in_place_of_one_that_is_gone() {
    let site = Site::new().await;
    site.set_password("word");
    site.create("vol").await;
    site.write("vol", 0, 1 << 20, 1);
    let run = async |name: &str| {
        site.set_due(wire::Schedule { name: name.into(), ..schedule_of("vol") }).await;
        site.until_schedules(|it| !it.seen.is_empty() && (it.failures == 1 || it.pruned)).await;
        let error = site.backups.schedules().remove(0).error;
        site.backups.delete_schedule(name).await.unwrap();
        error
    };
    assert_eq!(run("first").await, "", "the first one may make it");
    let directory = site._folder.path().join("backups");
    let (there, away) = (directory.join("bucket/here"), directory.join("away"));
    std::fs::rename(&there, &away).unwrap();
    std::fs::create_dir(&there).unwrap();
    let told = run("second").await;
    assert!(told.contains("is its disk mounted?"), "{told}");
    assert!(told.contains(there.to_str().unwrap()), "{told}");
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 0, "nothing was written");

    std::fs::remove_dir(&there).unwrap();
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(run("third").await, "");
    std::fs::remove_dir_all(&there).unwrap();
    assert_eq!(site.back_up("by hand").await.state(), JobState::JobComplete);
}

#[test]
fn what_is_wrong_in_the_configuration_is_named() {
    let parse = |backup: &str| {
        let classes = "device-classes: [{name: a, volume-group: b, default: true}]";
        Config::parse(&format!("{classes}\nbackup: {backup}"))
    };
    for (backup, expected) in [
        ("{jobs: 0}", "backup.jobs should be 1 or more"),
        ("{full-every: 0}", "backup.full-every should be 1 or more"),
        ("{change-room: 101}", "backup.change-room should be from 1 to 100"),
        ("{workdir: ''}", "backup.workdir should not be empty"),
    ] {
        assert_eq!(parse(backup).unwrap_err(), expected);
    }
    // The original's keys mean what they meant, as far as they mean anything.
    let stock = parse("{Script-Path: /usr/local/bin/x.sh, workdir: /var/topolvm}").unwrap();
    assert_eq!(stock.backup, Some(config::Backup::default()));
}
