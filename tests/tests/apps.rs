//! The whole way: an app is created at the controller, the crm runs it in a
//! real container on this machine, its public port leads to it, a device
//! finds it, and killing any process brings all of it back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use selvage_testkit::containers::can_run;
use selvage_tests::{
    Selvage, cloudlet,
    process::{Cli, wait_for},
};

/// Answer at a public port; none when nobody answers.
fn fetch(place: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&place, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.contains(" 200 OK").then_some(text)
}

/// Output of a line that people are told to type.
fn run_as_advised(line: &str) -> String {
    let program = selvage_tests::process::binary();
    let folder = program.parent().unwrap().display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", line]).env("PATH", path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An image with a web server that answers so.
fn write_image(path: &Path, answer: &str) {
    let image = cloudlet::busybox(&["sh", "httpd"]).command([
        "/bin/httpd",
        "-f",
        "-p",
        "8080",
        "-h",
        "/www",
    ]);
    image
        .file("www/index.html", 0o644, answer.as_bytes())
        .unwrap()
        .write("localhost/a:1", path)
        .unwrap();
}

const DEMO_APP: [&str; 6] = ["--developer", "demo", "--appname", "hello", "--appvers", "1"];
const DEMO_PLACE: [&str; 6] =
    ["--operator", "demo", "--cloudlet", "here", "--cluster", "autoclusterhello"];

#[test]
fn the_demonstration_runs_survives_a_kill_and_goes() {
    if !can_run(&["runc"]) {
        return;
    }
    let place = SocketAddr::from(([10, 101, 1, 1], 80));
    let directory = tempfile::tempdir().unwrap();
    let runtime = ["--set", "crm.runtime=oci"];
    let mut selvage = Selvage::up_in(directory.path(), &[&["--demo"][..], &runtime].concat());
    let page = wait_for("the app's page", || fetch(place));
    assert!(page.contains("Hello from the edge"), "{page}");
    let cli = Cli::admin_of(&selvage);
    wait_for("the app to be ready", || {
        cli.ok(&["appinst", "show", "-o", "json"]).contains("READY").then_some(())
    });
    let device = ["--carrier", "demo", "--latitude", "50", "--longitude", "8"];
    let found = cli.ok(&[&["dme", "find"][..], &DEMO_APP, &device].concat());
    assert!(found.contains("here.demo.selvage.internal"), "{found}");
    let advice = wait_for("the advice", || {
        let log = selvage.log();
        log.lines().find(|line| line.contains("curl --resolve")).map(|line| line.trim().to_owned())
    });
    let name = found.split_whitespace().find(|word| word.ends_with("selvage.internal")).unwrap();
    assert!(advice.ends_with(&format!("http://{name}/")), "{advice}");
    wait_for("the app's page by its name", || {
        run_as_advised(&advice).contains("Hello from the edge").then_some(())
    });

    let containers = |cli: &Cli| cli.ok(&["node", "containers", "--namespace", "selvage"]);
    let before = containers(&cli);
    selvage.kill();
    assert_eq!(fetch(place), None, "nobody leads there any more");
    let selvage = Selvage::up_in(directory.path(), &runtime);
    assert!(selvage.log().contains("answers on"));
    // Without --demo the cloudlet is not this process's.
    drop(selvage);
    let cloudlet = ["--set", "crm.cloudlet=demo/here"];
    let selvage = Selvage::up_in(directory.path(), &[&cloudlet[..], &runtime].concat());
    wait_for("the app's page again", || fetch(place));
    let cli = Cli::admin_of(&selvage);
    assert_eq!(before, containers(&cli), "the container was never stopped");

    cli.ok(&[&["appinst", "delete", "--yes"][..], &DEMO_APP, &DEMO_PLACE].concat());
    assert_eq!(fetch(place), None);
    let links = std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&links.stdout).contains("10.101."), "a bridge is left");
}

const APP: [&str; 6] = ["--developer", "acme", "--appname", "web", "--appvers", "1"];
const PLACE: [&str; 6] = ["--operator", "op", "--cloudlet", "site", "--cluster", "autoclusterweb"];

