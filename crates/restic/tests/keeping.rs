//! Verify, heal, forget, prune, and locks, in a directory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use common::*;
use jiff::{SignedDuration, Timestamp};
use selvage_api::Code;
use selvage_kit::clock::ManualClock;
use selvage_restic::{
    Backend, Damage, Directory, Error, FileSink, Forget, Forgotten, Job, Keep, PruneOptions,
    Repository, RepositoryOptions, RestoreOptions, Snapshot, VerifyOptions,
    backend::{File, Kind, Listed},
};

const MIB: u64 = 1 << 20;
const ALL: VerifyOptions = VerifyOptions { read_percent: 100 };
const NOW: PruneOptions =
    PruneOptions { max_unused_percent: 0, grace: Duration::ZERO, dry_run: false };

/// All packs of a repository, largest first.
fn packs(repository: &Path) -> Vec<PathBuf> {
    let mut packs = Vec::new();
    for folder in std::fs::read_dir(repository.join("data")).unwrap() {
        let files = std::fs::read_dir(folder.unwrap().path()).unwrap();
        packs.extend(files.map(|file| file.unwrap().path()));
    }
    packs.sort_by_key(|pack| std::cmp::Reverse(std::fs::metadata(pack).unwrap().len()));
    packs
}

fn stored(repository: &Path) -> u64 {
    packs(repository).iter().map(|pack| std::fs::metadata(pack).unwrap().len()).sum()
}

