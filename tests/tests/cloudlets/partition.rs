//! Three machines and a controller, each with a network of its own. One is
//! cut off for longer than everybody's patience, and comes back.

use std::process::Command;

use selvage_tests::{
    Selvage,
    process::{Cli, Printed, wait_for},
};

use crate::network::Network;
use selvage_tests::cloudlet::{
    can_run, create_app, create_cloudlet, furnish, join, on, page, write_image,
};

const SITES: [&str; 3] = ["east", "west", "north"];
const READY: &str = "CLOUDLET_STATE_READY";
/// The one that is cut off.
const CUT: &str = "west";
/// Page at the public address of every machine's first cluster: each machine
/// has that address for itself.
const PAGE: &str = "http://10.101.1.1:8080/";

/// The machines, and the controller.
const NETWORK: Network = Network { name: "hub", subnet: 177, machines: &SITES };

fn state_of(cli: &Cli, site: &str) -> String {
    let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
    let name = format!("\"name\":\"{site}\"");
    shown.lines().find(|line| line.contains(&name)).unwrap_or_default().to_owned()
}

fn bridges(site: &str) -> String {
    let name = NETWORK.namespace(site);
    let line = ["-n", &name, "-o", "link", "show", "type", "bridge"];
    let printed = Command::new("ip").args(line).output().unwrap();
    String::from_utf8(printed.stdout).unwrap()
}

fn web_of(site: &str) -> Option<String> {
    page(Some(&NETWORK.namespace(site)), PAGE)
}

#[test]
fn a_machine_that_was_cut_off_agrees_with_everybody_afterwards() {
    if !can_run() {
        return;
    }
    let network = NETWORK.build();
    let directory = tempfile::tempdir().unwrap();
    let name = format!("tls.names=[\"{}\"]", NETWORK.controller());
    let selvage = Selvage::up(&["--set", "listen.address=0.0.0.0", "--set", &name]);
    let cli = Cli::admin_of(&selvage);
    let port = selvage.address().rsplit_once(':').unwrap().1;
    let controller = format!("{}:{port}", NETWORK.controller());
    furnish(&cli);
    let image = directory.path().join("web.tar");
    write_image(&image);
    let crms: Vec<Selvage> = SITES
        .iter()
        .map(|site| {
            let home = directory.path().join(site);
            std::fs::create_dir(&home).unwrap();
            create_cloudlet(&cli, site);
            join(&cli, &controller, site, &NETWORK.namespace(site), &home, &[])
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

    NETWORK.cut(CUT);
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

    NETWORK.heal(CUT);
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
