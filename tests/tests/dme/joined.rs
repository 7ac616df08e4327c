//! An engine in a process of its own that joined the controller.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use selvage_api::distributed_match_engine::{AppInstListRequest, Loc};
use selvage_tests::{
    Client, Selvage,
    process::{Cli, wait_for},
    real::free_port,
};

use crate::site::{APP, Device, Site, question};

const OFTEN: [&str; 4] = ["--set", "node.report=100ms", "--set", "dme.stats_interval=50ms"];

/// A place for an engine, with a token in a file.
fn place(site: &Site, folder: &Path, name: &str) -> (PathBuf, String) {
    let line = ["join-token", "create", name, "-o", "json"];
    let token = site.cli.json(&line)["token"].as_str().unwrap().to_owned();
    let directory = folder.join(name.replace('/', "-"));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("token");
    std::fs::write(&file, token).unwrap();
    (directory, file.display().to_string())
}

fn join(site: &Site, folder: &Path, name: &str, flags: &[&str]) -> Selvage {
    let (directory, file) = place(site, folder, &format!("dme/{name}"));
    // Nobody is at the first.
    let controllers = format!("127.0.0.1:1,{}", site.selvage.address());
    let join = ["--controller", &controllers, "--join-file", &file];
    Selvage::start("dme", &directory, &[&join[..], &OFTEN, flags].concat())
}

/// A line of the engine's metrics, as whoever may see them sees them.
async fn metric(engine: &Selvage, token: &str, name: &str) -> Option<f64> {
    let http = selvage_tests::client::http(engine);
    let url = format!("{}/metrics", engine.endpoint());
    let text = http.get(url).bearer_auth(token).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

async fn readiness(engine: &Selvage) -> u16 {
    let http = selvage_tests::client::http(engine);
    let url = format!("{}/readiness", engine.endpoint());
    http.get(url).send().await.unwrap().status().as_u16()
}

/// The number of the key that a cookie is signed with.
fn key_of(cookie: &str) -> u64 {
    let claims = URL_SAFE_NO_PAD.decode(cookie.split('.').nth(1).unwrap()).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    claims["key"]["kid"].as_u64().unwrap()
}

fn list(cookie: &str) -> AppInstListRequest {
    AppInstListRequest {
        session_cookie: cookie.into(),
        gps_location: Some(Loc { latitude: 36.0, longitude: -96.0, ..Loc::default() }),
        ..AppInstListRequest::default()
    }
}

/// Engines of one region take each other's cookies, also across new keys; one
/// that is started again knows what it knew; one whose controller is gone goes
/// on, and says for how long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_engine() {
    let folder = tempfile::tempdir().unwrap();
    // A new key whenever anybody asks for keys a second later.
    let rotating = ["--set", "dme.key_rotation=1s", "--set", "dme.key_refresh=1s"];
    let mut site = Site::open(&rotating).await;
    site.create_app(&APP);
    site.create("dmuus", "cloud-1");
    site.create("dmuus", "cloud-2");
    let mut beside = Device::of(&site.selvage).await;
    let cookie = beside.cookie(&APP).await;
    let engine = join(&site, folder.path(), "west", &[]);
    let mut device = Device::of(&engine).await;
    let own = device.cookie(&APP).await;
    let listed = device.grpc.get_app_inst_list(list(&own)).await.unwrap().into_inner();
    assert_eq!(listed.cloudlets.len(), 2, "{listed:?}");
    for cookie in [&cookie, &own] {
        device.is_sent(question(cookie, 36.0, -96.0), "cloud-2.dmuus.selvage.internal").await;
        beside.is_sent(question(cookie, 36.0, -96.0), "cloud-2.dmuus.selvage.internal").await;
    }
    // The other one has newer keys by now, and this one finds them.
    let mut later = beside.cookie(&APP).await;
    while key_of(&later) <= key_of(&own) + 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        later = beside.cookie(&APP).await;
    }
    device.is_sent(question(&later, 36.0, -96.0), "cloud-2.dmuus.selvage.internal").await;

    wait_for("the engine among the nodes", || {
        site.cli.ok(&["nodes", "show"]).contains("west").then_some(())
    });
    wait_for("its samples", || {
        let call = ["call", "selvage.metrics.MetricsService/ListSamples", "{\"name\":\"dme-api\"}"];
        let text = site.cli.ok(&[&call[..], &["-o", "json"]].concat());
        let found = text.lines().any(|line| {
            line.contains("\"west\"") && line.contains("FindCloudlet") && line.contains("reqs")
        });
        found.then_some(())
    });

    // The engine is killed and comes back.
    drop(engine);
    let directory = folder.path().join("dme-west");
    let engine = Selvage::start("dme", &directory, &OFTEN);
    let mut device = Device::of(&engine).await;
    let again = device.grpc.get_app_inst_list(list(&own)).await.unwrap().into_inner();
    assert_eq!(again, listed);

    // The controller is killed and does not.
    let admin = Client::admin(&site.selvage).await.token.unwrap();
    let staleness = "selvage_dme_staleness_seconds";
    assert_eq!(metric(&engine, &admin, staleness).await, Some(0.0));
    site.selvage.kill();
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while metric(&engine, &admin, staleness).await.is_none_or(|age| age <= 0.0) {
        assert!(std::time::Instant::now() < deadline, "it does not know that it is alone");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(readiness(&engine).await, 200);
    let alone = device.grpc.get_app_inst_list(list(&own)).await.unwrap().into_inner();
    assert_eq!(alone, listed);
    let fresh = device.cookie(&APP).await;
    device.is_sent(question(&fresh, 36.0, -96.0), "cloud-2.dmuus.selvage.internal").await;
}

