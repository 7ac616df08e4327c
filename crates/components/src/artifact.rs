//! Programs of a version, found in folders or on the machine.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use selvage_api::selvage::kubernetes::Versions;
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Programs of Kubernetes stand right below the version.
pub(crate) const KUBERNETES: &str = "kubernetes";

/// Folders that there can be.
pub(crate) const FOLDERS: [&str; 5] = [KUBERNETES, "etcd", "coredns", "containerd", "cni"];

/// Programs of Kubernetes that members run.
const PROGRAMS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];

/// Program that starts the containers of containerd.
pub(crate) const SHIM: &str = "containerd-shim-runc-v2";

/// Programs of which installed ones serve a containerd of another version, too.
const ANY_VERSION: [&str; 2] = [SHIM, "runc"];

/// Source of programs for machines.
const INSTALLED: [&str; 6] =
    ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// Oldest etcd that clusters run on: Debian 12 has one that is older.
const OLDEST_ETCD: (u32, u32) = (3, 5);

/// Folders that hold programs, the first one is written to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Artifacts {
    folders: Vec<PathBuf>,
    etcd: Arc<Mutex<Option<InstalledEtcd>>>,
}

/// Version of an installed etcd, asked once for each file.
#[derive(Debug)]
struct InstalledEtcd {
    path: PathBuf,
    modified: Option<SystemTime>,
    is_new_enough: bool,
}

impl Artifacts {
    pub(crate) fn new(own: PathBuf, given: Option<PathBuf>) -> Self {
        Self { folders: [own].into_iter().chain(given).collect(), ..Self::default() }
    }

    /// Path of a program, where the machine has it. What is installed serves
    /// where no version is asked for, or no folder has one of that kind.
    pub(crate) fn find(&self, folder: &'static str, version: &str, name: &str) -> Result<PathBuf> {
        if !version.is_empty() {
            let mut paths =
                self.folders.iter().map(|root| artifact_folder(root, folder, version).join(name));
            if let Some(path) = paths.find(|path| is_program(path)) {
                return Ok(path);
            }
        }
        let may_be_installed =
            version.is_empty() || !self.has_folder(folder) || ANY_VERSION.contains(&name);
        if may_be_installed
            && let Some(path) = installed(folder, name)
            && (name != "etcd" || self.is_new_enough(&path))
        {
            return Ok(path);
        }
        Err(Error::Missing { name: name.to_owned(), folder, version: version.to_owned() })
    }

    /// Returns whether an installed etcd can be a cluster's.
    fn is_new_enough(&self, path: &Path) -> bool {
        let modified = fs::metadata(path).and_then(|file| file.modified()).ok();
        let mut known = self.etcd.lock();
        if let Some(etcd) = &*known
            && etcd.path == path
            && etcd.modified == modified
        {
            return etcd.is_new_enough;
        }
        let is_new_enough = etcd_version(path).is_some_and(|version| version >= OLDEST_ETCD);
        if !is_new_enough {
            let path = path.display();
            tracing::warn!(%path, "the installed etcd is older than 3.5 and is not used");
        }
        *known = Some(InstalledEtcd { path: path.to_owned(), modified, is_new_enough });
        is_new_enough
    }

    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(PathBuf::as_path)
    }

    /// Names a program that a member of these versions needs and this host lacks.
    fn missing(&self, versions: &Versions) -> Option<Error> {
        needed(versions).find_map(|(folder, version, name)| self.find(folder, version, name).err())
    }

    fn has_folder(&self, folder: &str) -> bool {
        folder == KUBERNETES || self.folders.iter().any(|root| root.join(folder).is_dir())
    }

    /// Images in files that every machine is to have.
    pub(crate) fn images(&self) -> Vec<PathBuf> {
        let folders = self.folders.iter().filter_map(|root| fs::read_dir(root.join("images")).ok());
        let mut found: Vec<PathBuf> = folders
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "tar"))
            .collect();
        found.sort();
        found
    }

    /// A file to write a program into, beside those that are whole.
    pub(crate) fn begin(&self, folder: &str, version: &str, name: &str) -> Result<Coming> {
        let Some(own) = self.folders.first() else {
            return Err(Error::Invalid(vec!["artifact: this machine keeps none".into()]));
        };
        let directory = artifact_folder(own, folder, version);
        fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
        let path = directory.join(name);
        let part = directory.join(format!(".{name}.part"));
        let file = fs::File::create(&part).map_err(Error::file(&part))?;
        Ok(Coming { path, part, file, digest: Sha256::new() })
    }
}

/// Programs that a member of these versions needs: folder, version and name.
pub fn needed(
    versions: &Versions,
) -> impl Iterator<Item = (&'static str, &String, &'static str)> + use<'_> {
    let kubernetes = PROGRAMS.map(|name| (KUBERNETES, &versions.kubernetes, name));
    let others = [
        ("etcd", &versions.etcd, "etcd"),
        ("coredns", &versions.coredns, "coredns"),
        ("containerd", &versions.containerd, "containerd"),
        ("containerd", &versions.containerd, SHIM),
        ("cni", &versions.cni, "ptp"),
        ("cni", &versions.cni, "host-local"),
    ];
    kubernetes.into_iter().chain(others)
}

