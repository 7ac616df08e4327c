//! Many at work in one repository, a volume far larger than the machine, and
//! limits that change under way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::*;
use selvage_restic::{
    BackupOptions, BlockSource, Directory, Forget, Id, Job, Keep, Limits, Parent, PruneOptions,
    Rate, Repository, RepositoryOptions, VerifyOptions,
};

const MIB: u64 = 1 << 20;
const NOW: PruneOptions =
    PruneOptions { max_unused_percent: 0, grace: Duration::ZERO, dry_run: false };

fn small() -> RepositoryOptions {
    RepositoryOptions { pack_size: 256 << 10, connections: 2, ..options() }
}

async fn open(path: &Path) -> Repository {
    let backend = Arc::new(Directory::new(path));
    Repository::open_or_init(backend, &password(), small()).await.unwrap()
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
    let keep = Keep { last: 1, ..Keep::default() };
    let (pruned, forget) = (repo.clone(), Forget { keep, ..Forget::default() });
    jobs.spawn(async move {
        let patient = RepositoryOptions { lock_wait: Duration::from_secs(120), ..small() };
        let backend = Arc::new(Directory::new(&pruned));
        let repository = Repository::open(backend, &password(), patient).await.unwrap();
        for _ in 0..3 {
            repository.forget(&forget, false, &Job::new()).await.unwrap();
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