/// An engine knows after a power cut what it knew, with nobody there to tell it,
/// and its cookies hold. When the controller is back it knows better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_starts_while_its_controller_is_away() {
    const FIRST: &str = "cloud-1.dmuus.selvage.internal";
    const SECOND: &str = "cloud-2.dmuus.selvage.internal";
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("controller");
    std::fs::create_dir(&home).unwrap();
    let port = free_port().to_string();
    let up = || Selvage::up_in(&home, &["--port", &port]);
    let mut site = Site::of(up()).await;
    site.create_app(&APP);
    site.create("dmuus", "cloud-1");
    site.create("dmuus", "cloud-2");
    let admin = Client::admin(&site.selvage).await.token.unwrap();
    let mut engine = join(&site, folder.path(), "west", &[]);
    let mut device = Device::of(&engine).await;
    let cookie = device.cookie(&APP).await;
    device.is_sent(question(&cookie, 36.0, -96.0), SECOND).await;
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while metric(&engine, &admin, "selvage_dme_mirror_pending").await != Some(0.0) {
        assert!(std::time::Instant::now() < deadline, "it keeps nothing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    site.selvage.kill();
    engine.kill();

    let directory = folder.path().join("dme-west");
    let mut engine = Selvage::start("dme", &directory, &OFTEN);
    let mut device = Device::of(&engine).await;
    device.is_sent(question(&cookie, 36.0, -96.0), SECOND).await;
    let fresh = device.cookie(&APP).await;
    device.is_sent(question(&fresh, 31.0, -91.0), FIRST).await;
    assert_eq!(readiness(&engine).await, 200);
    assert!(engine.log().contains("the match engine answers from its mirror"), "{}", engine.log());
    engine.kill();

    // An instance goes, and the engine hears of it only later.
    site.selvage = up();
    site.is_ready("dmuus", "cloud-2");
    site.delete("dmuus", "cloud-2");
    site.selvage.kill();
    let engine = Selvage::start("dme", &directory, &OFTEN);
    let mut device = Device::of(&engine).await;
    device.is_sent(question(&fresh, 36.0, -96.0), SECOND).await;
    site.selvage = up();
    device.is_sent(question(&fresh, 36.0, -96.0), FIRST).await;
}

/// Knowledge that is too old to go by is said to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_cut_off_for_too_long_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = Site::open(&[]).await;
    let engine = join(&site, folder.path(), "west", &["--set", "dme.max_staleness=1s"]);
    assert_eq!(readiness(&engine).await, 200);
    site.selvage.kill();
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while readiness(&engine).await != 503 {
        assert!(std::time::Instant::now() < deadline, "it is ready for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Keys are for engines; a token for something else makes no engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machines_get_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(&[]).await;
    let path = "/selvage.matching.MatchingService/ListCookieKeys";
    let nobody = Client::anonymous(&site.selvage).await;
    assert_eq!(nobody.code(path, &[]).await, tonic::Code::Unauthenticated);
    let cloudlet = Cli::new();
    let (certificate, key) = joined_as(&site, &cloudlet, "cloudlet/dmuus/cloud-1");
    let machine = Client::machine(&site.selvage, &certificate, &key).await;
    assert_eq!(machine.code(path, &[]).await, tonic::Code::PermissionDenied);
    let (certificate, key) = joined_as(&site, &cloudlet, "dme/west");
    let machine = Client::machine(&site.selvage, &certificate, &key).await;
    let (replies, code, _) = machine.raw(path, &[]).await;
    assert_eq!((code, replies.len()), (tonic::Code::Ok, 1));
    assert!(replies[0].len() > 64);

    let (directory, file) = place(&site, folder.path(), "node/west");
    let output = selvage_tests::process::command()
        .args(["dme", "--port", "0", "--data"])
        .arg(directory.join("data"))
        .args(["--controller", site.selvage.address(), "--join-file", &file])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let answered = String::from_utf8(output.stderr).unwrap();
    assert!(
        answered.contains("it was not used. `selvage join-token create dme/NAME`"),
        "{answered}"
    );
}

/// Certificate and key of a machine.
fn joined_as(site: &Site, cli: &Cli, machine: &str) -> (String, String) {
    let line = ["join-token", "create", machine, "-o", "json"];
    let token = site.cli.json(&line)["token"].as_str().unwrap().to_owned();
    let out = cli.home().join(machine.replace('/', "-"));
    let ca = site.selvage.ready()["ca"].as_str().unwrap();
    let line = [
        "join",
        site.selvage.endpoint(),
        "--ca",
        ca,
        "--token-file",
        "-",
        "--out",
        out.to_str().unwrap(),
    ];
    let printed = cli.run_with(&line, &[], Some(&token));
    assert_eq!(printed.code, 0, "{printed:?}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    (read("machine.crt"), read("machine.key"))
}
