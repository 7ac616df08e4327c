//! The real parts that tests talk to. `./dev test` installs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use selvage_testkit::say_skipped;
pub use selvage_testkit::{free_port, skip};

/// Python with the packages of `./dev`, or `None` with a loud word.
pub fn python() -> Option<PathBuf> {
    from_environment("SELVAGE_TEST_PYTHON", "python")
}

/// The folder of npm packages, or `None` with a loud word.
pub fn node_modules() -> Option<PathBuf> {
    from_environment("SELVAGE_TEST_NODE_MODULES", "node")
}

/// A script of `tests/browser`, ready to be run, or `None` with a loud word.
pub fn browser(script: &str) -> Option<Command> {
    let modules = node_modules()?;
    if !Path::new("/usr/bin/chromium").exists() {
        skip("chromium", "it is not installed: run ./dev test");
        return None;
    }
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("browser").join(script));
    Some(command)
}

/// Runs a command that ends with `ok` on a line of its own.
pub fn must_end_ok(command: &mut Command) {
    let output = command.output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stdout.lines().last(), Some("ok"), "{stdout}\n{stderr}");
}

/// Runs a script of `tests/uml` under a kernel with a device mapper, LVM's
/// configuration and a disk in `folder`; whether it could be run, with a loud
/// word where not. `detail` adds what the script is given.
pub fn on_lvm(
    folder: &Path,
    seconds: u32,
    script: &str,
    detail: impl FnOnce(&mut Command),
) -> bool {
    for (part, path) in [
        ("user-mode-linux", "/usr/bin/linux.uml"),
        ("lvm2", "/usr/sbin/lvm"),
        ("kmod", "/usr/sbin/modprobe"),
    ] {
        if !Path::new(path).exists() {
            skip(part, "not installed");
            return false;
        }
    }
    let uml = Path::new(env!("CARGO_MANIFEST_DIR")).join("uml");
    let disk = folder.join("disk");
    fs::File::create(&disk).unwrap().set_len(6 << 30).unwrap();
    fs::copy(uml.join("lvm.conf"), folder.join("lvm.conf")).unwrap();
    let mut command = Command::new(uml.join("run"));
    command.env("LVM_SYSTEM_DIR", folder);
    command.args(["-t", &seconds.to_string(), "-d"]).arg(disk).arg("--").arg(uml.join(script));
    detail(&mut command);
    must_end_ok(&mut command);
    true
}

/// The programs of `tests/clients/pion`: the release that the original came
/// with and a later one. None, with a loud word, where there are none; where
/// `./dev` found that they cannot be had, on CI too.
pub fn pions() -> Vec<PathBuf> {
    if std::env::var_os("SELVAGE_TEST_WITHOUT_PION").is_some() {
        say_skipped("pion", "there is no Go here, or its modules cannot be had");
        return Vec::new();
    }
    let folder = from_environment("SELVAGE_TEST_PION", "pion");
    folder
        .map(|folder| ["2.0.7", "2.2.0"].map(|release| folder.join(release)).to_vec())
        .unwrap_or_default()
}

fn from_environment(variable: &str, part: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        skip(part, &format!("{variable} is not set: run ./dev test"));
    }
    path
}

/// The folder of Kubernetes' programs that `./dev kubernetes` makes, or `None`
/// with a loud word. Machines of this host need root too.
pub fn kubernetes() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let folder = std::env::var_os("SELVAGE_TEST_KUBERNETES_DIR")
        .map(PathBuf::from)
        .or_else(|| Some(cache.or_else(home)?.join("selvage/tools/kubernetes")))?;
    let reason = match folder.join(KUBERNETES).join("kubelet").exists() {
        true if nix::unistd::geteuid().is_root() => return Some(folder),
        true => "machines on this host need root".to_owned(),
        false => format!("there is no Kubernetes {KUBERNETES}: run ./dev kubernetes"),
    };
    skip("kubernetes", &reason);
    None
}

/// Version of Kubernetes that tests run.
pub const KUBERNETES: &str = "1.36.4";
/// Version that they upgrade to: one minor later.
pub const KUBERNETES_NEXT: &str = "1.37.1";

/// The same folder, where it has both versions, or `None` with a loud word.
pub fn kubernetes_upgrade() -> Option<PathBuf> {
    let folder = kubernetes()?;
    if folder.join(KUBERNETES_NEXT).join("kubelet").exists() {
        return Some(folder);
    }
    let versions = format!("{KUBERNETES} {KUBERNETES_NEXT}");
    let reason = format!("there is no {KUBERNETES_NEXT}: run ./dev kubernetes {versions}");
    skip("kubernetes upgrade", &reason);
    None
}
