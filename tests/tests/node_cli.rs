//! `selvage node` against the agent that `selvage up` runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use selvage_api::Code;
use selvage_tests::{Selvage, process::Cli};

fn columns(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn this_machine_is_seen() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);

    let memory = cli.ok(&["node", "memory"]);
    let lines: Vec<&str> = memory.lines().collect();
    assert_eq!(
        lines[0].split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>(),
        ["NODE", "TOTAL", "USED", "FREE", "SHARED", "BUFFERS", "CACHE", "AVAILABLE"]
    );
    let total: u64 = columns(lines[1])[1].parse().unwrap();
    assert!(total > 0, "{memory}");

    let processes = cli.json(&["node", "processes", "-o", "json"]);
    let own = processes["messages"][0]["processes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|process| process["pid"] == selvage.pid())
        .expect("the agent sees itself");
    assert!(own["args"].as_str().unwrap().contains("up"), "{own}");

    let version = cli.ok(&["node", "version"]);
    assert!(version.starts_with("Client:\n\tTag:") && version.contains("Server:\n\tNODE:"));
    assert!(cli.ok(&["node", "mounts"]).starts_with("NODE"));
    assert!(cli.ok(&["node", "interfaces"]).contains("lo"));
}

/// Whoever runs the agent, with the rest or alone: root of the same machine
/// needs no login, and nobody but root gets in that way.
#[test]
fn root_of_the_machine_needs_no_login() {
    use std::os::unix::fs::PermissionsExt;
    for selvage in [Selvage::up(&[]), Selvage::part("node", &[])] {
        let socket = selvage.ready()["sockets"]["node"].as_str().unwrap();
        assert_eq!(selvage.data().join("run/node.sock").to_str(), Some(socket));
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(socket.as_ref()), mode(&selvage.data().join("run"))), (0o600, 0o700));
        let stranger = Cli::new();
        let endpoint = format!("unix://{socket}");
        let memory = stranger.ok(&["node", "memory", "--endpoint", &endpoint]);
        assert_eq!(columns(memory.lines().nth(1).unwrap())[0], "localhost", "{memory}");
        let who = "selvage.identity.IdentityService/WhoAmI";
        let who = stranger.json(&["call", who, "--endpoint", &endpoint, "-o", "json"]);
        assert_eq!(who["kind"], "local");
    }
}

#[test]
fn files_are_listed_read_and_fetched() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("inner")).unwrap();
    std::fs::write(source.path().join("inner/file"), "content\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.path().join("out")).unwrap();
    let path = source.path().to_str().unwrap();

    let listed = cli.ok(&["node", "ls", "-r", path]);
    assert!(listed.lines().any(|line| line == "inner/file"), "{listed}");
    let file = format!("{path}/inner/file");
    assert_eq!(cli.ok(&["node", "cat", &file]), "content\n");

    let target = cli.home().join("fetched");
    let printed = cli.run(&["node", "cp", path, target.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(target.join("inner/file")).unwrap(), "content\n");
    // A link that leads out is not made here, and that is told.
    assert!(!target.join("out").is_symlink());
    assert_eq!(printed.code, i32::from(Code::FailedPrecondition.exit()), "{printed:?}");
    assert!(printed.stderr.contains("out is left out"), "{printed:?}");
}

#[test]
fn what_fails_says_so_in_the_exit_code() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let here = selvage.address();

    let printed = cli.run(&["node", "memory", "-n", &format!("{here},127.0.0.1:1")]);
    assert_eq!(printed.code, 0, "{printed:?}");
    assert!(printed.stderr.contains("warning: 127.0.0.1:1: rpc error"), "{printed:?}");

    // Nobody looks through us for what answers where.
    let printed = cli.run(&["node", "memory", "-n", "127.0.0.1:1"]);
    assert_eq!(printed.code, i32::from(Code::NotFound.exit()), "{printed:?}");

    let printed = cli.run(&["node", "reboot", "--yes"]);
    assert_eq!(printed.code, i32::from(Code::FailedPrecondition.exit()), "{printed:?}");

    let printed = cli.run(&["node", "top"]);
    assert_eq!(printed.code, i32::from(Code::InvalidArgument.exit()), "{printed:?}");
}
