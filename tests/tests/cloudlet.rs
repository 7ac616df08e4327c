//! A simulated cloudlet joins the real controller over TLS with a certificate
//! of its own, and apps come up on it, fail on it and go from it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use selvage_notify::ClientOptions;
use selvage_sim::{Fault, FaultRule, Limits, ObjectKind, SimCrm, SimDme, SimOptions, Verb};
use selvage_tests::{Client, Selvage, process::Cli};

const APP: [&str; 6] = ["--developer", "AcmeAppCo", "--appname", "app", "--appvers", "1.0"];
const PLACE: [&str; 6] =
    ["--operator", "tmus", "--cloudlet", "cloud-1", "--cluster", "autoclusterapp"];

/// TLS configuration with which one speaks as that machine.
async fn join(selvage: &Selvage, machine: &str) -> Arc<rustls::ClientConfig> {
    Client::admin(selvage).await.join(&selvage.ca().unwrap(), machine).await
}

/// A crm, and how it was told to connect.
fn agent(
    selvage: &Selvage,
    operator: &str,
    name: &str,
    tls: Arc<rustls::ClientConfig>,
) -> (SimCrm, ClientOptions) {
    let operator_key = Some(OperatorKey { name: operator.into() });
    let key = CloudletKey { operator_key, name: name.into() };
    let mut options = SimOptions::new(vec![selvage.address().to_owned()], key);
    options.client.tls = Some(tls);
    options.limits = Limits { ram: 65_536, vcores: 64, volume: 5_000 };
    let client = options.client.clone();
    (SimCrm::start(options).unwrap(), client)
}

fn cloudlet(selvage: &Selvage, name: &str, tls: Arc<rustls::ClientConfig>) -> SimCrm {
    agent(selvage, "tmus", name, tls).0
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
    known(cli, "tmus", name).await;
}

async fn known(cli: &Cli, operator: &str, name: &str) {
    let show = ["cloudletinfo", "show", "--operator", operator, "--name", name, "-o", "json"];
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
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
        ObjectKind::Instance,
        Verb::Create,
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
    crm.script(late());
    let creating = create_beside(&cli);
    shows(&cli, "CREAT").await;
    selvage.kill();
    creating.join().unwrap();

    let selvage =
        Selvage::start("up", directory.path(), &["--set", &format!("listen.port={port}")]);
    shows(&Cli::admin_of(&selvage), READY).await;
}

const READY: &str = "\"state\":\"READY\"";

/// Its next instance takes the crm a while.
fn late() -> FaultRule {
    let fault = Fault::Late(std::time::Duration::from_secs(3));
    FaultRule::once(ObjectKind::Instance, Verb::Create, fault)
}

/// Creates the instance while the test does something else.
fn create_beside(cli: &Cli) -> std::thread::JoinHandle<std::process::Output> {
    let home = cli.home().to_owned();
    std::thread::spawn(move || {
        let mut command = selvage_tests::process::command();
        command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
        command.args([&["appinst", "create"][..], &APP, &PLACE].concat()).output().unwrap()
    })
}

/// Waits until what is shown of instances has a text in it.
async fn shows(cli: &Cli, text: &str) {
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while !cli.ok(&["appinst", "show", "-o", "json"]).contains(text) {
        assert!(
            std::time::Instant::now() < deadline,
            "{text}: {}",
            cli.ok(&["operation", "list", "-o", "json"])
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// One that has forgotten everything, and one that finds what it made, while
/// an instance is ready: nothing happens to that, and it can be deleted and
/// made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudlet_that_restarts_goes_on() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let crm = cloudlet(&selvage, "cloud-1", join(&selvage, "cloudlet/tmus/cloud-1").await);
    ready(&cli, "cloud-1").await;
    for remember in [true, false] {
        assert_eq!(instance(&cli, "create").code, 0);
        crm.restart(remember).await;
        ready(&cli, "cloud-1").await;
        shows(&cli, READY).await;
        let deleted = instance(&cli, "delete");
        assert_eq!(deleted.code, 0, "remembers: {remember}: {deleted:?}");
        assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());
    }

    // It dies when the controller knows that it has begun.
    crm.script(FaultRule::once(ObjectKind::Instance, Verb::Create, Fault::Stall));
    let creating = create_beside(&cli);
    shows(&cli, "CREATING").await;
    crm.restart(true).await;
    let failed = creating.join().unwrap();
    assert!(!failed.status.success(), "the original's reports what it knows nothing of as failed");
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(said.contains("inconsistent Controller vs CRM state"), "{said}");
    assert!(cli.ok(&["appinst", "show", "-o", "json"]).is_empty(), "and nothing is left");
    assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());
    assert_eq!(instance(&cli, "create").code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudlet_that_is_cut_off_says_later_how_far_it_got() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let crm = cloudlet(&selvage, "cloud-1", join(&selvage, "cloudlet/tmus/cloud-1").await);
    ready(&cli, "cloud-1").await;
    crm.script(late());
    let creating = create_beside(&cli);
    shows(&cli, "CREATING").await;
    crm.go_offline().await;
    let refused = instance(&cli, "delete");
    assert_ne!(refused.code, 0, "nobody is there to do it: {refused:?}");
    crm.go_online();
    let created = creating.join().unwrap();
    assert!(created.status.success(), "{created:?}");
    shows(&cli, READY).await;
    assert_eq!(instance(&cli, "delete").code, 0);
    assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());
}

