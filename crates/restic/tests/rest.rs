//! On a server that speaks restic's REST protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/s3.rs"]
mod store;

use std::{sync::Arc, time::Duration};

use common::*;
use selvage_api::Code;
use selvage_restic::{
    Error, Forget, Id, Job, Keep, PruneOptions, Repository, Rest, Secret, StoreOptions,
    VerifyOptions,
};
use store::{Fault, Proxy, SECRET_KEY, Server};

const MIB: u64 = 1 << 20;

async fn open(options: StoreOptions) -> Result<Repository, Error> {
    let backend = Arc::new(Rest::new(options)?);
    Repository::open_or_init(backend, &password(), common::options()).await
}

fn at_once() -> PruneOptions {
    PruneOptions { grace: Duration::ZERO, ..PruneOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_on_a_rest_server() {
    let Some(server) = Server::rclone_rest(&[]) else { return };
    let folder = Folder::new();
    let disk = folder.path("disk");
    let size = 20 * MIB + 999;
    image(&disk, size, 70);
    let prefix = "deep/nested";
    let repository = open(server.options(prefix)).await.unwrap();
    let first = backup(&repository, &disk, named("disk")).await;
    let second = backup(&repository, &disk, named("disk")).await;
    assert_eq!(second.tree, first.tree);

    // A second handle has everything from the server.
    let repository = open(server.options(prefix)).await.unwrap();
    let back = folder.path("back");
    restore(&repository, &second, size, &back).await;
    assert_same(&disk, &back);
    repository.remove_snapshots(&[first.id], &Job::new()).await.unwrap();
    repository.prune(&at_once(), &Job::new()).await.unwrap();
    let all = VerifyOptions { read_percent: 100 };
    assert_eq!(repository.verify(all, &Job::new()).await.unwrap().damages, []);
    if has_restic() {
        let restic = server.restic_rest(prefix);
        restic.check();
        assert_eq!(Id::of(&restic.dump(&second)), hash(&disk));
        // What it adds is read by us.
        let file = folder.path("file");
        std::fs::write(&file, "by restic").unwrap();
        restic.run(&["backup", file.to_str().unwrap()]);
        assert_eq!(repository.snapshots().await.unwrap().len(), 2);
    }
}

/// Whoever may only add makes backups, and is told so before a prune copies anything.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_only_grow_is_not_pruned() {
    let Some(server) = Server::rclone_rest(&["--append-only"]) else { return };
    let folder = Folder::new();
    let disk = folder.path("disk");
    let repository = open(server.options("grows")).await.unwrap();
    let mut made = Vec::new();
    for seed in 0..3 {
        image(&disk, 6 * MIB, seed);
        made.push(backup(&repository, &disk, named("disk")).await.id);
    }
    let keep = Keep { last: 1, ..Keep::default() };
    let forget = Forget { keep, ..Forget::default() };
    let files = |path: &std::path::Path| {
        let found = std::process::Command::new("find").arg(path).args(["-type", "f"]).output();
        String::from_utf8(found.unwrap().stdout).unwrap().lines().count()
    };
    let before = files(server.folder());
    let pruned = repository.forget_and_prune(Some(&forget), &at_once(), &Job::new()).await;
    let error = pruned.unwrap_err();
    assert!(matches!(error, Error::AppendOnly(_)), "{error}");
    assert_eq!(error.code(), Code::FailedPrecondition);
    let deleted = repository.remove_snapshots(&made[..1], &Job::new()).await;
    assert!(matches!(deleted, Err(Error::AppendOnly(_))), "{deleted:?}");
    assert_eq!(files(server.folder()), before, "nothing was copied, and no lock is left");
    let dry = PruneOptions { dry_run: true, ..at_once() };
    let (forgotten, _) =
        repository.forget_and_prune(Some(&forget), &dry, &Job::new()).await.unwrap();
    assert_eq!(forgotten.removed.len(), 2);
    assert_eq!(repository.snapshots().await.unwrap().len(), 3);
    if has_restic() {
        server.restic_rest("grows").check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_users_and_addresses_are_distinguished() {
    let Some(server) = Server::rclone_rest(&[]) else { return };
    let wrong = StoreOptions { secret_key: Secret::new("wrong"), ..server.options("x") };
    let error = open(wrong).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 401, .. }), "{error}");
    assert_eq!(error.code(), Code::Unauthenticated);
    let message = error.to_string();
    assert!(
        message.contains(&server.address.to_string()) && message.contains("backups/x"),
        "{message}"
    );
    assert!(!message.contains(SECRET_KEY) && !message.contains("wrong"), "{message}");

    let backend = Arc::new(Rest::new(server.options("nothing")).unwrap());
    let missing = Repository::open(backend, &password(), options()).await;
    assert!(matches!(missing, Err(Error::NoRepository(_))), "{missing:?}");
    open(server.options("x")).await.unwrap();
    let backend = Arc::new(Rest::new(server.options("x")).unwrap());
    let closed = Repository::open(backend, &Secret::new("other"), options()).await;
    assert!(matches!(closed, Err(Error::WrongKey(_))), "{closed:?}");
}

/// Answers that are lost, cut off or changed, and a server that is busy.
#[tokio::test(flavor = "multi_thread")]
async fn foul_weather_does_no_harm() {
    let Some(server) = Server::rclone_rest(&[]) else { return };
    let proxy = Proxy::start(server.address, |number, seen| match number % 7 {
        1 => Fault::Say(503, "busy"),
        3 => Fault::Reset,
        5 if seen.method == "GET" => Fault::Cut,
        _ => Fault::None,
    });
    let proxy = proxy.await;
    let folder = Folder::new();
    let disk = folder.path("disk");
    let size = 12 * MIB;
    image(&disk, size, 71);
    let repository = open(store::options(&proxy.endpoint(), "foul")).await.unwrap();
    let made = backup(&repository, &disk, named("disk")).await;
    let back = folder.path("back");
    restore(&repository, &made, size, &back).await;
    assert_same(&disk, &back);
    if has_restic() {
        server.restic_rest("foul").check();
    }
}
