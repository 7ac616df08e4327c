//! A machine with nothing but an sshd becomes a cluster and is given back as it came.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::Command,
};

use selvage_components::machine::{self, Launcher, Machine, Settings};
use selvage_tests::{process::binary, real};

use crate::{
    joined::remove,
    site::{Site, kill},
};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 231, 78, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 231, 78, 2);
/// Directory of the agent on the machine.
const DIRECTORY: &str = "/var/lib/selvage-kaas";

/// A machine whose only process is an sshd. Removed when dropped.
struct Bare {
    launcher: Launcher,
    name: String,
}

impl Bare {
    async fn start(folder: &Path, name: String) -> Self {
        let launcher = Launcher::new(Settings {
            root: folder.join("bare"),
            program: binary(),
            bridge: format!("slvs{}", std::process::id()),
            gateway: GATEWAY,
        });
        let config = folder.join("sshd_config");
        let at = folder.display();
        let text = format!(
            "HostKey {at}/host\nPidFile none\nUsePAM no\nAuthorizedKeysFile {at}/client.pub\n\
             StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        );
        fs::write(&config, text).unwrap();
        let sshd = format!("mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f {}", config.display());
        let machine = Machine {
            name: name.clone(),
            address: ADDRESS,
            command: ["/bin/sh", "-c", &sshd].map(str::to_owned).to_vec(),
            environment: [].into(),
            visible: Vec::new(),
        };
        launcher.start(&machine).await.unwrap();
        Self { launcher, name }
    }

    /// Runs a script in the machine; all that it prints.
    fn run(&self, script: &str) -> String {
        let root = self.launcher.inside(&self.name, "").unwrap();
        let pid = root.iter().nth(2).unwrap();
        let mut command = Command::new("nsenter");
        command.arg("-t").arg(pid).args(["-m", "-n", "-p", "--", "sh", "-c", script]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    }

    /// Mount points of the machine, with those that it has of its host.
    fn mounts(&self) -> Vec<String> {
        let table = self.run("cat /proc/self/mountinfo");
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.map(str::to_owned).collect()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        remove(&self.launcher, &self.name);
    }
}

/// Makes the keys of the machine and of the controller, and tells where the machine is.
fn settings(folder: &Path, name: &str) -> Vec<String> {
    for key in ["host", "client"] {
        let path = folder.join(key);
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path);
        assert!(make.status().unwrap().success());
    }
    let public = fs::read_to_string(folder.join("host.pub")).unwrap();
    let public: Vec<&str> = public.split(' ').take(2).collect();
    let (key, group) = (public.join(" "), machine::cgroup(name));
    vec![
        format!("kaas.ssh.key_file={}", folder.join("client").display()),
        format!(
            "kaas.ssh.machines={{rack1={{address=\"{ADDRESS}\",host_keys=[\"{ADDRESS} {key}\"]}}}}"
        ),
        format!("kaas.ssh.agent={{node={{cgroup=\"{group}\"}}}}"),
    ]
}

/// The agent on the machine, as the host numbers it.
fn agent(bare: &Bare) -> Option<i32> {
    let line = format!("{DIRECTORY}/selvage\0node\0");
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        command.starts_with(&line) && group.contains(&bare.name)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_machine_becomes_a_cluster_by_ssh_and_is_given_back() {
    let name = format!("bare-{}", std::process::id());
    let port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port().to_string();
    let (names, controller) =
        (format!("tls.names=[\"{GATEWAY}\"]"), format!("kaas.ssh.controller={GATEWAY}:{port}"));
    let own = ["kaas.provider=ssh", "listen.address=0.0.0.0", &names, &controller];
    let keys = |folder: &Path| settings(folder, &name);
    let Some(mut site) = Site::with_flags(&["--port", &port], &own, keys) else { return };
    let bare = Bare::start(site.folder(), name.clone()).await;
    site.cli.ok(&["kaas", "create", "edge", "--kubernetes", real::KUBERNETES]);
    // The controller is killed while it copies its program.
    site.until("a program that is copied", || match site.cli.ok(&["kaas", "nodes", "edge"]) {
        nodes if nodes.contains("copying the program") => Ok(()),
        nodes => Err(nodes),
    });
    let mounts = bare.mounts();
    site.without_controller(|_| {});
    site.is_running("edge");
    let ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
    site.shows(&["get", "nodes", "-o", ready], "True");

    // The agent is started again by what stays beside it.
    let before = agent(&bare).expect("an agent");
    kill(before);
    site.until("another agent", || match agent(&bare) {
        Some(now) if now != before => Ok(()),
        other => Err(format!("{other:?} after {before}")),
    });
    site.cli.ok(&["kaas", "rotate-certificates", "edge", "--wait"]);
    site.shows(&["get", "nodes", "-o", ready], "True");

    site.cli.ok(&["kaas", "delete", "edge", "--yes", "--wait"]);
    assert_eq!(agent(&bare), None);
    let places = "/var/lib/kubelet /var/log/pods /run/selvage";
    let left = bare.run(&format!("ls -d {DIRECTORY} {places}"));
    assert_eq!(left.matches("No such file").count(), 4, "{left}");
    assert_eq!(bare.run("nft list ruleset").trim(), "");
    assert_eq!(bare.run("ip -o link").lines().count(), 2, "{}", bare.run("ip -o link"));
    assert_eq!(bare.mounts(), mounts);
    let machines = site.cli.ok(&["machine", "list"]);
    assert!(!machines.contains("rack1"), "{machines}");
}
