//! HTTP ports of apps that speak TLS with the certificate of the cloudlet, names
//! in its own zone, and files that come with the app.

use std::process::Command;

use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
};

use crate::lab::{can_run, cloudlet_here, create_app, furnish_here, on, write_image};

/// Asks by a name that the certificate carries, at the cluster's address.
fn ask(ca: &str, scheme: &str, path: &str) -> Option<String> {
    let output = Command::new("curl")
        .args(["-s", "-m", "5", "-f", "--cacert", ca])
        .args(["--connect-to", "localhost:443:10.104.1.1:443"])
        .arg(format!("{scheme}://localhost:443/{path}/"))
        .output()
        .unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn an_http_port_speaks_tls_where_it_is_asked_to() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("web.tar");
    write_image(&image);
    let common = "network_scheme: 10.104.0.0/16, dns_zone: edge.example";
    let flags = cloudlet_here(directory.path(), "tls", common);
    let flags = flags.iter().map(String::as_str).chain(["--set", "crm.https=true"]);
    let selvage = Selvage::up_in(directory.path(), &flags.collect::<Vec<_>>());
    let cli = Cli::admin_of(&selvage);
    furnish_here(&cli, "tls");
    let file = "configs[0]={kind: \"file:/www/index.html\", config: from the app}";
    create_app(&cli, &image, "http:8080", &["--set", file]);
    cli.ok(&[&["appinst", "create"][..], &on("tls")].concat());
    let shown = cli.json(&["appinst", "show", "-o", "json"]);
    let prefix = shown["mapped_ports"][0]["path_prefix"].as_str().unwrap().to_owned();

    let ca = selvage.ready()["ca"].as_str().unwrap();
    let page = wait_for("the page", || ask(ca, "https", &prefix));
    assert_eq!(page, "from the app");
    assert_eq!(shown["uri"], "autoclusterweb.tls.op.edge.example");
    assert_eq!(ask(ca, "http", &prefix), None, "nothing is told without TLS");
    cli.ok(&[&["appinst", "delete", "--yes"][..], &on("tls")].concat());
    assert_eq!(ask(ca, "https", &prefix), None);
}
