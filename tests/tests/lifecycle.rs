//! Starting, stopping, being killed, starting again: nothing that was
//! acknowledged is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::sys::signal::Signal;
use selvage_api::selvage::identity::{
    AddUserRequest, Grant, ListUsersRequest, User, identity_service_client::IdentityServiceClient,
};
use selvage_testkit::etcd::Cluster;
use selvage_tests::{
    Client, Selvage,
    process::{Cli, command, wait_for},
};
use tonic::Code;

const WHOAMI: &str = "/selvage.identity.IdentityService/WhoAmI";

#[tokio::test]
async fn a_second_start_finds_all_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Selvage::up_in(directory.path(), &[]);
    assert!(first.log().contains("First start"));
    let password = first.password();
    let ca = first.ca();
    let admin = Client::admin(&first).await;
    first.signal(Signal::SIGTERM);
    assert!(first.wait().success());

    let second = Selvage::up_in(directory.path(), &[]);
    assert_eq!(second.ca(), ca, "the same CA");
    assert_eq!(second.password(), password);
    assert_eq!(second.log().matches("First start").count(), 1);
    let still = Client { token: admin.token, ..Client::anonymous(&second).await };
    assert_eq!(still.code(WHOAMI, &[]).await, Code::Ok, "the session outlives the restart");
}

#[test]
fn ctrl_c_ends_it_even_with_a_client_that_hangs_on() {
    let mut selvage = Selvage::up(&["--set", "listen.drain=1s"]);
    let _silent = std::net::TcpStream::connect(selvage.address()).unwrap();
    selvage.signal(Signal::SIGINT);
    assert!(selvage.wait().success());
    assert!(std::net::TcpStream::connect(selvage.address()).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_no_user_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    for round in 0..8 {
        let mut selvage = Selvage::up_in(directory.path(), &[]);
        let admin = Client::admin(&selvage).await;
        let known = users(&admin).await;
        let missing: Vec<_> =
            acknowledged.lock().unwrap().difference(&known).cloned().collect::<Vec<String>>();
        assert!(missing.is_empty(), "round {round} lost {missing:?}");
        let writers: Vec<_> = (0..4)
            .map(|writer| tokio::spawn(write(admin.clone(), round, writer, acknowledged.clone())))
            .collect();
        let before = acknowledged.lock().unwrap().len();
        wait_for("some users", || (acknowledged.lock().unwrap().len() > before + 2).then_some(()));
        selvage.kill();
        for writer in writers {
            writer.await.unwrap();
        }
    }
    assert!(acknowledged.lock().unwrap().len() >= 16);
}

/// Adds users until the server is gone.
async fn write(admin: Client, round: u32, writer: u32, acknowledged: Arc<Mutex<BTreeSet<String>>>) {
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    for number in 0.. {
        let name = format!("u{round}-{writer}-{number}");
        let grants = vec![Grant { role: "viewer".into(), organisation: String::new() }];
        let user = User { username: name.clone(), grants, ..Default::default() };
        let request = AddUserRequest { user: Some(user), password: "long enough".into() };
        if identity.add_user(admin.request(request)).await.is_err() {
            return;
        }
        acknowledged.lock().unwrap().insert(name);
    }
}

async fn users(admin: &Client) -> BTreeSet<String> {
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    let reply = identity.list_users(admin.request(ListUsersRequest {})).await.unwrap();
    reply.into_inner().users.into_iter().map(|user| user.username).collect()
}

#[test]
fn two_processes_do_not_share_a_data_directory() {
    let selvage = Selvage::up(&[]);
    let second =
        command().args(["up", "--port", "0", "--data"]).arg(selvage.data()).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("store.redb is in use by process"), "{said}");
}

#[test]
fn a_port_in_use_is_named() {
    let selvage = Selvage::up(&[]);
    let port = selvage.address().rsplit_once(':').unwrap().1;
    let other = tempfile::tempdir().unwrap();
    let second =
        command().args(["up", "--port", port, "--data"]).arg(other.path()).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{said}");
}

#[test]
fn a_first_start_that_fails_hides_no_password() {
    let busy = Selvage::up(&[]);
    let port = busy.address().rsplit_once(':').unwrap().1;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let failed = command().args(["up", "--port", port, "--data"]).arg(&data).output().unwrap();
    assert!(!failed.status.success());
    let second = Selvage::up_in(directory.path(), &[]);
    assert!(second.log().contains(&second.password()), "{}", second.log());
}

#[test]
fn a_ready_file_of_the_dead_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready.json");
    std::fs::write(&ready, "{}").unwrap();
    let failed = command()
        .args(["up", "--port", "0", "--data", "/proc/none", "--ready-file"])
        .arg(&ready)
        .output()
        .unwrap();
    assert!(!failed.status.success());
    assert!(!ready.exists());
}