/// A data set of the replays as it is where agents run: nobody speaks for
/// them, and nothing is done without them.
fn with_agents(directory: &std::path::Path, name: &str) -> String {
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("edge").join(name),
    );
    let (mut kept, mut spoken_for) = (String::new(), false);
    for line in text.unwrap().lines().filter(|line| !line.contains("crmoverride")) {
        if !line.starts_with([' ', '-']) {
            spoken_for = line == "cloudletinfos:";
        }
        if !spoken_for {
            kept += line;
            kept.push('\n');
        }
    }
    let path = directory.join(name);
    std::fs::write(&path, kept).unwrap();
    path.to_str().unwrap().to_owned()
}

/// As the original's test of the whole controller: four cloudlets and a match
/// engine, everything built up, nothing deleted that is in use, everything
/// taken down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_is_built_up_and_taken_down() {
    let directory = tempfile::tempdir().unwrap();
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let file = |name: &str| with_agents(directory.path(), name);
    cli.ok(&["apply", "-f", &file("golden_refs.yaml")]);
    let mut crms = Vec::new();
    for name in ["c0", "c1", "c2", "c3"] {
        let tls = join(&selvage, &format!("cloudlet/golden/{name}")).await;
        crms.push(agent(&selvage, "golden", name, tls));
        known(&cli, "golden", name).await;
    }
    let mut options = crms[0].1.clone();
    options.tls = Some(join(&selvage, "dme/sim-engine").await);
    let dme = SimDme::start(options, "engine", crms[0].0.cloudlet().clone()).unwrap();
    for name in ["golden_clusters.yaml", "golden_instances.yaml"] {
        let printed = cli.ok(&["apply", "-f", &file(name)]);
        assert!(printed.lines().all(|line| line.ends_with(": created")), "{printed}");
    }
    let count = |kind: &str| cli.ok(&[kind, "show", "-o", "json"]).lines().count();
    let counts = ["clusterinst", "appinst", "clusterinstinfo", "appinstinfo"].map(count);
    assert_eq!(counts, [9, 6, 9, 6], "two clusters were made along with an instance");
    assert_eq!((dme.instances.len(), dme.apps.len()), (6, 3), "it hears of every one");
    for (crm, _) in &crms {
        assert_eq!(crm.mirrored()[1..], [4, 1], "all flavors, and one cloudlet");
    }
    let made = |at: usize| crms[at].0.infrastructure().clusters.len();
    assert_eq!([made(0), made(1), made(2), made(3)], [2, 3, 3, 1]);

    for in_use in [
        &["developer", "delete", "--name", "AcmeAppCo"][..],
        &["operator", "delete", "--name", "golden"],
        &["cloudlet", "delete", "--operator", "golden", "--name", "c1"],
        &["app", "delete", "--developer", "AcmeAppCo", "--appname", "both", "--appvers", "1.0"],
    ] {
        let refused = cli.run(&[in_use, &["--yes"]].concat());
        assert_eq!(refused.code, 8, "{in_use:?}: {refused:?}");
    }
    for name in ["golden_instances.yaml", "golden_clusters.yaml"] {
        cli.ok(&["unapply", "--yes", "-f", &file(name)]);
    }
    let kinds = ["clusterinst", "appinst", "clusterinstinfo", "appinstinfo", "cloudletinfo"];
    assert_eq!(kinds.map(count), [0, 0, 0, 0, 4], "the agents are there");
    for (crm, _) in &crms {
        assert!(crm.infrastructure().is_empty(), "{:?}", crm.infrastructure());
    }
    let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
    while !dme.instances.is_empty() {
        assert!(std::time::Instant::now() < deadline, "the engine still offers what is gone");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// With several agents on a controller the original took the first refusal
/// for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_reaches_its_one_of_five_cloudlets_at_the_first_try() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    set_up(&cli);
    let names = ["cloud-1", "cloud-2", "cloud-3", "cloud-4", "cloud-5"];
    let mut crms = Vec::new();
    for name in names {
        if !["cloud-1", "cloud-2"].contains(&name) {
            let at = ["--latitude", "31", "--longitude", "-91", "--numdynamicips", "254"];
            let of = ["cloudlet", "create", "--operator", "tmus", "--name", name];
            cli.ok(&[&of[..], &at].concat());
        }
        let tls = join(&selvage, &format!("cloudlet/tmus/{name}")).await;
        crms.push(cloudlet(&selvage, name, tls));
        ready(&cli, name).await;
        let place = ["--operator", "tmus", "--cloudlet", name, "--cluster", "autoclusterapp"];
        cli.ok(&[&["appinst", "create"][..], &APP, &place].concat());
    }
    for (name, crm) in names.iter().zip(&crms) {
        for way in ["direct", "relay"] {
            let place = ["exec", "app", "--cloudlet", name, "--via", way, "--", "echo", "hi", name];
            assert_eq!(cli.ok(&place), format!("hi {name}\r\n"), "{way}");
        }
        assert_eq!(crm.counters().execs, 2, "each went to {name} and no other");
    }
    let many = cli.run(&["exec", "app", "--", "echo", "hi"]);
    assert!(many.stderr.contains("5 instances fit"), "{many:?}");
    assert!(many.stderr.contains("--cloudlet cloud-3"), "{many:?}");
}
