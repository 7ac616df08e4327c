//! Keys, locks, figures, differences, and restores over what is there: each held
//! against stock restic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    process::{Command, Stdio},
    sync::Arc,
};

use common::*;
use selvage_api::Code;
use selvage_restic::{
    BlockSource, Directory, Error, FileSink, Job, Repository, RestoreOptions, Secret,
};

const MIB: u64 = 1 << 20;
const NEW: &str = "another passphrase";

async fn open(folder: &Folder, password: &str) -> Result<Repository, Error> {
    let backend = Arc::new(Directory::new(folder.path("repo")));
    Repository::open(backend, &Secret::new(password), options()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passphrase_is_changed_by_adding_one_and_removing_the_other() {
    let folder = Folder::new();
    let repository = repository(&folder.path("repo")).await;
    let first = repository.keys().await.unwrap();
    assert!(first.len() == 1 && first[0].current, "{first:?}");
    let added = repository.add_key(&Secret::new(NEW)).await.unwrap();
    assert!(!added.current && added.created.is_some(), "{added:?}");
    assert_eq!(
        repository.add_key(&Secret::new("")).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let own = repository.remove_key(&first[0].id.to_string()).await.unwrap_err();
    assert!(own.to_string().contains("was opened with"), "{own}");
    let none = repository.remove_key("").await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);

    let other = open(&folder, NEW).await.unwrap();
    assert_eq!(other.remove_key(&first[0].id.short()).await.unwrap().id, first[0].id);
    let gone = open(&folder, PASSWORD).await.unwrap_err();
    assert_eq!(gone.code(), Code::PermissionDenied, "{gone}");
    if has_restic() {
        let mut restic = Restic::on(folder.path("repo"));
        restic.environment.push(("RESTIC_PASSWORD".into(), NEW.into()));
        restic.check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_that_nobody_holds_are_removed_and_others_when_all_are_meant() {
    if !has_restic() {
        return;
    }
    let folder = Folder::new();
    let repository = repository(&folder.path("repo")).await;
    // Stock restic backs up its input, and keeps its lock until that ends.
    let restic = Restic::on(folder.path("repo"));
    let mut child = restic
        .command(&["backup", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let locks = loop {
        match repository.locks().await {
            Ok(locks) if !locks.is_empty() => break locks,
            // Half a lock, while it is being written.
            _ => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    assert_eq!((locks.len(), locks[0].lock.pid, locks[0].stale), (1, child.id(), false));
    let held = repository.unlock(false).await.unwrap();
    assert!(held.removed.is_empty() && held.left == locks, "{held:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let stale = repository.unlock(false).await.unwrap();
    assert!(stale.left.is_empty() && stale.removed.len() == 1, "{stale:?}");

    // One of another machine, that is not old enough to be given up.
    let host = Command::new("hostname").output().map(|out| out.stdout).unwrap_or_default();
    assert_ne!(host, b"elsewhere\n");
    let elsewhere = selvage_restic::RepositoryOptions { hostname: "elsewhere".into(), ..options() };
    let backend = Arc::new(Directory::new(folder.path("repo")));
    let other = Repository::open(backend, &password(), elsewhere).await.unwrap();
    let (job, source) = (Job::new(), Arc::new(Endless));
    let working = (other.clone(), job.clone());
    let backup = tokio::spawn(async move {
        working.0.backup(source, named("endless"), &working.1).await.map(|_| ())
    });
    while repository.locks().await.is_ok_and(|locks| locks.is_empty()) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(repository.unlock(false).await.unwrap().left.len(), 1);
    assert_eq!(repository.unlock(true).await.unwrap().removed.len(), 1);
    assert!(repository.locks().await.unwrap().is_empty());
    job.cancel();
    assert!(matches!(backup.await.unwrap(), Err(Error::Cancelled | Error::LockLost)));
}

/// A volume that takes its time.
struct Endless;

impl BlockSource for Endless {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.fill((offset >> 20) as u8 | 1);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_those_of_stock_restic() {
    if !has_restic() {
        return;
    }
    let folder = Folder::new();
    let (disk, other) = (folder.path("disk"), folder.path("other"));
    image(&disk, 24 * MIB, 1);
    image(&other, 8 * MIB, 2);
    let repository = repository(&folder.path("repo")).await;
    backup(&repository, &disk, named("data")).await;
    backup(&repository, &disk, named("data")).await;
    backup(&repository, &other, named("logs")).await;
    let stats = repository.stats().await.unwrap();
    assert_eq!((stats.snapshots, stats.volume_bytes), (3, 56 * MIB));
    let volumes: Vec<(&str, u64, u64)> =
        stats.volumes.iter().map(|it| (it.volume.as_str(), it.snapshots, it.size)).collect();
    assert_eq!(volumes, [("data", 2, 24 * MIB), ("logs", 1, 8 * MIB)]);
    let said = Restic::on(folder.path("repo")).run(&["stats", "--mode", "raw-data", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
    // Stock restic counts blobs, trees among them; we count what packs take.
    let blobs = said["total_size"].as_u64().unwrap();
    assert!(stats.stored >= blobs && stats.stored < blobs + blobs / 10, "{stats:?} {said}");
    assert!(stats.chunk_bytes > stats.stored / 2 && stats.chunks > 10, "{stats:?}");
    assert!(stats.chunks < said["total_blob_count"].as_u64().unwrap(), "{stats:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_what_was_written_between() {
    let folder = Folder::new();
    let disk = folder.path("disk");
    let file = File::create(&disk).unwrap();
    file.set_len(1100 * MIB).unwrap();
    for at in [0, 500, 1050] {
        file.write_all_at(&Numbers::new(at).bytes(4 << 20), at * MIB).unwrap();
    }
    let repository = repository(&folder.path("repo")).await;
    let first = backup(&repository, &disk, named("data")).await;
    let again = backup(&repository, &disk, named("data")).await;
    assert_eq!(repository.diff(&first, &again).await.unwrap(), []);
    let chunk = u64::from(first.chunk().unwrap());
    for at in [5 * chunk + 7, 6 * chunk, 4096 * chunk + 1] {
        file.write_all_at(b"changed", at).unwrap();
    }
    file.set_len(1101 * MIB).unwrap();
    let last = backup(&repository, &disk, named("data")).await;
    let grown = 1100 * MIB..1101 * MIB;
    let expected = [5 * chunk..7 * chunk, 4096 * chunk..4097 * chunk, grown];
    assert_eq!(repository.diff(&first, &last).await.unwrap(), expected);
    assert_eq!(repository.diff(&last, &first).await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_fetches_only_what_is_not_there() {
    let folder = Folder::new();
    let (disk, target) = (folder.path("disk"), folder.path("target"));
    image(&disk, 32 * MIB, 4);
    let repository = repository(&folder.path("repo")).await;
    let snapshot = backup(&repository, &disk, named("data")).await;
    let whole = restore(&repository, &snapshot, 32 * MIB, &target).await;
    // As if it had been cut off: half of it is something else, and a hole is not.
    let file = File::options().write(true).open(&target).unwrap();
    file.write_all_at(&Numbers::new(5).bytes(MIB as usize), 20 * MIB).unwrap();
    let sink = Arc::new(FileSink::open(&target, false).unwrap());
    let (options, job) = (RestoreOptions::default(), Job::new());
    let again = repository.restore(&snapshot, sink, &options, &job).await.unwrap();
    assert_same(&disk, &target);
    assert!(again.written <= 2 * MIB, "{again:?}");
    assert!(again.downloaded < whole.downloaded / 4, "{again:?} {whole:?}");
    assert_eq!(job.progress().done, 32 * MIB);
}

/// A source that is written to while it is read makes no snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn what_never_was_is_not_stored() {
    struct Changed;
    impl BlockSource for Changed {
        fn size(&self) -> u64 {
            MIB
        }
        fn read_at(&self, _: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            buffer.fill(7);
            Ok(())
        }
        fn is_unchanged(&self) -> std::io::Result<bool> {
            Ok(false)
        }
    }
    let folder = Folder::new();
    let repository = repository(&folder.path("repo")).await;
    let refused = repository.backup(Arc::new(Changed), named("data"), &Job::new()).await;
    assert!(matches!(refused, Err(Error::SourceChanged)), "{refused:?}");
    assert!(repository.snapshots().await.unwrap().is_empty());
}
