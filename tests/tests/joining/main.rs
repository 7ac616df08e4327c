//! Machines that join a controller, each a process of its own, over real TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod containers;
mod lab;

use std::{fs, path::Path};

use lab::Lab;
use selvage_api::{
    Code,
    selvage::identity::{JoinRequest, identity_service_client::IdentityServiceClient},
};
use selvage_tests::{
    Client, Selvage,
    process::{Cli, wait_for},
};

/// The machines in the first column of a table.
fn first_column(table: &str) -> Vec<&str> {
    table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

/// The endpoint of the socket that an agent's own root uses.
fn socket(agent: &Selvage) -> String {
    format!("unix://{}", agent.ready()["sockets"]["node"].as_str().unwrap())
}

fn ca_of(agent: &Selvage) -> String {
    agent.ready()["ca"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_machine_that_joined_is_an_entry_to_all() {
    let lab = Lab::new();
    let a = lab.join("a", &["--label", "rack=3", "--label", "role=worker"]);
    let b = lab.join("b", &["--label", "rack=4"]);
    lab.known(&["a", "b"]);

    // By way of the controller.
    let memory = lab.admin.ok(&["node", "memory", "-n", "b,a"]);
    assert_eq!(first_column(&memory), ["b", "a"], "{memory}");
    let chosen = lab.admin.ok(&["node", "-l", "rack=3,role=worker", "memory"]);
    assert_eq!(first_column(&chosen), ["a"], "{chosen}");
    let others = lab.admin.ok(&["node", "memory", "--selector", "rack!=3"]);
    assert!(first_column(&others).contains(&"b") && !first_column(&others).contains(&"a"));
    let all = lab.admin.ok(&["node", "memory", "-n", "all"]);
    assert_eq!(first_column(&all).len(), 3, "the controller's own machine too: {all}");
    let none = lab.admin.run(&["node", "memory", "-n", "rack=9"]);
    assert_eq!(none.code, i32::from(Code::NotFound.exit()), "{none:?}");

    // By way of any of them, with the session that the controller gave.
    let token = Client::admin(&lab.controller).await.token.unwrap();
    for agent in [&a, &b] {
        let person = Cli::new();
        let (endpoint, ca) = (agent.endpoint(), ca_of(agent));
        let way = ["--endpoint", endpoint, "--ca", &ca];
        let variables = [("SELVAGE_TOKEN", token.as_str())];
        wait_for("the agents to know each other", || {
            let line = [&way[..], &["node", "memory", "-n", "a,b"]].concat();
            let printed = person.run_with(&line, &variables, None);
            (first_column(&printed.stdout) == ["a", "b"]).then_some(())
        });
        // To change something, too: it is these machines that refuse, both of them.
        let line = [&way[..], &["node", "reboot", "--yes", "-n", "a,b"]].concat();
        let printed = person.run_with(&line, &variables, None);
        assert_eq!(printed.code, i32::from(Code::FailedPrecondition.exit()), "{printed:?}");
        assert_eq!(printed.stderr.matches("reboot is refused").count(), 2, "{printed:?}");
        let stranger = [("SELVAGE_TOKEN", "slv_nobody")];
        let line = [&way[..], &["node", "memory"]].concat();
        let printed = person.run_with(&line, &stranger, None);
        assert_eq!(printed.code, i32::from(Code::Unauthenticated.exit()), "{printed:?}");
    }
    let printed = lab.admin.run(&["node", "reboot", "--yes", "-n", "a"]);
    assert_eq!(printed.code, i32::from(Code::FailedPrecondition.exit()), "{printed:?}");
}

#[test]
fn a_machine_that_joined_needs_neither_token_nor_controller_to_start() {
    let mut lab = Lab::new();
    let (mut a, b) = (lab.join("a", &[]), lab.join("b", &[]));
    lab.known(&["a", "b"]);
    let root = Cli::new();
    let line = ["--endpoint", &socket(&b), "node", "memory", "-n", "a,b"].map(str::to_owned);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    // Root has this machine by its socket, and no other: nobody vouches for root.
    wait_for("b to know a", || {
        let printed = root.run(&line);
        let refusal = printed.stderr.contains("a: rpc error: code = PermissionDenied");
        (refusal && first_column(&printed.stdout) == ["b"]).then_some(())
    });

    lab.controller.kill();
    a.kill();
    fs::remove_file(lab.place.path().join("a/token")).unwrap();
    let a = lab.again("a");
    assert!(a.log().contains("as node/a"), "{}", a.log());
    let memory = root.ok(&["--endpoint", &socket(&a), "node", "memory"]);
    assert_eq!(first_column(&memory).len(), 1, "{memory}");
    // The port is another now, and only the controller could tell b so: nobody
    // looks through b for what answers where.
    let printed = root.run(&["--endpoint", &socket(&b), "node", "memory", "-n", a.address()]);
    assert_eq!(printed.code, i32::from(Code::NotFound.exit()), "{printed:?}");
    // People are known to the controller alone.
    let ca = ca_of(&a);
    let person = ["--endpoint", a.endpoint(), "--ca", &ca, "node", "memory"];
    let printed = root.run_with(&person, &[("SELVAGE_TOKEN", "slv_any")], None);
    assert_eq!(printed.code, i32::from(Code::Unavailable.exit()), "{printed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_invitations_are_refused() {
    let lab = Lab::new();
    let spent = lab.token("a", &[]);
    let (directory, file) = lab.machine("a", &spent);
    let join = ["--controller", lab.controller.address(), "--join-file", &file];
    let _a = Selvage::start("node", &directory, &join);
    let refusal = lab.refused("twice", &spent, &[]);
    assert!(refusal.contains("used already"), "{refusal}");

    let late = lab.token("late", &["--ttl", "1s"]);
    let nobody = Client::anonymous(&lab.controller).await;
    loop {
        // What cannot be signed leaves a token as it is.
        let request = JoinRequest { token: late.clone(), csr: "x".into() };
        let mut identity = IdentityServiceClient::new(nobody.channel.clone());
        if identity.join(request).await.unwrap_err().message().contains("expired") {
            break;
        }
    }
    let refusal = lab.refused("late", &late, &[]);
    assert!(refusal.contains("expired"), "{refusal}");

    // Whoever is not the one that the token names is not told it.
    let good = lab.token("b", &[]);
    let refusal = lab.refused("b", &good, &["--ca-sha256", &"ab".repeat(32)]);
    assert!(refusal.contains("not the one with the fingerprint"), "{refusal}");
    let other = Selvage::up(&[]);
    let ca = other.ready()["ca"].as_str().unwrap();
    lab.refused("b", &good, &["--ca", ca]);
    let bare = good.split_once('.').unwrap().0;
    let refusal = lab.refused("b", bare, &[]);
    assert!(refusal.contains("nothing says which CA to trust"), "{refusal}");
    for refusal in
        [refusal, lab.refused("c", "slvj_nonsense", &["--ca", &ca_file(&lab.controller)])]
    {
        assert!(!refusal.contains("slvj_"), "{refusal}");
    }
    let (directory, file) = lab.machine("b", &good);
    let join = ["--controller", lab.controller.address(), "--join-file", &file];
    let _b = Selvage::start("node", &directory, &join);
}

fn ca_file(selvage: &Selvage) -> String {
    selvage.ready()["ca"].as_str().unwrap().to_owned()
}

#[test]
fn a_token_does_not_stay_on_the_command_line() {
    let lab = Lab::new();
    let token = lab.token("a", &[]);
    let directory = lab.place.path().join("a");
    fs::create_dir_all(&directory).unwrap();
    let join = ["--controller", lab.controller.address(), "--join", &token];
    let agent = Selvage::start("node", &directory, &join);
    let line = fs::read(format!("/proc/{}/cmdline", agent.pid())).unwrap();
    let line = String::from_utf8(line).unwrap();
    assert!(line.contains("--controller") && !line.contains("slvj_"), "{line}");
    assert!(!holds(&lab.place.path().join("a"), "slvj_"), "kept in a file");
    assert!(!agent.log().contains("slvj_"));
}

/// Returns whether any file below holds the text.
fn holds(directory: &Path, text: &str) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, text),
            false => fs::read(&path).is_ok_and(|bytes| {
                bytes.windows(text.len()).any(|window| window == text.as_bytes())
            }),
        }
    })
}

