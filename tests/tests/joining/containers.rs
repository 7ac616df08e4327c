//! Containers of machines that joined, seen and steered through the
//! controller: on one machine without a daemon, on another in a containerd.

use std::{
    fs,
    path::{Path, PathBuf},
};

use selvage_runtime::{ContainerSpec, Runtime, containerd, oci};
use selvage_testkit::containers as real;
use selvage_tests::process::wait_for;

use crate::lab::Lab;

const NAMESPACE: &str = "selvage-joining";

/// Says when it begins, and ends when it is told to.
const SCRIPT: &str =
    "echo begun as $MACHINE; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

fn spec(machine: &str) -> ContainerSpec {
    ContainerSpec {
        id: "web".into(),
        image: real::IMAGE.into(),
        command: ["/bin/sh", "-c", SCRIPT].map(str::to_owned).into(),
        env: [("MACHINE".to_owned(), machine.to_owned())].into(),
        ..ContainerSpec::default()
    }
}

/// Runs to the end with nothing left of it in the background.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

async fn run(runtime: &dyn Runtime, machine: &str, place: &Path) {
    runtime.import(NAMESPACE, &real::image_tar(place), None).await.unwrap();
    runtime.create(NAMESPACE, spec(machine)).await.unwrap();
    runtime.start(NAMESPACE, "web").await.unwrap();
}

/// A container that no daemon runs, in the place where an agent will look. It
/// goes with this.
struct WithoutDaemon(PathBuf);

impl WithoutDaemon {
    fn start(machine: &str, data: &Path) -> Self {
        let here = Self(data.join("containers"));
        fs::create_dir_all(&here.0).unwrap();
        wait(async {
            let runtime = oci::Oci::open(oci::Options::new(&here.0)).await.unwrap();
            run(&runtime, machine, &here.0).await;
        });
        here
    }
}

impl Drop for WithoutDaemon {
    fn drop(&mut self) {
        let gone = wait(async {
            let runtime = oci::Oci::open(oci::Options::new(&self.0)).await?;
            runtime.delete(NAMESPACE, "web", true).await
        });
        if !std::thread::panicking() {
            gone.unwrap();
        }
    }
}

/// The same in a containerd of our own.
struct InContainerd(real::Containerd);

impl InContainerd {
    fn start(machine: &str) -> Option<Self> {
        let daemon = real::Containerd::start()?;
        wait(async {
            let runtime = containerd::Containerd::new(containerd::Options::new(daemon.socket()));
            real::wait_for("containerd", async || runtime.version().await.ok()).await;
            run(&runtime, machine, daemon.directory.path()).await;
        });
        Some(Self(daemon))
    }
}

impl Drop for InContainerd {
    fn drop(&mut self) {
        // Where an agent looks for them, wherever its containerd is.
        let logs = containerd::Options::new(self.0.socket()).logs.join(NAMESPACE);
        let _ = fs::remove_dir_all(logs);
    }
}

/// Machine, pid and state of every row of the table.
fn rows(table: &str) -> Vec<(String, u32, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((cells[1], cells[2]), (NAMESPACE, "web"), "{table}");
        (cells[0].to_owned(), cells[4].parse().unwrap(), cells[5].to_owned())
    };
    table.lines().skip(1).map(row).collect()
}

impl Lab {
    fn of_all(&self, command: &[&str]) -> String {
        let place = ["--namespace", NAMESPACE, "-n", "all"];
        self.admin.ok(&[&["node"], command, &place].concat())
    }

    fn containers(&self) -> Vec<(String, u32, String)> {
        rows(&self.of_all(&["containers"]))
    }
}

fn machines(rows: &[(String, u32, String)]) -> Vec<&str> {
    assert!(rows.iter().all(|(_, pid, state)| *pid > 0 && state == "RUNNING"), "{rows:?}");
    rows.iter().map(|(machine, ..)| machine.as_str()).collect()
}

#[test]
fn containers_of_all_machines_are_steered_through_the_controller() {
    if !real::can_run(&["runc"]) {
        return;
    }
    let Some(containerd) = InContainerd::start("b") else { return };
    let lab = Lab::of_controller_alone();
    let _without_daemon = WithoutDaemon::start("a", &lab.place.path().join("a/data"));
    let nowhere = lab.place.path().join("nothing");
    let sockets = |path: &Path| {
        let set = |name: &str| ["--set".to_owned(), format!("node.{name}={}", path.display())];
        ["containerd", "system_containerd", "cri"].map(set).concat()
    };
    let own = ["--set", "node.own_runtime=true", "--label", "runtime=own"].map(str::to_owned);
    let join = |name: &str, flags: &[String]| {
        lab.join(name, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut agent_a = join("a", &[&own[..], &sockets(&nowhere)].concat());
    let theirs = ["--label", "runtime=containerd"].map(str::to_owned);
    let _agent_b = join("b", &[&theirs[..], &sockets(&containerd.0.socket())].concat());
    lab.known(&["a", "b"]);

    let before = lab.containers();
    assert_eq!(machines(&before), ["a", "b"]);
    let line = ["node", "-l", "runtime=own", "containers", "--namespace", NAMESPACE];
    assert_eq!(machines(&rows(&lab.admin.ok(&line))), ["a"]);
    let stats = lab.of_all(&["stats"]);
    assert_eq!(crate::first_column(&stats), ["a", "b"], "{stats}");
    let mut logs: Vec<String> = lab.of_all(&["logs", "web"]).lines().map(str::to_owned).collect();
    logs.sort();
    assert_eq!(logs, ["a: begun as a", "b: begun as b"]);

    lab.of_all(&["restart", "web"]);
    let after = lab.containers();
    assert_eq!(machines(&after), ["a", "b"]);
    for (old, new) in before.iter().zip(&after) {
        assert_ne!(old.1, new.1, "{before:?} {after:?}");
    }
    // Of containerd the agent tells what the new process wrote as well.
    for machine in ["a", "b"] {
        wait_for("the new one's first word", || {
            let line = ["node", "logs", "web", "--namespace", NAMESPACE, "-n", machine];
            (lab.admin.ok(&line).matches("begun").count() == 2).then_some(())
        });
    }

    // What no daemon runs lives on without its agent, and is found again.
    agent_a.kill();
    let line = ["node", "containers", "--namespace", NAMESPACE, "-n", "b"];
    assert_eq!(machines(&rows(&lab.admin.ok(&line))), ["b"]);
    let flags = [&own[..], &sockets(&nowhere)].concat();
    let agent_a = lab.again_with("a", &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let found = wait_for("a to be back", || {
        let rows = lab.containers();
        (rows.len() == 2).then_some(rows)
    });
    assert_eq!(found, after);
    let refused = lab.admin.run(&["node", "restart", "nothing", "-n", "all"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    drop(agent_a);
}
