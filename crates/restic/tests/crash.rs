//! Killed in the middle, again and again: nothing that was there is lost, and
//! little is done twice.
//!
//! `SELVAGE_CRASHES` says how often; a few times are enough for every day.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use common::*;
use selvage_restic::{
    BackupOptions, BlockSource, Directory, Id, Job, Keep, Limits, Parent, PruneOptions, Rate,
    Repository, RepositoryOptions, VerifyOptions,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;
const NOW: PruneOptions =
    PruneOptions { max_unused_percent: 0, grace: Duration::ZERO, dry_run: false };

fn rounds() -> u64 {
    std::env::var("SELVAGE_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Small packs, so that there are many points to be killed at.
fn small() -> RepositoryOptions {
    RepositoryOptions { pack_size: 256 << 10, connections: 2, ..options() }
}

async fn open(path: &Path) -> Repository {
    let backend = Arc::new(Directory::new(path));
    Repository::open_or_init(backend, &password(), small()).await.unwrap()
}

/// What the child does. Run by itself it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Ok(work) = std::env::var("SELVAGE_CRASH_CHILD") else { return };
    let folder = std::env::var("SELVAGE_CRASH_FOLDER").unwrap();
    let folder = Path::new(&folder);
    let repository = open(&folder.join("repo")).await;
    match work.as_str() {
        "backup" => {
            backup(&repository, &folder.join("disk"), named("disk")).await;
        }
        "prune" => {
            repository.prune(&NOW, &Job::new()).await.unwrap();
        }
        other => panic!("{other}"),
    }
}

fn start(work: &str, folder: &Folder) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("SELVAGE_CRASH_CHILD", work)
        .env("SELVAGE_CRASH_FOLDER", folder.0.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// All files of a repository and how many bytes are in packs.
fn look(repo: &Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for kind in ["data", "index", "snapshots"] {
        let mut folders = vec![repo.join(kind)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                    Ok(metadata) => {
                        files += 1;
                        if kind == "data" && entry.file_name().len() == 64 {
                            bytes += metadata.len();
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    }
    (files, bytes)
}

/// Kills the child when the repository has changed so often, or lets it end.
fn kill_after(mut child: Child, repo: &Path, changes: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut before = look(repo);
    let mut seen = 0;
    while seen < changes && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "nothing happens any more");
        let now = look(repo);
        seen += u64::from(now != before);
        before = now;
    }
    let _ = child.kill();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_killed_goes_on_where_it_was() {
    let reference = Folder::new();
    image(&reference.path("disk"), SIZE, 100);
    let whole = open(&reference.path("repo")).await;
    backup(&whole, &reference.path("disk"), named("disk")).await;
    let (_, needed) = look(&reference.path("repo"));
    assert!(needed > 10 * MIB);

    let mut numbers = Numbers::new(std::process::id().into());
    for round in 0..rounds() {
        let folder = Folder::new();
        let repo = folder.path("repo");
        std::fs::hard_link(reference.path("disk"), folder.path("disk")).unwrap();
        let changes = 1 + numbers.below(40);
        // Twice, because who takes over can be killed, too.
        for _ in 0..2 {
            kill_after(start("backup", &folder), &repo, changes);
        }
        let repository = open(&repo).await;
        let snapshot = backup(&repository, &folder.path("disk"), named("disk")).await;
        let (_, stored) = look(&repo);
        // A few packs that were not full, and indexes, and nothing else twice.
        assert!(stored <= needed + needed / 20, "round {round}: {stored} of {needed}");
        let all = VerifyOptions { read_percent: 100 };
        assert_eq!(repository.verify(all, &Job::new()).await.unwrap().damages, []);
        restore(&repository, &snapshot, SIZE, &folder.path("back")).await;
        assert_same(&folder.path("disk"), &folder.path("back"));
        if has_restic() {
            Restic::on(&repo).check();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_is_killed_loses_nothing() {
    let mut numbers = Numbers::new(u64::from(std::process::id()) + 1);
    for round in 0..rounds() {
        let folder = Folder::new();
        let (disk, repo) = (folder.path("disk"), folder.path("repo"));
        let repository = open(&repo).await;
        image(&disk, SIZE / 4, 200 + round);
        let old = backup(&repository, &disk, named("disk")).await;
        change(&disk, SIZE / 4, round);
        let kept = backup(&repository, &disk, named("disk")).await;
        repository.remove_snapshots(&[old.id], &Job::new()).await.unwrap();
        kill_after(start("prune", &folder), &repo, 1 + numbers.below(25));

        let repository = open(&repo).await;
        let all = VerifyOptions { read_percent: 100 };
        assert_eq!(repository.verify(all, &Job::new()).await.unwrap().damages, [], "{round}");
        if has_restic() {
            Restic::on(&repo).check();
        }
        let done = repository.prune(&NOW, &Job::new()).await.unwrap();
        assert_eq!(done.unused_bytes, 0);
        restore(&repository, &kept, SIZE / 4, &folder.path("back")).await;
        assert_same(&disk, &folder.path("back"));
        if has_restic() {
            Restic::on(&repo).check();
        }
    }
}

/// Changes every third chunk or so.
fn change(disk: &Path, size: u64, seed: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
    let mut numbers = Numbers::new(seed + 7);
    for _ in 0..size / (200 << 10) {
        let at = numbers.below(size - 5000);
        let noise = numbers.bytes(5000);
        file.write_all_at(&noise, at).unwrap();
    }
}

/// Many who write while one prunes, one who forgets: in the end all is sound.
#[tokio::test(flavor = "multi_thread")]
async fn writers_and_pruners_do_not_hurt_each_other() {
    let folder = Folder::new();
    let repo = folder.path("repo");
    open(&repo).await;
    let mut jobs = tokio::task::JoinSet::new();
    for writer in 0..3u64 {
        let (repo, disk) = (repo.clone(), folder.path(&format!("disk{writer}")));
        image(&disk, 4 * MIB, 300 + writer);
        jobs.spawn(async move {
            let patient = RepositoryOptions { lock_wait: Duration::from_secs(120), ..small() };
            let backend = Arc::new(Directory::new(&repo));
            let repository = Repository::open(backend, &password(), patient).await.unwrap();
            for run in 0..3 {
                change(&disk, 4 * MIB, 10 * writer + run);
                backup(&repository, &disk, named(&format!("disk{writer}"))).await;
            }
        });
    }
    let (pruned, keep) = (repo.clone(), Keep { last: 1, ..Keep::default() });
    jobs.spawn(async move {
        let patient = RepositoryOptions { lock_wait: Duration::from_secs(120), ..small() };
        let backend = Arc::new(Directory::new(&pruned));
        let repository = Repository::open(backend, &password(), patient).await.unwrap();
        for _ in 0..3 {
            repository.forget(&keep, None, false, &Job::new()).await.unwrap();
            repository.prune(&NOW, &Job::new()).await.unwrap();
        }
    });
    jobs.join_all().await;
    let repository = open(&repo).await;
    let all = VerifyOptions { read_percent: 100 };
    assert_eq!(repository.verify(all, &Job::new()).await.unwrap().damages, []);
    for (writer, snapshot) in repository.snapshots().await.unwrap().iter().rev().take(1).enumerate()
    {
        let back = folder.path(&format!("back{writer}"));
        restore(&repository, snapshot, 4 * MIB, &back).await;
        assert_same(&folder.path(snapshot.volume().unwrap()), &back);
    }
    if has_restic() {
        Restic::on(&repo).check();
    }
}

/// A terabyte with almost nothing in it.
struct Sparse;

const TIB: u64 = 1 << 40;

impl BlockSource for Sparse {
    fn size(&self) -> u64 {
        TIB
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.fill((offset >> 20) as u8);
        Ok(())
    }

    fn allocated(&self) -> std::io::Result<Option<Vec<std::ops::Range<u64>>>> {
        Ok(Some((1..64).map(|n| n * (TIB / 64)..n * (TIB / 64) + 100).collect()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terabyte_that_is_empty_takes_no_time_and_changes_by_the_chunk() {
    let folder = Folder::new();
    let repository = open(&folder.path("repo")).await;
    let first = repository.backup(Arc::new(Sparse), named("big"), &Job::new()).await.unwrap();
    assert_eq!(first.read, 63 * MIB);
    let changed = Some(vec![5 * MIB..5 * MIB + 1, TIB - 1..TIB]);
    let parent = Some(Parent { snapshot: first.snapshot.id, changed });
    let options = BackupOptions { parent, ..named("big") };
    let second = repository.backup(Arc::new(Sparse), options, &Job::new()).await.unwrap();
    // Both places are in holes.
    assert_eq!((second.read, second.snapshot.tree), (0, first.snapshot.tree));
    if has_restic() {
        Restic::on(folder.path("repo")).check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_obeyed_and_can_be_lifted_while_it_holds() {
    let folder = Folder::new();
    image(&folder.path("disk"), 8 * MIB, 400);
    // So slow that it would take hours.
    let limits = Arc::new(Limits { upload: Rate::of(Some(100)), ..Limits::default() });
    let backend = Directory::new(folder.path("repo"));
    Repository::init(Arc::new(backend.clone()), &password(), small()).await.unwrap();
    let slow = Arc::new(backend.with_limits(Arc::clone(&limits)));
    let opening = {
        let slow = Arc::clone(&slow);
        async move { Repository::open(slow, &password(), small()).await.unwrap() }
    };
    let repository = opening.await;
    let job = Job::new();
    let run = {
        let (job, disk) = (job.clone(), folder.path("disk"));
        tokio::spawn(async move { repository.backup(source(&disk), named("disk"), &job).await })
    };
    tokio::time::timeout(Duration::from_millis(300), async {
        while job.progress().uploaded == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap_err();
    limits.upload.set(None);
    let summary = run.await.unwrap().unwrap();
    assert!(summary.uploaded > MIB);
    assert_ne!(summary.snapshot.id, Id::of(b""));
}
