//! Three machines and a controller, each with a network of its own. One is
//! cut off for longer than everybody's patience, and comes back.

use std::process::Command;

use selvage_tests::{
    Selvage,
    process::{Cli, Printed, wait_for},
};

use crate::lab::{can_run, create_app, create_cloudlet, furnish, on, page, write_image};

const SITES: [&str; 3] = ["east", "west", "north"];
const READY: &str = "CLOUDLET_STATE_READY";
/// The one that is cut off.
const CUT: &str = "west";
/// Where every machine's first cluster has its public ports: each machine has
/// that address for itself.
const PAGE: &str = "http://10.101.1.1:8080/";

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
}

/// Network namespaces around a bridge on which the controller is.
struct Network;

impl Network {
    const BRIDGE: &str = "slvhub";
    const CONTROLLER: &str = "192.168.177.1";

    fn new() -> Self {
        let network = Self;
        network.remove();
        let bridge = Self::BRIDGE;
        ip(&format!("link add {bridge} type bridge"));
        ip(&format!("addr add {}/24 dev {bridge}", Self::CONTROLLER));
        ip(&format!("link set {bridge} up"));
        for (site, host) in SITES.iter().zip(2..) {
            let (name, port) = (Self::namespace(site), Self::port(site));
            ip(&format!("netns add {name}"));
            ip(&format!("link add {port} type veth peer name eth0 netns {name}"));
            ip(&format!("link set {port} master {bridge} up"));
            ip(&format!("-n {name} addr add 192.168.177.{host}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        network
    }

    fn namespace(site: &str) -> String {
        format!("hub-{site}")
    }

    fn port(site: &str) -> String {
        format!("slvhub-{site}")
    }

    fn cut(site: &str) {
        ip(&format!("link set {} down", Self::port(site)));
    }

    fn heal(site: &str) {
        ip(&format!("link set {} up", Self::port(site)));
    }

    fn remove(&self) {
        for site in SITES {
            let _ = Command::new("ip").args(["link", "del", &Self::port(site)]).output();
            let _ = Command::new("ip").args(["netns", "del", &Self::namespace(site)]).output();
        }
        let _ = Command::new("ip").args(["link", "del", Self::BRIDGE]).output();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A crm that joined, on a machine of its own.
fn join(cli: &Cli, controller: &str, site: &str, home: &std::path::Path) -> Selvage {
    let made = cli.json(&["join-token", "create", &format!("cloudlet/op/{site}"), "-o", "json"]);
    let token = home.join("token");
    std::fs::write(&token, made["token"].as_str().unwrap()).unwrap();
    let token = token.display().to_string();
    let flags = ["--controller", controller, "--join-file", &token, "--set", "crm.runtime=oci"];
    Selvage::start_in(&Network::namespace(site), "crm", home, &flags)
}

fn state_of(cli: &Cli, site: &str) -> String {
    let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
    let name = format!("\"name\":\"{site}\"");
    shown.lines().find(|line| line.contains(&name)).unwrap_or_default().to_owned()
}

fn bridges(site: &str) -> String {
    let name = Network::namespace(site);
    let line = ["-n", &name, "-o", "link", "show", "type", "bridge"];
    let told = Command::new("ip").args(line).output().unwrap();
    String::from_utf8(told.stdout).unwrap()
}

fn web_of(site: &str) -> Option<String> {
    page(Some(&Network::namespace(site)), PAGE)
}

#[test]
fn a_machine_that_was_cut_off_agrees_with_everybody_afterwards() {
    if !can_run() {
        return;
    }
    let network = Network::new();
    let directory = tempfile::tempdir().unwrap();
    let name = format!("tls.names=[\"{}\"]", Network::CONTROLLER);
    let selvage = Selvage::up(&["--set", "listen.address=0.0.0.0", "--set", &name]);
    let cli = Cli::admin_of(&selvage);
    let port = selvage.address().rsplit_once(':').unwrap().1;
    let controller = format!("{}:{port}", Network::CONTROLLER);
    furnish(&cli);
    let image = directory.path().join("web.tar");
    write_image(&image);
    let crms: Vec<Selvage> = SITES
        .iter()
        .map(|site| {
            let home = directory.path().join(site);
            std::fs::create_dir(&home).unwrap();
            create_cloudlet(&cli, site);
            join(&cli, &controller, site, &home)
        })
        .collect();
    for site in SITES {
        wait_for("the cloudlet", || state_of(&cli, site).contains(READY).then_some(()));
    }
    create_app(&cli, &image, "tcp:8080", &[]);
    for site in SITES {
        cli.ok(&[&["appinst", "create"][..], &on(site)].concat());
        assert_eq!(web_of(site).as_deref(), Some("hello"), "{site}");
    }

    Network::cut(CUT);
    // Nobody has been told: it is found out by not answering.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(180);
    while state_of(&cli, CUT).contains(READY) {
        assert!(std::time::Instant::now() < deadline, "{CUT} still counts as ready");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!(web_of(CUT).as_deref(), Some("hello"), "what runs there runs on");
    // The others are none the worse.
    cli.ok(&[&["appinst", "delete", "--yes"][..], &on("east")].concat());
    assert_eq!(web_of("east"), None);
    cli.ok(&[&["appinst", "create"][..], &on("east")].concat());
    assert_eq!(web_of("east").as_deref(), Some("hello"));
    // What is asked of the one that is away is refused, or goes on later.
    let asked: Printed = cli.run(&[&["appinst", "delete", "--yes"][..], &on(CUT)].concat());
    assert_ne!(asked.code, 0, "{asked:?}");
    assert_eq!(web_of(CUT).as_deref(), Some("hello"));

    Network::heal(CUT);
    wait_for("the cloudlet again", || state_of(&cli, CUT).contains(READY).then_some(()));
    for site in SITES {
        // The one that was asked for while it was away may be gone already.
        let deleted = cli.run(&[&["appinst", "delete", "--yes"][..], &on(site)].concat());
        assert!(deleted.code == 0 || site == CUT, "{deleted:?}");
        wait_for("the end of it", || web_of(site).is_none().then_some(()));
        wait_for("the end of its cluster", || bridges(site).is_empty().then_some(()));
    }
    let left = cli.ok(&["appinst", "show", "-o", "json"]);
    assert!(!left.contains("acme"), "{left}");
    drop((crms, selvage, network));
}