/// Clients that can show a certificate and nothing else, at an agent itself.
#[test]
fn a_person_is_known_to_agents_by_certificate() {
    let lab = Lab::new();
    let a = lab.join("a", &[]);
    lab.known(&["a"]);
    let out = lab.place.path().join("own");
    let path = |name: &str| out.join(name).display().to_string();
    let place = out.display().to_string();
    let line = ["user", "cert", "create", "laptop", "--role", "operator:tmus", "--out", &place];
    lab.admin.ok(&line);
    let (cert, key, ca) = (path("person.crt"), path("person.key"), path("ca.crt"));
    let person = Cli::new();
    let run = |endpoint: &str, line: &[&str]| {
        let way = ["--endpoint", endpoint, "--ca", &ca, "--cert", &cert, "--key", &key];
        person.run(&[&way[..], line].concat())
    };
    for endpoint in [a.endpoint(), lab.controller.endpoint()] {
        let memory = run(endpoint, &["node", "memory"]);
        assert_eq!(memory.code, 0, "{memory:?}");
        // The role is an operator's, though the owner is an administrator.
        let file = run(endpoint, &["node", "cat", "/etc/hostname"]);
        assert_eq!(file.code, i32::from(Code::PermissionDenied.exit()), "{file:?}");
    }
    let who = run(lab.controller.endpoint(), &["whoami"]);
    assert!(who.stdout.contains("admin+laptop"), "{who:?}");

    let config = path("talosconfig");
    let line = ["node", "-n", a.address(), "talosconfig", "--role", "viewer", "--file", &config];
    lab.admin.ok(&line);
    let written = fs::read_to_string(&config).unwrap();
    assert!(written.contains(a.address()) && written.contains("crt:"), "{written}");

    lab.admin.ok(&["user", "cert", "block", "laptop"]);
    let now = run(lab.controller.endpoint(), &["node", "memory"]);
    assert_eq!(now.code, i32::from(Code::Unauthenticated.exit()), "{now:?}");
    // An agent believes the controller for a few seconds more.
    wait_for("the agent to refuse it", || {
        let printed = run(a.endpoint(), &["node", "memory"]);
        (printed.code == i32::from(Code::Unauthenticated.exit())).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_machine_is_refused_by_all() {
    let lab = Lab::new();
    let (_a, b) = (lab.join("a", &[]), lab.join("b", &[]));
    lab.known(&["a", "b"]);
    let (person, ca) = (Cli::new(), ca_of(&b));
    let token = Client::admin(&lab.controller).await.token.unwrap();
    let variables = [("SELVAGE_TOKEN", token.as_str())];
    let line = ["--endpoint", b.endpoint(), "--ca", &ca, "node", "memory", "-n", "a"];
    let ask = || person.run_with(&line, &variables, None);
    wait_for("b to know a", || (ask().code == 0).then_some(()));

    lab.admin.ok(&["machine", "block", "node/b"]);
    // The controller knows at once, the others as soon as they report.
    let printed = lab.admin.run(&["node", "memory", "-n", "b"]);
    assert_eq!(printed.code, i32::from(Code::FailedPrecondition.exit()), "{printed:?}");
    assert!(printed.stderr.contains("is blocked"), "{printed:?}");
    let all = lab.admin.ok(&["node", "memory", "-n", "all"]);
    assert!(!first_column(&all).contains(&"b"), "{all}");
    wait_for("nobody to be vouched for to b", || {
        let printed = ask();
        printed.stderr.contains("machine \"node/b\" is blocked").then_some(())
    });
    let refusal = lab.refused("b-again", &lab.token("b", &[]), &[]);
    assert!(refusal.contains("is blocked"), "{refusal}");
}

#[test]
fn flags_of_the_agent_before_a_command_are_an_error() {
    let printed = Cli::new().run(&["node", "--port", "1", "memory"]);
    assert_eq!(printed.code, 2, "{printed:?}");
    assert!(printed.stderr.contains("--port is for the daemon itself"), "{printed:?}");
}
