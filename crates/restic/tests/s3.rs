//! On real object stores, in fair weather and foul.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/s3.rs"]
mod store;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::*;
use selvage_api::Code;
use selvage_kit::clock::ManualClock;
use selvage_restic::{
    Error, Id, Job, Parent, PruneOptions, Repository, S3, Secret, StoreOptions, VerifyOptions,
};
use store::{ACCESS_KEY, BUCKET, Fault, Proxy, SECRET_KEY, Server};

const MIB: u64 = 1 << 20;

async fn open(options: StoreOptions) -> Result<Repository, Error> {
    let backend = Arc::new(S3::new(options)?);
    Repository::open_or_init(backend, &password(), common::options()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_on_each_store() {
    for server in Server::all() {
        let folder = Folder::new();
        let disk = folder.path("disk");
        let size = 20 * MIB + 999;
        image(&disk, size, 60);
        let prefix = "deep/ly nested+";
        let repository = open(server.options(prefix)).await.unwrap();
        let first = backup(&repository, &disk, named("disk")).await;
        let mut options = named("disk");
        options.parent =
            Some(Parent { snapshot: first.id, changed: Some(vec![0..4096, 8192..8193]) });
        let second = backup(&repository, &disk, options).await;
        assert_eq!(second.tree, first.tree);

        // A second handle has everything from the store.
        let repository = open(server.options(prefix)).await.unwrap();
        let back = folder.path("back");
        restore(&repository, &second, size, &back).await;
        assert_same(&disk, &back);
        repository.remove_snapshots(&[first.id], &Job::new()).await.unwrap();
        let now = PruneOptions { grace: Duration::ZERO, ..PruneOptions::default() };
        repository.prune(&now, &Job::new()).await.unwrap();
        let all = VerifyOptions { read_percent: 100 };
        assert_eq!(repository.verify(all, &Job::new()).await.unwrap().damages, []);
        if has_restic() {
            let restic = server.restic(prefix);
            restic.check();
            assert_eq!(Id::of(&restic.dump(&second)), hash(&disk), "{}", server.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_fit_on_a_page() {
    for server in Server::all() {
        let repository = open(server.options("many")).await.unwrap();
        let made = 1010;
        for number in 0..made as u32 {
            let content = number.to_le_bytes().to_vec();
            let id = Id::of(&content);
            let file =
                selvage_restic::backend::File::Named(selvage_restic::backend::Kind::Snapshot, id);
            repository.backend().write(file, content.into()).await.unwrap();
        }
        let kind = selvage_restic::backend::Kind::Snapshot;
        let listed = repository.backend().list(kind).await.unwrap();
        assert_eq!(listed.len(), made, "{}", server.name);
        assert!(listed.iter().all(|file| file.size == 4));
    }
}

/// One request in four goes wrong, in every way there is.
#[tokio::test(flavor = "multi_thread")]
async fn foul_weather_does_no_harm() {
    let Some(server) = Server::rclone() else { return };
    let folder = Folder::new();
    let disk = folder.path("disk");
    let size = 16 * MIB;
    image(&disk, size, 70);
    let proxy =
        Proxy::start(server.address, |number, _| match Numbers::new(number + 1).below(32) {
            0 => Fault::Say(503, "SlowDown"),
            1 => Fault::Say(500, "InternalError"),
            2 => Fault::Say(429, "TooManyRequests"),
            3 => Fault::Reset,
            4 => Fault::Cut,
            5 => Fault::Change,
            6 => Fault::ChangeUpload,
            7 => Fault::Hang,
            _ => Fault::None,
        })
        .await;
    let mut options = store::options(&proxy.endpoint(), "foul");
    options.timeout = Duration::from_secs(2);
    let mut small = common::options();
    small.pack_size = 1 << 20;
    let backend = Arc::new(S3::new(options).unwrap());
    let repository = Repository::open_or_init(backend, &password(), small).await.unwrap();
    let snapshot = backup(&repository, &disk, named("disk")).await;
    let back = folder.path("back");
    restore(&repository, &snapshot, size, &back).await;
    assert_same(&disk, &back);
    assert!(proxy.seen.lock().len() > 40, "hardly anything was asked");
    if has_restic() {
        server.restic("foul").check();
    }
}

/// The store is away for as long as it takes to ask in vain forty times.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_waited_for_and_reported() {
    let Some(server) = Server::rclone() else { return };
    let folder = Folder::new();
    let disk = folder.path("disk");
    image(&disk, 24 * MIB, 75);
    let away = Arc::new(AtomicBool::new(false));
    let state = Arc::clone(&away);
    let proxy = Proxy::start(server.address, move |_, _| {
        if state.load(Ordering::Relaxed) { Fault::Reset } else { Fault::None }
    })
    .await;
    let options = StoreOptions {
        attempts: 2,
        retry_for: Duration::from_secs(600),
        ..store::options(&proxy.endpoint(), "away")
    };
    let outage = options.outage.clone();
    let mut small = common::options();
    small.pack_size = 1 << 20;
    let backend = Arc::new(S3::new(options).unwrap());
    let repository = Repository::open_or_init(backend, &password(), small).await.unwrap();
    let (job, seen, until) = (Job::new(), Arc::clone(&proxy.seen), outage.clone());
    let watched = job.clone();
    let watcher = tokio::spawn(async move {
        while watched.progress().uploaded < 3 << 20 {
            tokio::task::yield_now().await;
        }
        away.store(true, Ordering::Relaxed);
        let before = seen.lock().len();
        while seen.lock().len() < before + 40 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let reason = until.reason();
        away.store(false, Ordering::Relaxed);
        reason
    });
    repository.backup(source(&disk), named("disk"), &job).await.unwrap();
    let reason = watcher.await.unwrap().expect("it was told");
    assert!(reason.contains(" does not answer: "), "{reason}");
    assert!(reason.contains("; trying again until "), "{reason}");
    assert_eq!(outage.reason(), None, "and that it is over");
    if has_restic() {
        server.restic("away").check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_in_the_middle_is_named_and_the_next_run_goes_on() {
    let Some(server) = Server::moto() else { return };
    let folder = Folder::new();
    let disk = folder.path("disk");
    image(&disk, 24 * MIB, 80);
    let ended = Arc::new(AtomicBool::new(false));
    let state = Arc::clone(&ended);
    let proxy = Proxy::start(server.address, move |_, seen| {
        let token = seen.headers.get("x-amz-security-token").map(|token| token.as_bytes().to_vec());
        let old = token.as_deref() == Some(b"first");
        if old && state.load(Ordering::Relaxed) {
            return Fault::Say(400, "ExpiredToken");
        }
        Fault::None
    })
    .await;
    let options = |token: &str| StoreOptions {
        session_token: Some(Secret::new(token)),
        ..store::options(&proxy.endpoint(), "token")
    };
    let mut small = common::options();
    small.pack_size = 1 << 20;
    small.connections = 1;
    let open = async |token: &str| {
        let backend = Arc::new(S3::new(options(token)).unwrap());
        Repository::open_or_init(backend, &password(), small.clone()).await.unwrap()
    };
    let repository = open("first").await;
    let job = Job::new();
    let watched = job.clone();
    let watcher = tokio::spawn(async move {
        while watched.progress().uploaded < 3 << 20 {
            tokio::task::yield_now().await;
        }
        ended.store(true, Ordering::Relaxed);
    });
    let failed = repository.backup(source(&disk), named("disk"), &job).await.unwrap_err();
    watcher.await.unwrap();
    assert_eq!(failed.code(), Code::Unauthenticated, "{failed}");
    assert!(failed.to_string().contains("ExpiredToken"), "{failed}");

    let uploaded = job.progress().uploaded;
    let repository = open("second").await;
    let summary = repository.backup(source(&disk), named("disk"), &Job::new()).await.unwrap();
    assert!(summary.adopted >= 3, "{summary:?}");
    let whole = repository.backup(source(&disk), named("disk"), &Job::new()).await.unwrap();
    assert_eq!(whole.uploaded, 0);
    assert!(uploaded >= 3 << 20);
    if has_restic() {
        server.restic("token").check();
    }
}

#[allow(clippy::disallowed_methods, reason = "both ends have a clock")]
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_corrected_once() {
    let Some(server) = Server::moto() else { return };
    let now = jiff::Timestamp::now();
    let proxy = Proxy::start(server.address, move |_, seen| {
        let stamp = seen.headers["x-amz-date"].to_str().unwrap();
        let day = now.strftime("%Y%m%d").to_string();
        let fine = stamp.starts_with(&day);
        if fine { Fault::None } else { Fault::Say(403, "RequestTimeTooSkewed") }
    })
    .await;
    let wrong = now - jiff::SignedDuration::from_hours(24 * 40);
    let mut options = store::options(&proxy.endpoint(), "clock");
    options.clock = Arc::new(ManualClock::new(wrong));
    open(options).await.unwrap();
    let wrong_dates = proxy
        .seen
        .lock()
        .iter()
        .filter(|seen| {
            seen.headers["x-amz-date"].to_str().unwrap() < &*now.strftime("%Y%m%d").to_string()
        })
        .count();
    assert_eq!(wrong_dates, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_buckets_and_addresses_are_distinguished() {
    if let Some(server) = Server::rclone() {
        let mut options = server.options("x");
        options.secret_key = Secret::new("another-canary");
        let error = open(options).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");

        let mut options = server.options("x");
        options.location.bucket = "nowhere".to_owned();
        let error = open(options).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
    }
    let quick = |endpoint: &str| StoreOptions {
        attempts: 2,
        timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..store::options(endpoint, "x")
    };
    // Takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = open(quick(&format!("http://{}", silent.local_addr().unwrap()))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.to_string().contains("it took too long"), "{error}");
    let address = silent.local_addr().unwrap();
    drop(silent);
    let error = open(quick(&format!("http://{address}"))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    for endpoint in ["127.0.0.1:9000", "ftp://x", "http://", "http://u:p@host", "nonsense"] {
        let error = S3::new(quick(endpoint)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{endpoint}: {error}");
        assert!(error.to_string().starts_with("endpoint: "), "{error}");
    }
    let mut options = quick("http://host");
    options.http_proxy = Some("::".to_owned());
    let error = S3::new(options).unwrap_err();
    assert!(error.to_string().starts_with("http_proxy: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_through_a_proxy_is_signed_for_the_store() {
    let Some(server) = Server::rclone() else { return };
    let proxy = Proxy::start(server.address, |_, _| Fault::None).await;
    let mut options = store::options("http://store.example", "proxied");
    options.http_proxy = Some(proxy.endpoint());
    open(options).await.unwrap();
    let seen = proxy.seen.lock().clone();
    assert!(seen.iter().all(|seen| seen.headers["host"] == "store.example"), "{seen:?}");
    let config = format!("/{BUCKET}/proxied/config");
    let put = seen.iter().find(|seen| seen.method == "PUT" && seen.path == config).unwrap();
    assert_eq!(put.headers["if-none-match"], "*");
    let credential = put.headers["authorization"].to_str().unwrap();
    assert!(credential.contains(ACCESS_KEY) && !credential.contains(SECRET_KEY));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_conditions_is_written_to_without_them() {
    let Some(server) = Server::moto() else { return };
    let proxy = Proxy::start(server.address, |_, seen| {
        let asked = seen.headers.contains_key("if-none-match");
        if asked { Fault::Say(501, "NotImplemented") } else { Fault::None }
    })
    .await;
    let repository = open(store::options(&proxy.endpoint(), "plain")).await.unwrap();
    repository.snapshots().await.unwrap();
    let asked =
        proxy.seen.lock().iter().filter(|seen| seen.headers.contains_key("if-none-match")).count();
    assert_eq!(asked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_make_a_repository_at_once_share_one() {
    for server in Server::all() {
        let one = open(server.options("race"));
        let other = open(server.options("race"));
        let (one, other) = tokio::join!(one, other);
        let (one, other) = (one.unwrap(), other.unwrap());
        if server.name == "moto" {
            assert_eq!(one.config(), other.config());
        }
        let again = open(server.options("race")).await.unwrap();
        assert!([one.config(), other.config()].contains(&again.config()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_can_be_cancelled_while_the_store_hangs() {
    let Some(server) = Server::moto() else { return };
    let folder = Folder::new();
    image(&folder.path("disk"), 16 * MIB, 90);
    let proxy = Proxy::start(server.address, |_, seen| {
        let pack = seen.method == "PUT" && seen.path.contains("/data/");
        if pack { Fault::Hang } else { Fault::None }
    })
    .await;
    let repository = open(store::options(&proxy.endpoint(), "hang")).await.unwrap();
    let job = Job::new();
    let watched = job.clone();
    let seen = Arc::clone(&proxy.seen);
    tokio::spawn(async move {
        while !seen.lock().iter().any(|seen| seen.path.contains("/data/")) {
            tokio::task::yield_now().await;
        }
        watched.cancel();
    });
    let ended = repository.backup(source(&folder.path("disk")), named("disk"), &job).await;
    assert_eq!(ended.unwrap_err().code(), Code::Cancelled);
    let kind = selvage_restic::backend::Kind::Lock;
    assert_eq!(repository.backend().list(kind).await.unwrap(), []);
}
