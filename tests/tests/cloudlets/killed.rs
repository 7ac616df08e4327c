//! A crm that is killed: who comes from other machines is led on by the kernel,
//! and the next crm goes on with what it finds.

use std::process::Command;

use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
};
use serde_json::Value;

use crate::network::{Network, ip};
use selvage_tests::cloudlet::{
    can_run, create_app, create_cloudlet, furnish, join, on, page, write_image,
};

const NETWORK: Network = Network { name: "kill", subnet: 178, machines: &["site", "far"] };
const PAGE: &str = "http://10.109.1.1:8080/";

/// The tables of the cloudlet, and where their ways lead from and to.
fn ways() -> (usize, Vec<String>) {
    let namespace = NETWORK.namespace("site");
    let line = ["netns", "exec", &namespace, "nft", "-j", "list", "ruleset"];
    let printed = Command::new("ip").args(line).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let all = printed["nftables"].as_array().unwrap();
    let tables = all.iter().filter_map(|thing| thing["table"]["name"].as_str());
    let elements = all.iter().filter_map(|thing| thing["map"]["elem"].as_array()).flatten();
    let mut ways: Vec<String> = elements
        .map(|element| format!("{} {}", element[0]["elem"]["val"]["concat"], element[1]["concat"]))
        .collect();
    ways.sort();
    (tables.filter(|name| name.starts_with("selvage_")).count(), ways)
}

#[test]
fn ports_that_the_kernel_leads_outlive_the_crm_and_are_taken_up_again() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let network = NETWORK.build();
    let (site, far) = (NETWORK.namespace("site"), NETWORK.namespace("far"));
    ip(&format!("-n {far} route add 10.109.0.0/16 via {}", NETWORK.address("site")));
    let name = format!("tls.names=[\"{}\"]", NETWORK.controller());
    let selvage = Selvage::up(&["--set", "listen.address=0.0.0.0", "--set", &name]);
    let cli = Cli::admin_of(&selvage);
    let port = selvage.address().rsplit_once(':').unwrap().1;
    let controller = format!("{}:{port}", NETWORK.controller());
    furnish(&cli);
    create_cloudlet(&cli, "site");
    let image = directory.path().join("web.tar");
    write_image(&image);
    let file = directory.path().join("site.yaml");
    std::fs::write(&file, "common: {network_scheme: 10.109.0.0/16}\n").unwrap();
    let made_of = format!("crm.site={}", file.display());
    let home = directory.path().join("site");
    std::fs::create_dir(&home).unwrap();
    let flags = ["--set", &made_of];
    let mut crm = join(&cli, &controller, "site", &site, &home, &flags);
    wait_for("the cloudlet", || {
        let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
        shown.contains("CLOUDLET_STATE_READY").then_some(())
    });
    create_app(&cli, &image, "tcp:8080", &[]);
    cli.ok(&[&["appinst", "create"][..], &on("site")].concat());
    let far_page = || page(Some(&far), PAGE);
    let before = wait_for("a way of the kernel's", || {
        let found = ways();
        (!found.1.is_empty()).then_some(found)
    });
    // One table leads there, the other keeps containers from their machine.
    assert_eq!((before.0, before.1.len()), (2, 1), "{before:?}");
    assert_eq!(wait_for("an answer", far_page), "hello");

    crm.kill();
    assert_eq!(page(Some(&site), PAGE), None, "nobody listens on the machine itself");
    assert_eq!(wait_for("an answer without a crm", far_page), "hello");
    assert_eq!(ways(), before);

    let flags = ["--set", "crm.runtime=oci", "--set", &made_of];
    let crm = Selvage::start_in(&site, "crm", &home, &flags);
    wait_for("the crm's own proxy", || page(Some(&site), PAGE));
    assert_eq!(wait_for("an answer", far_page), "hello");
    wait_for("the same ways", || (ways() == before).then_some(()));

    cli.ok(&[&["appinst", "delete", "--yes"][..], &on("site")].concat());
    wait_for("no answer", || far_page().is_none().then_some(()));
    wait_for("no way", || ways().1.is_empty().then_some(()));
    drop((crm, selvage, network));
}
