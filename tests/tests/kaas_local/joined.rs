//! A machine that joined the controller becomes a cluster and is given back as it
//! came.

use std::{fs, net::Ipv4Addr, os::unix::fs::symlink, path::Path, process::Command};

use selvage_components::machine::{self, Launcher, Machine, Settings};
use selvage_tests::{process::binary, real};

use crate::site::{IMAGE, Site};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 231, 77, 2);

/// A machine on a network with the controller. Removed when dropped.
struct Lab {
    launcher: Launcher,
    name: String,
}

impl Lab {
    async fn start(site: &Site) -> Self {
        let own = std::process::id();
        let launcher = Launcher::new(Settings {
            root: site.folder().join("joined"),
            program: binary(),
            bridge: format!("slvj{own}"),
            gateway: GATEWAY,
        });
        let lab = Self { launcher, name: format!("joined-{own}") };
        let machine = Machine {
            command: command(site, &lab.name),
            name: lab.name.clone(),
            address: ADDRESS,
            environment: [].into(),
            visible: Vec::new(),
        };
        lab.launcher.start(&machine).await.unwrap();
        lab
    }

    /// Runs a command in the machine.
    fn enter(&self, arguments: &[&str]) -> String {
        let root = self.launcher.inside(&self.name, "").unwrap();
        let pid = root.iter().nth(2).unwrap();
        let output = Command::new("nsenter")
            .arg("-t")
            .arg(pid)
            .args(["-m", "-n", "--"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        remove(&self.launcher, &self.name);
    }
}

/// Removes a machine, from wherever a test ended.
pub(crate) fn remove(launcher: &Launcher, name: &str) {
    let remove = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let removed = runtime.unwrap().block_on(launcher.remove(name));
        if let Err(error) = removed {
            eprintln!("{name}: {error}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(remove);
    });
}

/// Kubernetes' programs and images, and neither etcd nor CoreDNS: those have to
/// come from the controller.
fn programs(folder: &Path) -> String {
    let (all, own) = (folder.join("artifacts"), folder.join("own"));
    fs::create_dir_all(own.join("etcd")).unwrap();
    for name in [real::KUBERNETES, "images"] {
        symlink(all.join(name), own.join(name)).unwrap();
    }
    own.display().to_string()
}

fn command(site: &Site, name: &str) -> Vec<String> {
    let token = site.cli.json(&["join-token", "create", &format!("node/{name}"), "-o", "json"]);
    let file = site.folder().join("token");
    fs::write(&file, token["token"].as_str().unwrap()).unwrap();
    let port = site.selvage.as_ref().unwrap().address().rsplit_once(':').unwrap().1.to_owned();
    let settings = [
        "node.kubernetes=true".to_owned(),
        format!("node.cgroup={}", machine::cgroup(name)),
        format!("node.artifacts={}", programs(site.folder())),
        "join.report_interval=1s".to_owned(),
    ];
    let fixed = [
        binary().display().to_string(),
        "node".into(),
        "--data=/var/lib/selvage".into(),
        format!("--address={ADDRESS}"),
        "--port=7700".into(),
        format!("--controller={GATEWAY}:{port}"),
        format!("--join-file={}", file.display()),
        "--label=kaas=free".into(),
    ];
    let set = settings.into_iter().map(|setting| format!("--set={setting}"));
    fixed.into_iter().chain(set).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_joined_becomes_a_cluster_and_is_given_back() {
    let names = format!("tls.names=[\"{GATEWAY}\"]");
    let settings = ["kaas.provider=agents", "listen.address=0.0.0.0", &names];
    let Some(site) = Site::with(&settings) else { return };
    let lab = Lab::start(&site).await;
    let links = |lab: &Lab| lab.enter(&["ip", "-o", "link"]).lines().count();
    site.until("a machine on offer", || {
        let planned = site.cli.run(&["kaas", "create", "edge", "--kubernetes", real::KUBERNETES]);
        if planned.code == 0 { Ok(()) } else { Err(planned.stderr) }
    });
    site.is_running("edge");
    assert_eq!(links(&lab), 2);
    site.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: first}}, spec: {{containers: \
         [{{name: first, image: '{IMAGE}', command: [sh, -c, 'echo hello; sleep 100000']}}]}}}}"
    ));
    site.shows(&["logs", "first"], "hello");
    assert!(links(&lab) > 2, "a pod has a link of its own");
    let rules = lab.enter(&["nft", "list", "ruleset"]);
    assert!(rules.contains("table"), "{rules}");
    for (folder, program) in [("etcd/3.6.8", "etcd"), ("coredns/1.14.2", "coredns")] {
        let sent = lab.enter(&["ls", &format!("/var/lib/selvage/artifacts/{folder}")]);
        assert_eq!(sent.trim(), program);
    }

    site.cli.ok(&["kaas", "delete", "edge", "--yes", "--wait"]);
    let rules = lab.enter(&["nft", "list", "ruleset"]);
    assert!(rules.trim().is_empty(), "{rules}");
    assert_eq!(links(&lab), 2, "{}", lab.enter(&["ip", "-o", "link"]));
    let mounts = lab.enter(&["cat", "/proc/self/mountinfo"]);
    assert!(!mounts.contains("/kubelet") && !mounts.contains("netns"), "{mounts}");
    let places = ["/var/lib/kubelet", "/var/lib/selvage/kubernetes", "/var/log/pods"];
    let left = lab.enter(&[&["ls", "-d"], &places[..]].concat());
    assert_eq!(left.matches("No such file").count(), places.len(), "{left}");
    // Another cluster may have it now.
    site.cli.ok(&["kaas", "create", "again", "--kubernetes", real::KUBERNETES, "--wait"]);
    site.cli.ok(&["kaas", "delete", "again", "--yes", "--wait"]);
}