/// Waits until somebody's lock is there, whole: until then its name is longer.
fn wait_for_lock(repository: &Path) {
    let is_whole = |name: std::ffi::OsString| name.len() == 64;
    let locked = || {
        let mut entries = std::fs::read_dir(repository.join("locks")).unwrap().flatten();
        entries.any(|entry| is_whole(entry.file_name()))
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !locked() {
        assert!(std::time::Instant::now() < deadline, "stock restic takes no lock");
        std::thread::yield_now();
    }
}

async fn at(repository: &Repository, disk: &Path, volume: &str, time: Timestamp) -> Snapshot {
    let mut options = named(volume);
    options.time = Some(time);
    backup(repository, disk, options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_forgotten_is_pruned_and_the_rest_stays() {
    let folder = Folder::new();
    let repo = folder.path("repo");
    let repository = repository(&repo).await;
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut snapshots = Vec::new();
    for day in 0..4u64 {
        let disk = folder.path(&format!("disk{day}"));
        image(&disk, 12 * MIB, 20 + day);
        let time = start + SignedDuration::from_hours(24 * day as i64);
        snapshots.push(at(&repository, &disk, "disk", time).await);
    }
    let other = at(&repository, &folder.path("disk0"), "other", start).await;
    let before = stored(&repo);

    let keep = Keep { daily: 2, ..Keep::default() };
    let forget = Forget { keep, volume: Some("disk".into()), ..Forget::default() };
    let would = repository.forget(&forget, true, &Job::new()).await.unwrap();
    assert_eq!(repository.snapshots().await.unwrap().len(), 5);
    let did = repository.forget(&forget, false, &Job::new()).await.unwrap();
    assert_eq!(would, did);
    assert_eq!(did.kept, snapshots[2..]);
    let left = repository.snapshots().await.unwrap();
    assert_eq!(left.len(), 3);

    let dry = PruneOptions { dry_run: true, ..NOW };
    let would = repository.prune(&dry, &Job::new()).await.unwrap();
    assert!(would.removed > 0);
    assert_eq!(stored(&repo), before);
    repository.prune(&NOW, &Job::new()).await.unwrap();
    let after = stored(&repo);
    assert!(after < before - 2 * MIB, "{before} {after}");

    for (snapshot, disk) in [(&other, "disk0"), (&snapshots[2], "disk2"), (&snapshots[3], "disk3")]
    {
        let back = folder.path(&format!("back-{disk}"));
        restore(&repository, snapshot, 12 * MIB, &back).await;
        assert_same(&folder.path(disk), &back);
    }
    let report = repository.verify(ALL, &Job::new()).await.unwrap();
    assert_eq!(report.damages, []);
    if has_restic() {
        let restic = Restic::on(&repo);
        restic.check();
        // There is nothing left for it to do.
        let said = String::from_utf8(restic.run(&["prune", "--max-unused", "0"])).unwrap();
        let words: Vec<&str> = said.split_whitespace().collect();
        assert!(words.join(" ").contains("total prune: 0 blobs / 0 B"), "{said}");
        restic.check();
    }
    // A second one finds nothing to do and changes nothing.
    let index = std::fs::read_dir(repo.join("index")).unwrap().count();
    repository.prune(&NOW, &Job::new()).await.unwrap();
    assert_eq!(std::fs::read_dir(repo.join("index")).unwrap().count(), index);
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_are_marked_first_and_live_again_if_they_are_needed() {
    let folder = Folder::new();
    let (disk, repo) = (folder.path("disk"), folder.path("repo"));
    image(&disk, 8 * MIB, 30);
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let options = RepositoryOptions { clock: Arc::new(clock.clone()), ..options() };
    let backend = Arc::new(Directory::new(&repo));
    let repository = Repository::init(backend, &password(), options).await.unwrap();
    let kept = backup(&repository, &disk, named("disk")).await;
    let document = std::fs::read(repo.join("snapshots").join(kept.id.to_string())).unwrap();
    let grace = PruneOptions { grace: Duration::from_secs(3600), ..NOW };

    repository.remove_snapshots(&[kept.id], &Job::new()).await.unwrap();
    let before = stored(&repo);
    let marked = repository.prune(&grace, &Job::new()).await.unwrap();
    assert!(marked.marked > 0);
    assert_eq!((marked.removed, stored(&repo)), (0, before));

    // A process that lost its lock finishes after all.
    std::fs::write(repo.join("snapshots").join(kept.id.to_string()), document).unwrap();
    let again = repository.prune(&grace, &Job::new()).await.unwrap();
    assert_eq!((again.marked, again.removed), (0, 0));
    restore(&repository, &kept, 8 * MIB, &folder.path("back")).await;
    assert_same(&disk, &folder.path("back"));

    repository.remove_snapshots(&[kept.id], &Job::new()).await.unwrap();
    repository.prune(&grace, &Job::new()).await.unwrap();
    // What is marked is not counted on by new backups.
    let new = backup(&repository, &disk, named("disk")).await;
    clock.advance(Duration::from_secs(3601));
    let last = repository.prune(&grace, &Job::new()).await.unwrap();
    assert!(last.removed > 0, "{last:?}");
    assert_eq!(repository.verify(ALL, &Job::new()).await.unwrap().damages, []);
    restore(&repository, &new, 8 * MIB, &folder.path("back2")).await;
    if has_restic() {
        Restic::on(&repo).check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_named_and_healed_from_the_live_volume() {
    let folder = Folder::new();
    let (disk, repo) = (folder.path("disk"), folder.path("repo"));
    let size = 24 * MIB + 5;
    image(&disk, size, 40);
    let small = RepositoryOptions { pack_size: 1 << 20, ..options() };
    let backend = Arc::new(Directory::new(&repo));
    let repository = Repository::init(backend, &password(), small).await.unwrap();
    let snapshot = backup(&repository, &disk, named("disk")).await;
    assert_eq!(repository.verify(ALL, &Job::new()).await.unwrap().damages, []);

    let packs = packs(&repo);
    assert!(packs.len() > 3);
    let mut content = std::fs::read(&packs[0]).unwrap();
    content[100_000] ^= 1;
    std::fs::write(&packs[0], content).unwrap();
    std::fs::remove_file(&packs[1]).unwrap();
    // The trees are in the smallest.
    std::fs::write(packs.last().unwrap(), b"short").unwrap();

    let report = repository.verify(ALL, &Job::new()).await.unwrap();
    assert_eq!(report.bad_packs().len(), 3, "{report:?}");
    assert!(report.damages.iter().any(|damage| matches!(damage, Damage::MissingPack(_))));
    assert!(report.damages.iter().any(|damage| matches!(damage, Damage::LostBlob { .. })));
    let sink = Arc::new(FileSink::create(folder.path("bad"), size).unwrap());
    let options = RestoreOptions::default();
    let refused = repository.restore(&snapshot, sink, &options, &Job::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss);
    // Only to prune it would be to make it worse.
    assert!(repository.prune(&NOW, &Job::new()).await.is_err());

    let healed = repository.heal(&report, source(&disk), "disk", None, &Job::new()).await.unwrap();
    assert_eq!(healed.packs, 3);
    assert!(healed.salvaged > 0 && healed.salvaged < healed.blobs, "{healed:?}");
    assert_eq!(healed.lost, []);
    assert_eq!(repository.verify(ALL, &Job::new()).await.unwrap().damages, []);
    restore(&repository, &snapshot, size, &folder.path("back")).await;
    assert_same(&disk, &folder.path("back"));
    if has_restic() {
        Restic::on(&repo).check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_lock_shuts_others_out_and_a_dead_mans_lock_does_not() {
    let folder = Folder::new();
    let (disk, repo) = (folder.path("disk"), folder.path("repo"));
    image(&disk, MIB, 50);
    let options = RepositoryOptions { lock_wait: Duration::ZERO, ..options() };
    let backend = Arc::new(Directory::new(&repo));
    let repository = Repository::init(backend, &password(), options).await.unwrap();
    backup(&repository, &disk, named("disk")).await;
    if !has_restic() {
        return;
    }
    let restic = Restic::on(&repo);
    // Stock restic waits for its standard input, and holds its lock meanwhile.
    let mut writer = restic
        .command(&["backup", "--stdin"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for_lock(&repo);
    let refused = repository.prune(&NOW, &Job::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.to_string().contains(&writer.id().to_string()), "{refused}");
    // Who does not need to be alone may go on.
    backup(&repository, &disk, named("disk")).await;
    writer.kill().unwrap();
    writer.wait().unwrap();
    repository.prune(&NOW, &Job::new()).await.unwrap();
    assert_eq!(std::fs::read_dir(repo.join("locks")).unwrap().count(), 0);
    restic.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_keep_nothing_are_refused() {
    let folder = Folder::new();
    let repository = repository(&folder.path("repo")).await;
    let refused = repository.forget(&Forget::default(), false, &Job::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.to_string().starts_with("keep: "), "{refused}");
}

/// A directory in which a kind of file cannot be removed or written after so
/// many that were.
#[derive(Debug)]
struct Failing {
    below: Directory,
    removals: AtomicUsize,
    writes: AtomicUsize,
}

impl Failing {
    fn new(path: &Path) -> Self {
        let (removals, writes) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(usize::MAX));
        Self { below: Directory::new(path), removals, writes }
    }

    fn count(left: &AtomicUsize) -> selvage_restic::Result<()> {
        let gone =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        gone.map(|_| ()).map_err(|_| Error::Internal("as the test wants it".into()))
    }
}

#[async_trait::async_trait]
impl Backend for Failing {
    fn location(&self) -> String {
        self.below.location()
    }

    async fn list(&self, kind: Kind) -> selvage_restic::Result<Vec<Listed>> {
        self.below.list(kind).await
    }

    async fn size(&self, file: File) -> selvage_restic::Result<Option<u64>> {
        self.below.size(file).await
    }

    async fn read(&self, file: File) -> selvage_restic::Result<Bytes> {
        self.below.read(file).await
    }

    async fn read_range(&self, file: File, at: u64, length: u64) -> selvage_restic::Result<Bytes> {
        self.below.read_range(file, at, length).await
    }

    async fn write(&self, file: File, content: Bytes) -> selvage_restic::Result<bool> {
        if matches!(file, File::Named(Kind::Pack | Kind::Index, _)) {
            Self::count(&self.writes)?;
        }
        self.below.write(file, content).await
    }

    async fn remove(&self, file: File) -> selvage_restic::Result<()> {
        let there = self.below.size(file).await?.is_some();
        if there && matches!(file, File::Named(Kind::Snapshot, _)) {
            Self::count(&self.removals)?;
        }
        self.below.remove(file).await
    }

    async fn sweep(&self, kind: Kind, age: Duration) -> selvage_restic::Result<usize> {
        self.below.sweep(kind, age).await
    }
}

/// Whatever it fails of, it removed nothing or says what.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_fails_removed_nothing_or_says_what() {
    let folder = Folder::new();
    let repo = folder.path("repo");
    let failing = Arc::new(Failing::new(&repo));
    let options = RepositoryOptions { lock_wait: Duration::ZERO, ..options() };
    let backend = Arc::clone(&failing) as Arc<dyn Backend>;
    let repository = Repository::init(backend, &password(), options).await.unwrap();
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let disk = folder.path("disk");
    for day in 0..4_i64 {
        image(&disk, 6 * MIB, 70 + day as u64);
        at(&repository, &disk, "disk", start + SignedDuration::from_hours(24 * day)).await;
    }
    let ids = async || -> Vec<_> {
        repository.snapshots().await.unwrap().iter().map(|snapshot| snapshot.id).collect()
    };
    let all = ids().await;
    let keep = Keep { last: 1, ..Keep::default() };
    let forget = Forget { keep, ..Forget::default() };
    let prune = async || repository.forget_and_prune(Some(&forget), &NOW, &Job::new()).await;

    // Somebody else is at work.
    if has_restic() {
        let restic = Restic::on(&repo);
        let mut other = restic
            .command(&["backup", "--stdin"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for_lock(&repo);
        let refused = prune().await.unwrap_err();
        assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        assert_eq!(ids().await, all);
        let refused = repository.forget(&forget, false, &Job::new()).await.unwrap_err();
        assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        assert_eq!(ids().await, all);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    // What stays cannot be copied.
    failing.writes.store(0, Ordering::SeqCst);
    prune().await.unwrap_err();
    assert_eq!(ids().await, all);
    failing.writes.store(usize::MAX, Ordering::SeqCst);

    // The second of three cannot be removed.
    failing.removals.store(1, Ordering::SeqCst);
    let failed = prune().await.unwrap_err();
    let Error::AfterForgetting { snapshots, .. } = &failed else { panic!("{failed}") };
    assert_eq!((&snapshots[..], ids().await), (&all[..1], all[1..].to_vec()));
    assert!(failed.to_string().ends_with(&format!("one backup went: {}", all[0].short())));

    failing.removals.store(usize::MAX, Ordering::SeqCst);
    let (Forgotten { removed, .. }, _) = prune().await.unwrap();
    let removed: Vec<_> = removed.iter().map(|snapshot| snapshot.id).collect();
    assert_eq!((&removed[..], ids().await), (&all[1..3], all[3..].to_vec()));
    assert_eq!(repository.verify(ALL, &Job::new()).await.unwrap().damages, []);
    if has_restic() {
        Restic::on(&repo).check();
    }
}

/// Volumes called alike are counted by machine: one that has two backups loses the older by
/// a rule that keeps one, the other loses none. A rule for one machine judges no other.
#[tokio::test(flavor = "multi_thread")]
async fn machines_are_judged_by_themselves() {
    let folder = Folder::new();
    let (disk, repo) = (folder.path("disk"), folder.path("repo"));
    image(&disk, MIB, 80);
    repository(&repo).await;
    for hostname in ["one", "two", "two"] {
        let options = RepositoryOptions { hostname: hostname.into(), ..options() };
        let backend = Arc::new(Directory::new(&repo));
        let repository = Repository::open(backend, &password(), options).await.unwrap();
        backup(&repository, &disk, named("disk")).await;
    }
    let repository = repository(&repo).await;
    let keep = Keep { last: 1, ..Keep::default() };
    let only = |hostname: Option<&str>| Forget {
        keep,
        hostname: hostname.map(str::to_owned),
        ..Forget::default()
    };
    let judged = async |hostname| {
        let would = repository.forget(&only(hostname), true, &Job::new()).await.unwrap();
        (would.kept.len(), would.removed.len())
    };
    assert_eq!(judged(None).await, (2, 1));
    assert_eq!(judged(Some("one")).await, (1, 0));
    assert_eq!(judged(Some("two")).await, (1, 1));
}

/// Others could guess at its keys. A group that was let in stays so, as with stock restic.
#[tokio::test]
async fn a_directory_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let (repo, disk) = (folder.path("above/repo"), folder.path("disk"));
    image(&disk, MIB, 95);
    let repository = repository(&repo).await;
    let first = backup(&repository, &disk, named("disk")).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let key = std::fs::read_dir(repo.join("keys")).unwrap().next().unwrap().unwrap();
    let snapshot = |id: &Snapshot| repo.join("snapshots").join(id.id.to_string());
    for folder in [folder.path("above"), repo.clone(), repo.join("keys"), repo.join("data")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    for file in [repo.join("config"), key.path(), snapshot(&first)] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    let group = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(repo.join("config"), group).unwrap();
    let second = backup(&repository, &disk, named("disk")).await;
    assert_eq!(mode(&snapshot(&second)) & 0o047, 0o040);
}

/// A file system of so many bytes, until it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf, size: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("mounts", "only root may make them");
            return None;
        }
        std::fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .status();
        assert!(mounted.unwrap().success());
        Some(Self(path))
    }

    /// Leaves so many bytes.
    fn fill(&self, left: u64) {
        let free = rustix::fs::statvfs(&self.0).unwrap();
        let length = free.f_bavail * free.f_frsize - left;
        std::fs::write(self.0.join("filler"), vec![1; length as usize]).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A prune needs room to copy what stays of packs. Where there is none, it makes room
/// without.
#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_filled_its_disk_can_be_pruned() {
    const CHUNK: usize = 256 << 10;
    let folder = Folder::new();
    let Some(small) = SmallDisk::mount(folder.path("small"), 40 * MIB) else { return };
    let (disk, repo) = (folder.path("disk"), small.0.join("repo"));
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let options =
        RepositoryOptions { pack_size: MIB as u32, clock: Arc::new(clock.clone()), ..options() };
    let backend = Arc::new(Directory::new(&repo));
    let repository = Repository::init(backend, &password(), options).await.unwrap();
    let mut numbers = Numbers::new(90);
    let mut content = numbers.bytes(16 * MIB as usize);
    std::fs::write(&disk, &content).unwrap();
    let old = backup(&repository, &disk, named("disk")).await;
    // Of some packs nothing is needed any more, of others half.
    let half = content.len() / 2;
    content[..half].copy_from_slice(&numbers.bytes(half));
    for chunk in content[half..].chunks_mut(CHUNK).step_by(2) {
        chunk.copy_from_slice(&numbers.bytes(CHUNK));
    }
    std::fs::write(&disk, &content).unwrap();
    clock.advance(Duration::from_secs(60));
    let new = backup(&repository, &disk, named("disk")).await;

    small.fill(MIB);
    let other = folder.path("other");
    image(&other, 16 * MIB, 91);
    let full = repository.backup(source(&other), named("other"), &Job::new()).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
    let before = stored(&repo);
    let keep = Keep { last: 1, ..Keep::default() };
    let forget = Forget { keep, ..Forget::default() };
    let grace = PruneOptions { grace: Duration::from_secs(3600), ..NOW };
    let prune = async || repository.forget_and_prune(Some(&forget), &grace, &Job::new()).await;
    let (forgotten, marked) = prune().await.unwrap();
    assert_eq!(forgotten.removed, [old]);
    assert!(marked.not_copied > 0 && marked.marked > 0, "{marked:?}");
    assert_eq!((marked.repacked, marked.removed, stored(&repo)), (0, 0, before));
    // Room is made of what was marked before anything is copied.
    clock.advance(Duration::from_secs(3601));
    let (_, swept) = prune().await.unwrap();
    assert!(swept.removed > 0 && swept.repacked > 0 && swept.not_copied == 0, "{swept:?}");
    assert_eq!(repository.verify(ALL, &Job::new()).await.unwrap().damages, []);
    restore(&repository, &new, 16 * MIB, &folder.path("back")).await;
    assert_same(&disk, &folder.path("back"));
    if has_restic() {
        Restic::on(&repo).check();
    }
}
