//! Both ways with stock restic: what we write it reads, what it writes we read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::{io::Write, os::unix::fs::FileExt, process::Stdio, sync::Arc};

use common::*;
use selvage_restic::{
    BackupOptions, Directory, Error, FileSink, Id, Job, Parent, Repository, RestoreOptions,
    Selector, SnapshotFilter,
};

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_comes_back_through_us_and_through_stock_restic() {
    let folder = Folder::new();
    let (disk, back) = (folder.path("disk"), folder.path("back"));
    let size = 40 * MIB + 12_345;
    image(&disk, size, 1);
    let repository = repository(&folder.path("repo")).await;
    let snapshot = backup(&repository, &disk, named("vg/disk")).await;
    assert_eq!(snapshot.paths, ["/vg-disk"]);
    let summary = restore(&repository, &snapshot, size, &back).await;
    assert_eq!(summary.size, size);
    assert!(summary.written < size, "zeros were written");
    assert_same(&disk, &back);
    if has_restic() {
        let restic = Restic::on(folder.path("repo"));
        restic.check();
        assert_eq!(Id::of(&restic.dump(&snapshot)), hash(&disk));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_changed_is_read_and_stored() {
    let folder = Folder::new();
    let (disk, back) = (folder.path("disk"), folder.path("back"));
    let size = 32 * MIB;
    image(&disk, size, 2);
    let repository = repository(&folder.path("repo")).await;
    let first = backup(&repository, &disk, named("disk")).await;

    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    let noise = Numbers::new(3).bytes(64 << 10);
    file.write_all_at(&noise, 7 * MIB).unwrap();
    file.write_all_at(&[0; 64 << 10], 9 * MIB).unwrap();
    let block = 64 << 10;
    let changed = vec![9 * MIB..9 * MIB + block, 7 * MIB..7 * MIB + block];
    let mut options = named("disk");
    options.parent = Some(Parent { snapshot: first.id, changed: Some(changed) });
    let summary = repository.backup(source(&disk), options, &Job::new()).await.unwrap();
    assert_eq!(summary.read, 2 * block);
    assert!(summary.stored < 3 * block / 2, "{summary:?}");
    assert_eq!(summary.snapshot.parent, Some(first.id));
    restore(&repository, &summary.snapshot, size, &back).await;
    assert_same(&disk, &back);

    let mut options = named("disk");
    options.parent = Some(Parent { snapshot: summary.snapshot.id, changed: Some(Vec::new()) });
    let nothing = repository.backup(source(&disk), options, &Job::new()).await.unwrap();
    assert_eq!((nothing.read, nothing.uploaded), (0, 0));
    assert_eq!(nothing.snapshot.tree, summary.snapshot.tree);

    // Without a list all is read, and still nothing new is stored.
    let again = repository.backup(source(&disk), named("disk"), &Job::new()).await.unwrap();
    assert!(again.read > 10 * MIB);
    assert_eq!((again.new, again.uploaded), (0, 0));
    assert_eq!(again.snapshot.tree, summary.snapshot.tree);
    if has_restic() {
        let restic = Restic::on(folder.path("repo"));
        restic.check();
        assert_eq!(Id::of(&restic.dump(&summary.snapshot)), hash(&disk));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_several_segments_that_grew() {
    let folder = Folder::new();
    let (disk, back) = (folder.path("disk"), folder.path("back"));
    let size = 1025 * MIB;
    image(&disk, 10 * MIB, 4);
    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"over the edge", (1 << 30) - 5).unwrap();
    let repository = repository(&folder.path("repo")).await;
    let first = backup(&repository, &disk, named("disk")).await;

    let size = 2 * 1024 * MIB + 100;
    file.set_len(size).unwrap();
    file.write_all_at(b"tail", size - 4).unwrap();
    let mut options = named("disk");
    options.parent = Some(Parent { snapshot: first.id, changed: Some(Vec::new()) });
    let second = repository.backup(source(&disk), options, &Job::new()).await.unwrap();
    assert!(second.read < MIB, "{second:?}");
    let back_summary = restore(&repository, &second.snapshot, size, &back).await;
    assert!(back_summary.written < 11 * MIB);
    let same = std::process::Command::new("cmp").arg(&disk).arg(&back).status().unwrap();
    assert!(same.success());
    if has_restic() {
        let restic = Restic::on(folder.path("repo"));
        restic.check();
        let volume = |number| format!("/disk/{number:06}/data");
        let id = second.snapshot.id.to_string();
        let last = restic.run(&["dump", &id, &volume(2)]);
        assert_eq!(last.len(), 100);
        assert!(last.ends_with(b"tail"));
        let middle = restic.run(&["dump", &id, &volume(1)]);
        assert!(middle.starts_with(b"the edge\0"), "{:?}", &middle[..16]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_volume() {
    let folder = Folder::new();
    std::fs::write(folder.path("disk"), b"").unwrap();
    let repository = repository(&folder.path("repo")).await;
    let snapshot = backup(&repository, &folder.path("disk"), named("disk")).await;
    let summary = restore(&repository, &snapshot, 0, &folder.path("back")).await;
    assert_eq!(summary.size, 0);
    if has_restic() {
        Restic::on(folder.path("repo")).check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stock_restic_made_of_an_image_is_restored() {
    if !has_restic() {
        return;
    }
    for version in ["1", "2"] {
        let folder = Folder::new();
        let disk = folder.path("disk");
        let size = 30 * MIB + 77;
        image(&disk, size, 5);
        let restic = Restic::on(folder.path("repo"));
        restic.run(&["init", "--repository-version", version]);
        restic.run(&["backup", disk.to_str().unwrap()]);
        let mut child = restic
            .command(&["backup", "--stdin", "--stdin-filename", "piped"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let content = std::fs::read(&disk).unwrap();
        child.stdin.take().unwrap().write_all(&content).unwrap();
        assert!(child.wait().unwrap().success());

        let repository = repository(&folder.path("repo")).await;
        let snapshots = repository.snapshots().await.unwrap();
        assert_eq!(snapshots.len(), 2);
        for (number, snapshot) in snapshots.iter().enumerate() {
            let back = folder.path(&format!("back{number}"));
            restore(&repository, snapshot, size, &back).await;
            assert_same(&disk, &back);
        }
        // And we can add to it.
        let ours = backup(&repository, &disk, named("disk")).await;
        restic.check();
        assert_eq!(Id::of(&restic.dump(&ours)), hash(&disk));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_content_of_a_target_does_not_shine_through() {
    let folder = Folder::new();
    let (disk, back) = (folder.path("disk"), folder.path("back"));
    let size = 12 * MIB + 100;
    image(&disk, size, 6);
    let repository = repository(&folder.path("repo")).await;
    let snapshot = backup(&repository, &disk, named("disk")).await;
    std::fs::write(&back, Numbers::new(9).bytes(size as usize + 50)).unwrap();
    let before = std::fs::read(&back).unwrap();
    let sink = Arc::new(FileSink::open(&back, false).unwrap());
    let options = RestoreOptions::default();
    repository.restore(&snapshot, sink, &options, &Job::new()).await.unwrap();
    let after = std::fs::read(&back).unwrap();
    assert_eq!(Id::of(&after[..size as usize]), hash(&disk));
    assert_eq!(after[size as usize..], before[size as usize..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_found_by_id_name_and_age() {
    let folder = Folder::new();
    image(&folder.path("disk"), MIB, 7);
    let repository = repository(&folder.path("repo")).await;
    let mut made = Vec::new();
    for name in ["monday", "tuesday", "monday"] {
        let mut options = named("disk");
        options.name = name.to_owned();
        made.push(backup(&repository, &folder.path("disk"), options).await);
    }
    let select =
        async |selector: Selector| repository.select(&selector, SnapshotFilter::default()).await;
    assert_eq!(select(Selector::Id("latest".into())).await.unwrap(), made[2]);
    assert_eq!(select(Selector::Id(made[1].id.short())).await.unwrap(), made[1]);
    assert_eq!(select(Selector::Name("monday".into())).await.unwrap(), made[2]);
    assert_eq!(select(Selector::Name("tuesday".into())).await.unwrap(), made[1]);
    let missing = select(Selector::Name("sunday".into())).await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no snapshot 'sunday' in the repository");
    assert_eq!(missing.code(), selvage_api::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_says_why() {
    let folder = Folder::new();
    let open = async |name: &str, password: &str| {
        let backend = Arc::new(Directory::new(folder.path(name)));
        let password = selvage_restic::Secret::new(password);
        Repository::open(backend, &password, options()).await.unwrap_err()
    };
    let nothing = open("nothing", PASSWORD).await;
    assert!(nothing.to_string().starts_with("there is no repository at "), "{nothing}");
    assert_eq!(nothing.code(), selvage_api::Code::NotFound);

    repository(&folder.path("repo")).await;
    let wrong = open("repo", "canary").await;
    assert!(wrong.to_string().starts_with("the encryption key does not open"), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("canary"));
    assert_eq!(wrong.code(), selvage_api::Code::PermissionDenied);

    std::fs::create_dir_all(folder.path("other")).unwrap();
    std::fs::write(folder.path("other/config"), b"[settings]").unwrap();
    let other = open("other", PASSWORD).await;
    assert!(other.to_string().contains("is not a restic repository"), "{other}");
    assert_eq!(other.code(), selvage_api::Code::FailedPrecondition);

    let backend = Arc::new(Directory::new(folder.path("repo")));
    let again = Repository::init(backend, &password(), options()).await.unwrap_err();
    assert_eq!(again.code(), selvage_api::Code::AlreadyExists);
}

/// The file in a snapshot says how to get a volume back with nothing but stock
/// restic, and it is so.
#[tokio::test(flavor = "multi_thread")]
async fn the_way_out_is_one_command_that_the_snapshot_names() {
    if !has_restic() {
        return;
    }
    let folder = Folder::new();
    let (disk, back, repo) = (folder.path("disk"), folder.path("back"), folder.path("repo"));
    image(&disk, 10 * MIB, 4);
    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    let size = 1024 * MIB + 12_345;
    file.set_len(size).unwrap();
    file.write_all_at(b"over the edge", (1 << 30) - 5).unwrap();
    file.write_all_at(b"tail", size - 4).unwrap();
    let repository = repository(&repo).await;
    let snapshot = backup(&repository, &disk, named("vg/disk")).await;
    let restic = Restic::on(&repo);
    let readme = restic.run(&["dump", &snapshot.id.to_string(), "/README-selvage.txt"]);
    let readme = String::from_utf8(readme).unwrap();
    let command = readme.lines().find_map(|line| line.strip_prefix("    ")).unwrap();
    let command = command
        .replace("REPOSITORY", repo.to_str().unwrap())
        .replace("SNAPSHOT", &snapshot.id.to_string())
        .replace("IMAGE", back.to_str().unwrap());
    let done = std::process::Command::new("sh")
        .args(["-ec", &command])
        .env("RESTIC_PASSWORD", PASSWORD)
        .env("RESTIC_CACHE_DIR", folder.path("cache"))
        .status()
        .unwrap();
    assert!(done.success(), "{command}");
    let same = std::process::Command::new("cmp").arg(&disk).arg(&back).status().unwrap();
    assert!(same.success(), "{command}");
    restic.check();
    // A second backup stores nothing for it.
    let again = repository.backup(source(&disk), named("vg/disk"), &Job::new()).await.unwrap();
    assert_eq!((again.new, again.uploaded), (0, 0));
}

fn of(volume: &str) -> SnapshotFilter<'_> {
    SnapshotFilter { volume: Some(volume), ..SnapshotFilter::default() }
}

/// A name stands for a backup of one volume.
#[tokio::test(flavor = "multi_thread")]
async fn what_fits_several_volumes_is_refused() {
    let folder = Folder::new();
    let disk = folder.path("disk");
    image(&disk, MIB, 1);
    let repository = repository(&folder.path("repo")).await;
    let mut made = Vec::new();
    for volume in ["one", "two"] {
        let options = BackupOptions { name: "monday".into(), ..named(volume) };
        made.push(backup(&repository, &disk, options).await);
    }
    for selector in [Selector::Name("monday".into()), Selector::Id("latest".into())] {
        let refused = repository.select(&selector, SnapshotFilter::default()).await.unwrap_err();
        assert!(matches!(refused, Error::AmbiguousVolume(_)), "{refused}");
        let message = refused.to_string();
        assert!(made.iter().all(|snapshot| message.contains(&snapshot.id.short())), "{message}");
        let one = repository.select(&selector, of("one")).await.unwrap();
        assert_eq!(one.id, made[0].id);
        assert!(repository.select(&selector, of("three")).await.is_err());
    }
    let id = Selector::Id(made[0].id.short());
    assert_eq!(repository.select(&id, SnapshotFilter::default()).await.unwrap().id, made[0].id);
    assert!(repository.select(&id, of("two")).await.is_err());
}
