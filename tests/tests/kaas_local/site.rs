//! A host with machines of its own, with nothing left of them afterwards.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::Pid};
use selvage_tests::{Selvage, cloudlet, process::Cli, real};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// An image that every machine of a test has.
pub(crate) const IMAGE: &str = "localhost/busybox:1";
/// Longest wait for one thing.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest wait for something that goes from machine to machine.
pub(crate) const ROUND: Duration = Duration::from_secs(900);
/// One that serves a page at port 8080.
pub(crate) const WEB: &str = "localhost/web:1";

/// The whole system with the provider `local`.
pub(crate) struct Site {
    pub(crate) selvage: Option<Selvage>,
    pub(crate) cli: Cli,
    folder: tempfile::TempDir,
    flags: Vec<String>,
    kubectl: PathBuf,
}

impl Site {
    /// Starts it; `None` where the host cannot.
    pub(crate) fn open(machines: u32) -> Option<Self> {
        let machines = format!("kaas.local.machines={machines}");
        Self::with(&["kaas.provider=local", &machines])
    }

    /// Starts it with these settings; `None` where the host cannot.
    pub(crate) fn with(settings: &[&str]) -> Option<Self> {
        Self::with_files(settings, |_| Vec::new())
    }

    /// The same with more settings, which follow from files in its folder.
    pub(crate) fn with_files(
        settings: &[&str],
        files: impl FnOnce(&Path) -> Vec<String>,
    ) -> Option<Self> {
        Self::with_flags(&[], settings, files)
    }