#[test]
fn an_import_of_garbage_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("garbage"));
    std::fs::write(&file, "garbage\n").unwrap();
    let import = |file: &std::path::Path| {
        let args = ["store", "import", "--data", data.to_str().unwrap(), file.to_str().unwrap()];
        let refused = command().args(args).output().unwrap();
        assert!(!refused.status.success());
        assert!(!data.exists());
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    let said = import(&file);
    assert!(said.contains("garbage is damaged: line 1"), "{said}");
    let said = import(&folder.path().join("none"));
    assert!(said.contains("none: "), "{said}");
}

#[test]
fn an_export_of_nothing_is_no_backup() {
    let cli = Cli::new();
    let (data, file) = (cli.home().join("typo"), cli.home().join("backup"));
    let args = ["store", "export", "--data", data.to_str().unwrap(), file.to_str().unwrap()];
    let refused = cli.run(&args);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("there is no store"), "{refused:?}");
    assert!(!data.exists() && !file.exists());
}

#[test]
fn wrong_configuration_names_key_and_line_and_exits_64() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("selvage.toml");
    std::fs::write(&file, "[listen]\nprot = 1\n").unwrap();
    let refused = command().args(["up", "--config"]).arg(&file).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("selvage.toml:2:") && said.contains("listen.port"), "{said}");

    let refused = command().args(["up"]).env("SELVAGE_LISTEN_PORT", "many").output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("SELVAGE_LISTEN_PORT") && said.contains("listen.port"), "{said}");
}

#[test]
fn a_cloudlet_that_cannot_run_is_refused_before_a_token_is_spent() {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("site.yaml"), directory.path().join("data"));
    for (text, says) in [
        ("cloudlet_kind: openstack", "a cloudlet of kind openstack cannot be run by this version"),
        ("cloudlet_knd: vm", "cloudlet_knd"),
    ] {
        std::fs::write(&file, text).unwrap();
        for part in ["crm", "up"] {
            let mut command = command();
            command.args([part, "--data"]).arg(&data);
            command.arg("--set").arg(format!("crm.site={}", file.display()));
            if part == "crm" {
                // Nobody listens there: whoever tries to join says so.
                command
                    .args(["--controller", "127.0.0.1:1"])
                    .env("SELVAGE_JOIN_TOKEN", "slvj_x.00");
            }
            let refused = command.output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(64), "{part}: {said}");
            assert!(said.contains("site.yaml: ") && said.contains(says), "{part}: {said}");
            assert!(!data.exists(), "{part} has made something");
        }
    }
}

#[test]
fn the_dumped_configuration_can_be_loaded() {
    let dumped = command()
        .args(["up", "--dump-config", "--set", "listen.drain=3s", "--port", "4711"])
        .output()
        .unwrap();
    assert!(dumped.status.success());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("selvage.toml");
    std::fs::write(&file, &dumped.stdout).unwrap();
    let again = command().args(["up", "--dump-config", "--config"]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&dumped.stdout));
    assert!(String::from_utf8_lossy(&again.stdout).contains("port = 4711"));
}

#[tokio::test]
async fn several_processes_share_an_etcd() {
    let Some(etcd) = Cluster::start(1).await else { return };
    let endpoints = format!("store.endpoints={:?}", etcd.endpoints());
    let flags = ["--set", "store.kind=etcd", "--set", &endpoints];
    let one = Selvage::up(&flags);
    // The second has the keys of the region.
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("data");
    std::fs::create_dir(&keys).unwrap();
    let copied =
        std::process::Command::new("cp").arg("-a").arg(one.data().join("pki")).arg(&keys).status();
    assert!(copied.unwrap().success());
    let two = Selvage::up_in(folder.path(), &flags);
    // The first one made the administrator; a session of one holds at the
    // other.
    let admin = Client::admin(&one).await;
    let there = Client { token: admin.token.clone(), ..Client::anonymous(&two).await };
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while there.code(WHOAMI, &[]).await != Code::Ok {
        assert!(std::time::Instant::now() < deadline, "the session never reached the other");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_store_moves_to_etcd_and_back() {
    let Some(etcd) = Cluster::start(1).await else { return };
    let mut selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    cli.ok(&["user", "add", "vera", "--role", "viewer", "--generate"]);
    selvage.signal(Signal::SIGTERM);
    assert!(selvage.wait().success());

    let data = selvage.data().to_str().unwrap().to_owned();
    let file = cli.home().join("export").to_str().unwrap().to_owned();
    let endpoints = format!("store.endpoints={:?}", etcd.endpoints());
    let to_etcd = ["--set", "store.kind=etcd", "--set", endpoints.as_str()];
    cli.ok(&["store", "check", "--data", &data]);
    cli.ok(&["store", "export", "--data", &data, &file]);
    cli.ok(&[&["store", "import", &file][..], &to_etcd].concat());
    let refused = cli.run(&[&["store", "import", &file][..], &to_etcd].concat());
    assert_ne!(refused.code, 0, "a store that is not empty is not filled: {refused:?}");
    assert!(refused.stderr.contains("--merge"), "{refused:?}");

    let moved = Selvage::up(&to_etcd);
    let password = selvage.password();
    let admin = Client::login(&moved, "admin", &password).await.unwrap();
    assert!(users(&admin).await.contains("vera"));
}
