//! Images and container runtimes that suites run against. `./dev test` installs them.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

use crate::say_skipped;

/// Time anything may take before a test gives up.
pub use crate::TIMEOUT as TEST_TIMEOUT;
pub use crate::{find, skip, wait_for};

/// The image that every runtime is given.
pub const IMAGE: &str = "localhost/busybox:1";

/// Set where a test runs in a machine that was made for it.
pub const IN_MACHINE: &str = "SELVAGE_TEST_IN_MACHINE";

/// Runs a command on another kernel, with control groups of the unified kind
/// alone; says so loudly when that cannot be.
pub fn machine() -> Option<Command> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vm/run");
    for program in ["qemu-system-x86_64", "cpio"] {
        if find(program).is_none() {
            skip(program, "it is not installed: run ./dev test");
            return None;
        }
    }
    if std::env::var_os("SELVAGE_TEST_VM").is_none() {
        skip("a kernel", "SELVAGE_TEST_VM does not say where it is: run ./dev test");
        return None;
    }
    let mut command = Command::new(script);
    command.args(["-t", "900", "--"]).env(IN_MACHINE, "1");
    Some(command)
}

/// The files below a directory that have a loop device.
pub fn loop_devices(below: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    let files = files.map(|file| PathBuf::from(file.trim_end_matches('\n')));
    files.filter(|file| file.starts_with(below)).collect()
}