/// Names a program that a member of these versions needs and that is neither in
/// the folder nor installed on this host, and a way to get it; none where it has them
/// all.
pub fn missing(artifacts: Option<&Path>, versions: &Versions) -> Option<String> {
    let folders = artifacts.map(Path::to_owned).into_iter().collect();
    let error = Artifacts { folders, ..Artifacts::default() }.missing(versions)?;
    let package = match &error {
        Error::Missing { folder: "containerd", .. } => Some("containerd"),
        Error::Missing { folder: "cni", .. } => Some("containernetworking-plugins"),
        _ => None,
    };
    Some(match (package, artifacts) {
        // What is installed serves where there is no such folder.
        (Some(package), _) => format!("{error}: install {package}"),
        (None, Some(folder)) => format!("{error}: put it into {}", folder.display()),
        (None, None) => format!(
            "{error}: set kaas.artifacts to a folder that has it, such as `./dev kubernetes` makes"
        ),
    })
}

/// A program that is being written.
pub(crate) struct Coming {
    path: PathBuf,
    part: PathBuf,
    file: fs::File,
    digest: Sha256,
}

impl Coming {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.digest.update(bytes);
        self.file.write_all(bytes).map_err(Error::file(&self.part))
    }

    /// Puts it in its place, provided that it is what was promised.
    pub(crate) fn finish(self, sha256: &str) -> Result<()> {
        let found = hex::encode(self.digest.finalize());
        if !found.eq_ignore_ascii_case(sha256) {
            let _ = fs::remove_file(&self.part);
            return Err(Error::Digest { wanted: sha256.to_owned(), found });
        }
        self.file
            .set_permissions(fs::Permissions::from_mode(0o755))
            .and_then(|()| self.file.sync_all())
            .and_then(|()| selvage_files::rename(&self.part, &self.path))
            .map_err(Error::file(&self.path))
    }
}

/// Returns the folder of a kind's version.
pub fn artifact_folder(root: &Path, folder: &str, version: &str) -> PathBuf {
    match folder {
        KUBERNETES => root.join(version),
        _ => root.join(folder).join(version),
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Path of a program of that kind that is installed on this machine.
pub(crate) fn installed(folder: &str, name: &str) -> Option<PathBuf> {
    let paths: &[&str] = match folder {
        "cni" => &["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"],
        _ => &INSTALLED,
    };
    paths.iter().map(|place| Path::new(place).join(name)).find(|path| is_program(path))
}

/// Major and minor version of an etcd, as it says itself.
fn etcd_version(path: &Path) -> Option<(u32, u32)> {
    let output = Command::new(path).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "))?;
    let mut numbers = version.trim().split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_program_counts_only_when_it_is_what_was_promised() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path().to_owned(), None);
        let missing = artifacts.find(KUBERNETES, "1.2.3", "kubelet").unwrap_err();
        assert_eq!(missing.to_string(), "kubelet 1.2.3 is not on this machine");
        let put = |sha256: &str| {
            let mut coming = artifacts.begin(KUBERNETES, "1.2.3", "kubelet").unwrap();
            coming.write(b"#!").unwrap();
            coming.write(b"/bin/sh").unwrap();
            coming.finish(sha256)
        };
        assert!(matches!(put("00"), Err(Error::Digest { .. })));
        assert!(artifacts.find(KUBERNETES, "1.2.3", "kubelet").is_err());
        put(&hex::encode(Sha256::digest(b"#!/bin/sh"))).unwrap();
        let found = artifacts.find(KUBERNETES, "1.2.3", "kubelet").unwrap();
        assert_eq!(found, folder.path().join("1.2.3/kubelet"));
    }

    #[test]
    fn what_a_member_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions { kubernetes: "1.2.3".into(), ..Versions::default() };
        let lacks = || missing(Some(folder.path()), &versions).unwrap();
        let place = folder.path().display();
        assert_eq!(
            lacks(),
            format!("kube-apiserver 1.2.3 is not on this machine: put it into {place}")
        );
        let put = |name: &str| {
            let artifacts = Artifacts::new(folder.path().to_owned(), None);
            let coming = artifacts.begin(KUBERNETES, "1.2.3", name).unwrap();
            coming.finish(&hex::encode(Sha256::digest(b""))).unwrap();
        };
        put("kube-apiserver");
        assert!(lacks().starts_with("kube-controller-manager 1.2.3 is not on this machine: "));
    }

    #[test]
    fn what_is_installed_serves_where_no_folder_has_the_kind() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path().to_owned(), None);
        assert!(artifacts.find("etcd", "9.9.9", "sh").is_ok());
        fs::create_dir(folder.path().join("etcd")).unwrap();
        assert!(artifacts.find("etcd", "9.9.9", "sh").is_err());
        assert!(artifacts.find("etcd", "", "sh").is_ok());
    }

    #[test]
    fn installed_etcd_has_to_be_new_enough() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::default();
        let path = folder.path().join("etcd");
        for (second, (version, fine)) in
            (1..).zip([("3.4.23", false), ("3.5.1", true), ("3.10.0", true), ("none", false)])
        {
            // A changed file is asked again. A child writes it: what this process has open
            // for writing is inherited by children of other tests, and cannot be run then.
            let written = Command::new("sh")
                .args([
                    "-c",
                    r#"printf '#!/bin/sh\necho "%s"\n' "$2" > "$1"; chmod 755 "$1""#,
                    "sh",
                ])
                .arg(&path)
                .arg(format!("etcd Version: {version}"))
                .status();
            assert!(written.unwrap().success());
            let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
            fs::File::open(&path).unwrap().set_modified(modified).unwrap();
            assert_eq!(artifacts.is_new_enough(&path), fine, "{version}");
        }
    }
}
