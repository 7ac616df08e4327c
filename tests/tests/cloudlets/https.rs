//! Ports of apps that speak TLS with the certificate of the cloudlet, names in
//! its own zone, and files that come with the app.

use std::process::Command;

use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
};

use selvage_tests::cloudlet::{can_run, cloudlet_here, create_app, furnish_here, on, write_image};

/// Two servers in one.
const COMMAND: &str = "/bin/sh -c 'httpd -p 8081 -h /www; exec httpd -f -p 8080 -h /www'";

/// The name that devices are told, which the certificate carries.
const NAME: &str = "autoclusterweb.tls.op.edge.example";

/// Asks by the name of the instance, at the cluster's address.
fn ask(ca: &str, scheme: &str, path: &str) -> Option<String> {
    ask_at(443, ca, scheme, path)
}

fn ask_at(port: u16, ca: &str, scheme: &str, path: &str) -> Option<String> {
    let output = Command::new("curl")
        .args(["-s", "-m", "5", "-f", "--cacert", ca])
        .args(["--connect-to", &format!("{NAME}:{port}:10.104.1.1:{port}")])
        .arg(format!("{scheme}://{NAME}:{port}/{path}"))
        .output()
        .unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn ports_speak_tls_where_they_are_asked_to() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("web.tar");
    write_image(&image);
    let common = "network_scheme: 10.104.0.0/16, dns_zone: edge.example";
    let flags = cloudlet_here(directory.path(), "tls", common);
    let flags = flags.iter().map(String::as_str).chain([
        "--set",
        "crm.https=true",
        "--set",
        "dns.zones=edge.example",
    ]);
    let selvage = Selvage::up_in(directory.path(), &flags.collect::<Vec<_>>());
    let cli = Cli::admin_of(&selvage);
    furnish_here(&cli, "tls");
    let file = "configs[0]={kind: \"file:/www/index.html\", config: from the app}";
    let ports = "http:8080,tcp:8081:tls";
    create_app(&cli, &image, ports, &["--set", file, "--command", COMMAND]);
    cli.ok(&[&["appinst", "create"][..], &on("tls")].concat());
    let shown = cli.json(&["appinst", "show", "-o", "json"]);
    let prefix = shown["mapped_ports"][0]["path_prefix"].as_str().unwrap().to_owned() + "/";

    let ca = selvage.ready()["ca"].as_str().unwrap();
    let page = wait_for("the page", || ask(ca, "https", &prefix));
    assert_eq!(page, "from the app");
    assert_eq!(shown["uri"], NAME);
    assert_eq!(ask(ca, "http", &prefix), None, "nothing is told without TLS");
    let page = wait_for("the page of the other port", || ask_at(8081, ca, "https", ""));
    assert_eq!(page, "from the app");
    assert_eq!(ask_at(8081, ca, "http", ""), None, "nothing is told without TLS");
    cli.ok(&[&["appinst", "delete", "--yes"][..], &on("tls")].concat());
    assert_eq!(ask(ca, "https", &prefix), None);
}