    /// The same with flags of its own.
    pub(crate) fn with_flags(
        flags: &[&str],
        settings: &[&str],
        files: impl FnOnce(&Path) -> Vec<String>,
    ) -> Option<Self> {
        let programs = real::kubernetes()?;
        let folder = tempfile::Builder::new().prefix("slv").tempdir().unwrap();
        let more = files(folder.path());
        let artifacts = artifacts(folder.path(), &programs);
        let own =
            [format!("kaas.artifacts={}", artifacts.display()), "kaas.health_period=1s".into()];
        let all = settings.iter().map(|setting| (*setting).to_owned()).chain(own).chain(more);
        let set = all.flat_map(|setting| ["--set".to_owned(), setting]);
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).chain(set).collect();
        let selvage = up(folder.path(), &flags);
        let cli = Cli::admin_of(&selvage);
        let kubectl = programs.join(real::KUBERNETES).join("kubectl");
        Some(Self { selvage: Some(selvage), cli, folder, flags, kubectl })
    }

    /// Machines of a cluster: name, pool, address, and name at the provider.
    pub(crate) fn members(&self, cluster: &str) -> Vec<[String; 4]> {
        let shown = self.cli.json(&["kaas", "show", cluster, "-o", "json"]);
        let text = |machine: &Value, names: [&str; 2]| {
            let found = names.iter().find_map(|name| machine[*name].as_str());
            found.unwrap_or_default().to_owned()
        };
        let member = |machine: &Value| {
            [
                text(machine, ["name", "name"]),
                text(machine, ["pool", "pool"]),
                text(machine, ["address", "address"]),
                text(machine, ["provider_id", "providerId"]),
            ]
        };
        shown["machines"].as_array().unwrap().iter().map(member).collect()
    }

    /// Folder of a machine of this host.
    pub(crate) fn machine_folder(&self, name: &str) -> PathBuf {
        self.data().join("machines").join(name)
    }

    /// Folder that is gone after the test.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the controller and starts another one after the work is done.
    pub(crate) fn without_controller(&mut self, work: impl FnOnce(&Self)) {
        self.selvage.take().unwrap().kill();
        work(self);
        let selvage = up(self.folder.path(), &self.flags);
        self.cli = Cli::admin_of(&selvage);
        self.selvage = Some(selvage);
    }

    /// Runs kubectl by `selvage kubectl`; what it prints, or what went wrong.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, None)
    }

    pub(crate) fn kubectl_with(
        &self,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<String, String> {
        let all = [&["kubectl", "--", "--request-timeout=20s"], arguments].concat();
        let variables = [("SELVAGE_KUBECTL", self.kubectl.to_str().unwrap())];
        let printed = self.cli.run_with(&all, &variables, input);
        if printed.code == 0 { Ok(printed.stdout) } else { Err(printed.stderr) }
    }

    /// Path of kubectl itself.
    pub(crate) fn kubectl_program(&self) -> &Path {
        &self.kubectl
    }

    /// Runs kubectl by a kubeconfig in a file, without the controller.
    pub(crate) fn kubectl_by(&self, config: &Path, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.kubectl)
            .env("HOME", self.cli.home())
            .args(["--request-timeout=20s", "--kubeconfig"])
            .arg(config)
            .args(arguments)
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Makes objects, as soon as the cluster lets us.
    pub(crate) fn apply(&self, manifest: &str) {
        self.until("objects", || self.kubectl_with(&["apply", "-f", "-"], Some(manifest)));
    }

    /// Waits until kubectl prints this.
    pub(crate) fn shows(&self, arguments: &[&str], expected: &str) {
        self.until(expected, || match self.kubectl(arguments)? {
            printed if printed.trim() == expected => Ok(()),
            other => Err(other),
        });
    }

    /// Waits until something is so; says what was seen last if it never is.
    pub(crate) fn until<T>(&self, what: &str, look: impl FnMut() -> Result<T, String>) -> T {
        self.until_within(what, LIMIT, look)
    }

    /// The same with another limit, for what goes through many machines.
    pub(crate) fn until_within<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> T {
        let deadline = Instant::now() + limit;
        loop {
            match look() {
                Ok(found) => return found,
                Err(seen) if Instant::now() > deadline => {
                    panic!("waited in vain for {what:?}: {seen}")
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits for the status of a cluster.
    pub(crate) fn is_running(&self, cluster: &str) {
        self.until("a cluster that runs", || {
            let printed = self.cli.run(&["kaas", "show", cluster]);
            match printed.stdout.contains("RUNNING") {
                true => Ok(()),
                false => Err(format!("{printed:?}")),
            }
        });
    }

    /// Machines of this host: their names, and their first processes.
    pub(crate) fn machines(&self) -> Vec<(String, i32)> {
        machines(&self.data())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Main process of a component on the machine, as the host numbers it.
    pub(crate) fn process(&self, machine: &str, component: &str) -> Option<i32> {
        process(machine, component)
    }

    /// Processes of this name in pods of the machines.
    pub(crate) fn pods(&self, program_name: &str) -> Vec<i32> {
        let prefix = prefix(&self.data());
        let own = processes().filter(|(_, group)| group.contains(&prefix));
        let mut found: Vec<i32> = own
            .filter(|(_, group)| group.contains("/pods/"))
            .map(|(pid, _)| pid)
            .filter(|pid| program(*pid).as_deref() == Some(program_name))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Looks for what may be left after the last cluster is gone.
    pub(crate) fn close(self) {
        let (data, prefix) = (self.data(), prefix(&self.data()));
        assert!(!data.join("machines").exists(), "{:?}", machines(&data));
        let links = output("ip", &["-o", "link"]);
        assert!(!links.contains(&format!("slvb{prefix}")), "{links}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(data.to_str().unwrap()), "{mounts}");
        let left: Vec<_> = processes().filter(|(_, group)| group.contains(&prefix)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(groups(&prefix), [] as [PathBuf; 0]);
    }

    /// Sees that what [`Site::close`] looks for is there.
    pub(crate) fn has_machines(&self) {
        let prefix = prefix(&self.data());
        assert!(output("ip", &["-o", "link"]).contains(&format!("slvb{prefix}")));
        assert!(processes().any(|(_, group)| group.contains(&prefix)));
        assert!(!groups(&prefix).is_empty());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // After a failure: nothing of it may stay.
        self.selvage.take();
        for (_, pid) in machines(&self.data()) {
            kill(pid);
        }
        let prefix = prefix(&self.data());
        // Processes take a moment to end, and groups with processes stay.
        for _ in 0..100 {
            let left = groups(&prefix);
            if left.is_empty() {
                break;
            }
            for folder in left {
                let all = ["-depth", "-type", "d", "-delete"];
                let _ = Command::new("find").arg(&folder).args(all).output();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = Command::new("ip").args(["link", "delete", &format!("slvb{prefix}")]).output();
    }
}

fn up(folder: &Path, flags: &[String]) -> Selvage {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Selvage::up_in(folder, &flags)
}

/// A folder with all programs, and an image for pods.
fn artifacts(folder: &Path, programs: &Path) -> PathBuf {
    let artifacts = folder.join("artifacts");
    let images = artifacts.join("images");
    fs::create_dir_all(&images).unwrap();
    for entry in fs::read_dir(programs).unwrap().flatten() {
        std::os::unix::fs::symlink(entry.path(), artifacts.join(entry.file_name())).unwrap();
    }
    let image = cloudlet::busybox(&["sh", "sleep", "cat", "echo", "httpd", "nc"]);
    image.command(["/bin/sh"]).write(IMAGE, &images.join("busybox.tar")).unwrap();
    let image = cloudlet::busybox(&["sh", "httpd"]);
    let image = image.command(["/bin/httpd", "-f", "-p", "8080", "-h", "/www"]);
    let image = image.file("www/index.html", 0o644, b"hello").unwrap();
    image.write(WEB, &images.join("web.tar")).unwrap();
    artifacts
}

/// Part that the names of machines, bridge and control groups share.
fn prefix(data: &Path) -> String {
    hex::encode(&Sha256::digest(data.as_os_str().as_encoded_bytes())[..4])
}

fn machines(data: &Path) -> Vec<(String, i32)> {
    let folders = fs::read_dir(data.join("machines")).into_iter().flatten().flatten();
    let mut found: Vec<(String, i32)> = folders
        .filter_map(|entry| {
            let text = fs::read(entry.path().join("process.json")).ok()?;
            let process: Value = serde_json::from_slice(&text).ok()?;
            let pid = i32::try_from(process["pid"].as_i64()?).ok()?;
            Some((entry.file_name().into_string().ok()?, pid))
        })
        .collect();
    found.sort();
    found
}

/// The agent of a machine, a child of its first process.
pub(crate) fn agent(first: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
    let mut numbers = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    // The machine's lvmd is the same program.
    numbers.find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        program(*pid).as_deref() == Some("selvage") && line.split('\0').nth(1) == Some("node")
    })
}

/// Main process of a component on the machine, as the host numbers it.
pub(crate) fn process(machine: &str, component: &str) -> Option<i32> {
    let group = format!("{machine}/system/{component}");
    let own = processes().filter(|(_, own)| own.ends_with(&group));
    own.map(|(pid, _)| pid).filter(|pid| program(*pid).as_deref() == Some(component)).min()
}

pub(crate) fn kill(pid: i32) {
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// All processes of the host, with a control group of each in every hierarchy.
fn processes() -> impl Iterator<Item = (i32, String)> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.flat_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let groups = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        groups.map(|group| (pid, group.to_owned())).collect::<Vec<_>>()
    })
}

/// File name of the program that a process runs.
fn program(pid: i32) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let path = Path::new(line.split('\0').next()?);
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Control groups of machines whose name holds a text.
fn groups(text: &str) -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let roots = hierarchies.map(|entry| entry.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    roots
        .flat_map(|root| {
            fs::read_dir(root.join("selvage-machines")).into_iter().flatten().flatten()
        })
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && path.to_string_lossy().contains(text))
        .collect()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