/// Returns whether containers can be made at all; says so loudly when not.
pub fn can_run(programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("containers", "this needs root");
        return false;
    }
    for program in programs.iter().chain(&["busybox"]) {
        if find(program).is_none() {
            skip(program, "it is not installed: run ./dev test");
            return false;
        }
    }
    true
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A tar of these entries: path, mode and kind, content or target.
pub fn tar_of(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(if *path == "tmp/" { 0o1777 } else { 0o755 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        let link = matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link);
        if link {
            let target = &mut header.as_old_mut().linkname;
            target[..content.len()].copy_from_slice(content);
        }
        let content: &[u8] = if link { &[] } else { content };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An OCI layout in a tar, with busybox in two layers.
pub fn image_tar(directory: &Path) -> PathBuf {
    use tar::EntryType::{Directory, Regular, Symlink};
    let busybox = fs::read(find("busybox").unwrap()).unwrap();
    let mut entries: Vec<(&str, tar::EntryType, &[u8])> = vec![];
    for name in ["bin/", "etc/", "tmp/", "proc/", "sys/", "dev/", "root/", "gone/"] {
        entries.push((name, Directory, b""));
    }
    entries.push(("bin/busybox", Regular, &busybox));
    for name in [
        "bin/sh",
        "bin/sleep",
        "bin/cat",
        "bin/echo",
        "bin/true",
        "bin/ls",
        "bin/stty",
        "bin/env",
        "bin/test",
        "bin/pwd",
        "bin/dd",
    ] {
        entries.push((name, Symlink, b"busybox"));
    }
    entries.push(("pause", Symlink, b"bin/busybox"));
    entries.push(("gone/file", Regular, b"from below"));
    let base = tar_of(&entries);
    let top = tar_of(&[
        ("etc/", Directory, b""),
        ("etc/passwd", Regular, b"root:x:0:0:root:/root:/bin/sh\n"),
        (".wh.gone", Regular, b""),
    ]);
    let path = directory.join("busybox.oci.tar");
    fs::write(&path, layout(&[&base, &top], IMAGE)).unwrap();
    path
}

/// The tar of a layout with these layers, the first of them compressed.
pub fn layout(layers: &[&[u8]], name: &str) -> Vec<u8> {
    let mut blobs: Vec<Vec<u8>> = Vec::new();
    let mut described = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let (blob, kind) = if number == 0 {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(layer).unwrap();
            (encoder.finish().unwrap(), "application/vnd.oci.image.layer.v1.tar+gzip")
        } else {
            (layer.to_vec(), "application/vnd.oci.image.layer.v1.tar")
        };
        described.push(descriptor(&blob, kind));
        blobs.push(blob);
    }
    let diff_ids: Vec<String> = layers.iter().map(|l| format!("sha256:{}", digest(l))).collect();
    let script = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done";
    let config = serde_json::json!({
        "architecture": architecture(), "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", script], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    })
    .to_string()
    .into_bytes();
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": described,
    })
    .to_string()
    .into_bytes();
    let mut target = descriptor(&manifest, "application/vnd.oci.image.manifest.v1+json");
    target["annotations"] = serde_json::json!({ "io.containerd.image.name": name });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [target] }).to_string();
    blobs.extend([config, manifest]);
    let names: Vec<String> =
        blobs.iter().map(|blob| format!("blobs/sha256/{}", digest(blob))).collect();
    let mut entries: Vec<(&str, tar::EntryType, &[u8])> = vec![
        ("oci-layout", tar::EntryType::Regular, br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json", tar::EntryType::Regular, index.as_bytes()),
    ];
    for (name, blob) in names.iter().zip(&blobs) {
        entries.push((name, tar::EntryType::Regular, blob));
    }
    tar_of(&entries)
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn descriptor(blob: &[u8], kind: &str) -> serde_json::Value {
    serde_json::json!({
        "mediaType": kind, "size": blob.len(), "digest": format!("sha256:{}", digest(blob)),
    })
}

/// A containerd of our own. Everything of it goes when it is dropped.
pub struct Containerd {
    child: Option<Child>,
    /// Folder of its programs, when it is not the system's own.
    programs: Option<PathBuf>,
    pub directory: tempfile::TempDir,
}

/// Configuration of both generations, and what each calls by its own names.
/// Lowering one's own score for being killed needs a right that machines for
/// tests often lack.
fn config(at: &Path, second: bool) -> String {
    let at = at.display();
    let version = if second { 3 } else { 2 };
    let cri = if second {
        format!(
            "[plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = \"{IMAGE}\"\n\
             [plugins.\"io.containerd.cri.v1.runtime\"]\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.cri.v1.runtime\".cni]\nbin_dirs = [\"/usr/lib/cni\"]\n\
             conf_dir = \"{at}/cni\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nstream_server_port = \"0\"\n"
        )
    } else {
        format!(
            "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
             restrict_oom_score_adj = true\nstream_server_port = \"0\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni\"\n\
             conf_dir = \"{at}/cni\"\n"
        )
    };
    format!(
        "version = {version}\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
         [grpc]\naddress = \"{at}/sock\"\n[ttrpc]\naddress = \"{at}/ttrpc\"\n{cri}\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{at}/opt\"\n"
    )
}

impl Containerd {
    /// The system's own.
    pub fn start() -> Option<Self> {
        can_run(&["containerd", "runc", "ctr"]).then(|| Self::start_in(None))
    }

    /// Starts a containerd 2, unpacked in the folder that
    /// `SELVAGE_TEST_CONTAINERD_2` names.
    pub fn start_2() -> Option<Self> {
        if !can_run(&["runc"]) {
            return None;
        }
        let Some(unpacked) = std::env::var_os("SELVAGE_TEST_CONTAINERD_2") else {
            skip("containerd 2", "SELVAGE_TEST_CONTAINERD_2 does not say where it is");
            return None;
        };
        let programs = Path::new(&unpacked).join("usr/bin");
        let version = Command::new(programs.join("containerd")).arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            // Releases go on: one day containerd 2 needs a newer C library than
            // the machine has.
            say_skipped("containerd 2", "it does not run here");
            return None;
        }
        Some(Self::start_in(Some(programs)))
    }

    fn start_in(programs: Option<PathBuf>) -> Self {
        let directory = tempfile::Builder::new().prefix("sc").tempdir_in("/tmp").unwrap();
        let config = config(directory.path(), programs.is_some());
        fs::write(directory.path().join("config.toml"), config).unwrap();
        fs::create_dir(directory.path().join("cni")).unwrap();
        let mut containerd = Self { child: None, programs, directory };
        containerd.spawn();
        containerd
    }

    /// Returns a command of one of its programs, which finds the others.
    fn program(&self, name: &str) -> Command {
        let Some(programs) = &self.programs else { return Command::new(name) };
        let mut command = Command::new(programs.join(name));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        command
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    pub fn spawn(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .unwrap();
        let child = self
            .program("containerd")
            .arg("-c")
            .arg(self.directory.path().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Ends it as a power cut would; what it started lives on.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Makes it hang, or go on.
    pub fn hang(&self, hangs: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = if hangs { Signal::STOP } else { Signal::CONT };
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
        // A thread stops when it has done what it is at.
        let tasks = format!("/proc/{}/task", child.id());
        let stopped = |task: &Path| {
            let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['T', 'X', 'Z']))
        };
        let all = || fs::read_dir(&tasks).unwrap().flatten().all(|task| stopped(&task.path()));
        while hangs && !all() {
            std::thread::yield_now();
        }
    }

    fn ctr(&self, namespace: &str, arguments: &[&str]) -> String {
        let output = self
            .program("ctr")
            .args(["--timeout", "10s", "-a"])
            .arg(self.socket())
            .args(["-n", namespace])
            .args(arguments)
            .output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.child.is_none() {
            self.spawn();
            std::thread::sleep(Duration::from_secs(1));
        }
        for namespace in self.ctr("x", &["ns", "ls", "-q"]).lines() {
            for task in self.ctr(namespace, &["task", "ls", "-q"]).lines() {
                self.ctr(namespace, &["task", "kill", "-s", "9", task]);
                self.ctr(namespace, &["task", "rm", "-f", task]);
            }
            for root in [
                "memory", "cpu", "cpuacct", "pids", "blkio", "cpuset", "devices", "freezer",
                "systemd", "unified", ".",
            ] {
                let _ = fs::remove_dir(format!("/sys/fs/cgroup/{root}/{namespace}"));
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = self.directory.path().display().to_string();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if mount.starts_with(&ours) {
                let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}