/// Updates the instance and goes back: the list of revisions and the events say so.
fn versions_are_listed_shown_and_rolled_back(cli: &Cli, folder: &Path, place: SocketAddr) {
    let serves = |answer: &str| {
        wait_for(answer, || fetch(place).filter(|page| page.contains(answer)));
    };
    let of_instance =
        |verb: &str, more: &[&str]| cli.ok(&[&["appinst", verb][..], &APP, &PLACE, more].concat());
    let newer = folder.join("newer.tar");
    write_image(&newer, "newer");
    let image = format!("file://{}", newer.display());
    cli.ok(&[&["app", "update"][..], &APP, &["--imagepath", &image]].concat());
    of_instance("update", &[]);
    serves("newer");
    of_instance("rollback", &[]);
    serves("joined");
    let table = of_instance("history", &[]);
    assert_eq!(table.lines().count(), 1 + 3, "{table}");
    let history = of_instance("history", &["-o", "json"]);
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    let revisions = history["revisions"].as_array().unwrap();
    let numbers: Vec<&str> = revisions.iter().map(|one| one["number"].as_str().unwrap()).collect();
    assert_eq!(numbers, ["3", "2", "1"], "{history}");
    assert_eq!(revisions[0]["rollback_of"], "1", "{history}");
    assert!(revisions.iter().all(|one| one["state"] == "DEPLOYED"), "{history}");
    assert!(revisions[1]["image_path"].as_str().unwrap().ends_with("newer.tar"), "{history}");

    // Those that follow each other within a moment are one event.
    wait_for("the last revision in the events", || {
        let printed = cli.ok(&["events", "web", "--kind", "appinst"]);
        printed.contains("is to run revision 3").then_some(())
    });
    assert!(!cli.ok(&["events", "nothing-of-this-name"]).contains("revision"));
}

#[test]
fn a_crm_joins_with_a_token_and_is_one_more_cloudlet() {
    if !can_run(&["runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let made = cli.json(&["join-token", "create", "cloudlet/op/site", "-o", "json"]);
    std::fs::write(path("token"), made["token"].as_str().unwrap()).unwrap();
    let common = "common: {network_scheme: 10.102.0.0/16, dns_zone: shop.example}\n";
    std::fs::write(path("site.yaml"), common).unwrap();
    write_image(Path::new(&path("web.tar")), "joined");
    let site = format!("crm.site={}", path("site.yaml"));
    let token = path("token");
    let images = format!("crm.image_folders={}", directory.path().display());
    let names = ["--set", "dns.listen=127.0.0.1:0", "--set", "dns.zones=shop.example"];
    let flags = ["--set", &site, "--set", "crm.runtime=oci", "--set", &images];
    let flags = [&flags[..], &names].concat();
    let joining = ["--controller", selvage.address(), "--join-file", &token];
    let home = directory.path().join("crm");
    std::fs::create_dir(&home).unwrap();
    let mut crm = Selvage::start("crm", &home, &[&joining[..], &flags].concat());

    cloudlet::furnish_here(&cli, "site");
    let image = format!("file://{}", path("web.tar"));
    let of = ["--imagepath", &image, "--imagetype", "docker", "--deployment", "docker"];
    let needs = ["--accessports", "tcp:8080", "--defaultflavor", "s"];
    cli.ok(&[&["app", "create"][..], &APP, &of, &needs].concat());
    cli.ok(&[&["appinst", "create"][..], &APP, &PLACE].concat());
    let place = SocketAddr::from(([10, 102, 1, 1], 8080));
    assert!(fetch(place).unwrap().contains("joined"));

    // It answers for its own zone, with what it sees itself.
    let name = "autoclusterweb.site.op.shop.example";
    let lookup = |crm: &Selvage| {
        let server = crm.ready()["addresses"]["dns"].as_str().unwrap().to_owned();
        Cli::new().run(&["dns", "lookup", "--server", &server, name]).stdout
    };
    wait_for("the name", || (lookup(&crm) == "10.102.1.1\n").then_some(()));

    versions_are_listed_shown_and_rolled_back(&cli, directory.path(), place);

    // The crm comes back without the token.
    crm.kill();
    assert_eq!(fetch(place), None, "nobody leads there any more");
    let crm = Selvage::start("crm", &home, &flags);
    assert!(fetch(place).unwrap().contains("joined"), "{}", crm.log());
    assert_eq!(lookup(&crm), "10.102.1.1\n", "known from the start");

    // Of other files on its machine nobody hears whether there are any.
    for (name, file) in [("other", "file:///etc/passwd"), ("none", "file:///etc/no-such-file")] {
        let app = ["--developer", "acme", "--appname", name, "--appvers", "1"];
        let of = ["--imagepath", file, "--imagetype", "docker", "--deployment", "docker"];
        cli.ok(&[&["app", "create"][..], &app, &of, &needs].concat());
        let place = [&PLACE[..4], &["--cluster", "autoclusterother"]].concat();
        let printed = cli.run(&[&["appinst", "create"][..], &app, &place].concat());
        assert!(
            printed.code != 0 && printed.stderr.contains("crm.image_folders"),
            "{file}: {printed:?}"
        );
    }

    cli.ok(&[&["appinst", "delete", "--yes"][..], &APP, &PLACE].concat());
    assert_eq!(fetch(place), None);
    let links = std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&links.stdout).contains("10.102."), "a bridge is left");
}
