//! A simulated cloudlet joins the real controller over TLS with a certificate
//! of its own, and apps come up on it, fail on it and go from it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use selvage_api::{
    edgeproto::{CloudletKey, OperatorKey},
    selvage::identity::{
        CreateJoinTokenRequest, JoinRequest, identity_service_client::IdentityServiceClient,
    },
};
use selvage_kit::pki::{self, KeyRequest, RotatingIdentity};
use selvage_sim::{Fault, FaultRule, Limits, Operation, SimCrm, SimOptions, What};
use selvage_tests::{Client, Selvage, process::Cli};

const APP: [&str; 6] = ["--developer", "AcmeAppCo", "--appname", "app", "--appvers", "1.0"];
const PLACE: [&str; 6] =
    ["--operator", "tmus", "--cloudlet", "cloud-1", "--cluster", "autoclusterapp"];

/// Trades a join token for what it takes to speak as that machine.
async fn join(selvage: &Selvage, machine: &str) -> Arc<rustls::ClientConfig> {
    let admin = Client::admin(selvage).await;
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    let request = CreateJoinTokenRequest { machine: machine.into(), ttl_seconds: 60 };
    let made = identity.create_join_token(admin.request(request)).await.unwrap().into_inner();
    let key = KeyRequest::new().unwrap();
    let request = JoinRequest { token: made.token, csr: key.csr_pem().into() };
    let signed = identity.join(request).await.unwrap().into_inner();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("machine.pem");
    let machine = RotatingIdentity::create(&path, &key, &signed.certificate).unwrap();
    Arc::new(pki::client_config(&selvage.ca().unwrap(), Some(&machine)).unwrap())
}

fn cloudlet(selvage: &Selvage, name: &str, tls: Arc<rustls::ClientConfig>) -> SimCrm {
    let operator_key = Some(OperatorKey { name: "tmus".into() });
    let key = CloudletKey { operator_key, name: name.into() };
    let mut options = SimOptions::new(vec![selvage.address().to_owned()], key);
    options.client.tls = Some(tls);
    options.limits = Limits { ram: 65_536, vcores: 64, volume: 5_000 };
    SimCrm::start(options).unwrap()
}

fn set_up(cli: &Cli) {
    cli.ok(&[
        "flavor", "create", "--name", "x1.small", "--ram", "2048", "--vcpus", "2", "--disk", "2",
    ]);
    cli.ok(&["operator", "create", "--name", "tmus"]);
    cli.ok(&["developer", "create", "--name", "AcmeAppCo"]);
    for name in ["cloud-1", "cloud-2"] {
        cli.ok(&[
            "cloudlet",
            "create",
            "--operator",
            "tmus",
            "--name",
            name,
            "--latitude",
            "31",
            "--longitude",
            "-91",
            "--numdynamicips",
            "254",
        ]);
    }
    let image = ["--imagetype", "docker", "--accessports", "tcp:80", "--defaultflavor", "x1.small"];
    cli.ok(&[&["app", "create"][..], &APP, &image].concat());
}

/// Waits until the controller has heard of the cloudlet.
async fn ready(cli: &Cli, name: &str) {
    let show = ["cloudletinfo", "show", "--operator", "tmus", "--name", name, "-o", "json"];
    let deadline = std::time::Instant::now() + selvage_tests::process::PATIENCE;
    while !cli.ok(&show).contains("CLOUDLET_STATE_READY") {
        assert!(std::time::Instant::now() < deadline, "{name} never became ready");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn instance(cli: &Cli, verb: &str) -> selvage_tests::process::Printed {
    let yes: &[&str] = if verb == "delete" { &["--yes"] } else { &[] };
    cli.run(&[&["appinst", verb][..], &APP, &PLACE, yes].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_comes_up_fails_and_goes() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let crm = cloudlet(&selvage, "cloud-1", join(&selvage, "cloudlet/tmus/cloud-1").await);
    ready(&cli, "cloud-1").await;

    let created = instance(&cli, "create");
    assert_eq!(created.code, 0, "{created:?}");
    let lines: Vec<&str> = created.stdout.lines().collect();
    assert!(lines.ends_with(&["Creating", "Ready", "Created successfully"]), "{lines:?}");
    assert!(!crm.infrastructure().is_empty(), "the cluster and the app");
    assert!(cli.ok(&["nodes", "show"]).contains("sim-"), "what is simulated says so");

    let deleted = instance(&cli, "delete");
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());

    crm.script(FaultRule::once(
        What::Instance,
        Operation::Create,
        Fault::Fail { errors: vec!["no such image".into()], residue: true },
    ));
    let failed = instance(&cli, "create");
    assert_ne!(failed.code, 0);
    assert!(failed.stderr.contains("no such image"), "{failed:?}");
    assert!(cli.ok(&["appinst", "show", "-o", "json"]).is_empty(), "nothing is left behind");
    assert!(crm.infrastructure().is_empty(), "not even there: {:?}", crm.infrastructure());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudlet_cannot_speak_for_another() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let tls = join(&selvage, "cloudlet/tmus/cloud-1").await;
    let _liar = cloudlet(&selvage, "cloud-2", tls.clone());
    let _honest = cloudlet(&selvage, "cloud-1", tls);
    ready(&cli, "cloud-1").await;
    let show = ["cloudletinfo", "show", "--operator", "tmus", "--name", "cloud-2", "-o", "json"];
    assert!(cli.ok(&show).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_outlives_the_controller_that_began_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let port = selvage.address().rsplit_once(':').unwrap().1.to_owned();
    let crm = cloudlet(&selvage, "cloud-1", join(&selvage, "cloudlet/tmus/cloud-1").await);
    ready(&cli, "cloud-1").await;
    crm.script(FaultRule::once(
        What::Instance,
        Operation::Create,
        Fault::Late(std::time::Duration::from_secs(3)),
    ));
    let creating = std::thread::spawn({
        let home = cli.home().to_owned();
        move || {
            let mut command = selvage_tests::process::command();
            command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
            command.args([&["appinst", "create"][..], &APP, &PLACE].concat()).output().unwrap()
        }
    });
    let deadline = std::time::Instant::now() + selvage_tests::process::PATIENCE;
    while !cli.ok(&["appinst", "show", "-o", "json"]).contains("CREAT") {
        assert!(std::time::Instant::now() < deadline, "the instance never appeared");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    selvage.kill();
    creating.join().unwrap();

    let selvage =
        Selvage::start("up", directory.path(), &["--set", &format!("listen.port={port}")]);
    let cli = Cli::admin_of(&selvage);
    while !cli.ok(&["appinst", "show", "-o", "json"]).contains("\"state\":\"READY\"") {
        assert!(
            std::time::Instant::now() < deadline,
            "{}",
            cli.ok(&["operation", "list", "-o", "json"])
        );
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
