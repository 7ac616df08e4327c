#![allow(clippy::unwrap_used, clippy::print_stderr)]
use std::{io::Read, os::unix::fs::symlink, process::Command};

use selvage_api::{
    Code,
    machine::{FileInfo, ListRequest},
};
use tokio::sync::mpsc;

use super::super::{Error, archive, confine::Roots, list};
use super::*;

/// A data directory with keys and a store, beside what everybody may see.
struct Lab {
    place: tempfile::TempDir,
    roots: Roots,
}

const CANARY: &str = "canary";

impl Lab {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        for folder in ["pki", "joined", "containers/c1"] {
            fs::create_dir_all(data.join(folder)).unwrap();
        }
        fs::create_dir(place.path().join("open")).unwrap();
        for file in ["pki/ca.key", "joined/node.pem", "store.redb", "containers/c1/log"] {
            fs::write(data.join(file), CANARY).unwrap();
        }
        fs::write(place.path().join("open/notes"), "fine").unwrap();
        let protected = ["pki", "joined", "store.redb", ""].map(|name| data.join(name));
        let guard = Guard::new(protected.to_vec());
        Self { place, roots: Roots::new(Vec::new(), guard) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn read(&self, path: &Path) -> Result<String, Code> {
        let located = self.roots.locate(path.to_str().unwrap()).map_err(|error| error.code())?;
        let mut text = String::new();
        located.open_file().map_err(|error| error.code())?.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    fn list(&self, path: &Path) -> Result<Vec<FileInfo>, Error> {
        let root = path.to_str().unwrap().to_owned();
        let request = ListRequest { root, recurse: true, recursion_depth: 0 };
        let (sender, mut receiver) = mpsc::channel(4096);
        list::send(&self.roots, &request, &sender)?;
        drop(sender);
        let mut files = Vec::new();
        while let Some(file) = receiver.blocking_recv() {
            files.push(file.unwrap());
        }
        Ok(files)
    }

    /// Content of an archive of a folder, as text.
    fn copy(&self, path: &Path) -> Result<String, Error> {
        let (sender, mut receiver) = mpsc::channel(4096);
        archive::send(&self.roots, path.to_str().unwrap(), &sender)?;
        drop(sender);
        let mut bytes = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            bytes.extend(piece.unwrap().bytes);
        }
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut text).unwrap();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn must_refuse(&self, path: &Path) {
        assert_eq!(self.read(path), Err(Code::PermissionDenied), "read {}", path.display());
        let copied = self.copy(path);
        let code = copied.map(|text| assert!(!text.contains(CANARY), "{}", path.display()));
        assert!(code.map_err(|error| error.code()) != Err(Code::Internal), "{}", path.display());
    }
}

#[test]
fn what_is_protected_is_refused_by_every_name() {
    let lab = Lab::new();
    symlink("../data/pki", lab.path("open/relative")).unwrap();
    symlink(lab.path("data"), lab.path("open/absolute")).unwrap();
    symlink("relative/ca.key", lab.path("open/twice")).unwrap();
    for name in [
        "data/pki/ca.key",
        "data/joined/node.pem",
        "data/store.redb",
        "data/containers/c1/log",
        "open/../data/pki/ca.key",
        "open/./../open/../data//store.redb",
        "open/relative/ca.key",
        "open/absolute/joined/node.pem",
        "open/absolute/containers/c1/log",
        "open/twice",
        // Callers do not learn whether it exists.
        "data/pki/none",
        "data/none/none",
        "open/relative/none",
    ] {
        assert_eq!(lab.read(&lab.path(name)), Err(Code::PermissionDenied), "{name}");
        assert!(lab.copy(&lab.path(name)).is_err(), "{name}");
        assert!(lab.list(&lab.path(name)).is_err(), "{name}");
    }
    assert_eq!(lab.read(&lab.path("open/notes")).unwrap(), "fine");
    assert_eq!(lab.read(&lab.path("open/none")), Err(Code::NotFound));
    let processes = format!("/proc/{}/root{}", std::process::id(), lab.path("data/pki").display());
    assert_eq!(lab.read(&Path::new(&processes).join("ca.key")), Err(Code::PermissionDenied));
    let here = format!("/proc/self/cwd{}", lab.path("data/store.redb").display());
    assert_eq!(lab.read(Path::new(&here)), Err(Code::PermissionDenied));
}

#[test]
fn a_walk_from_above_goes_round_what_is_protected() {
    let lab = Lab::new();
    let listed = lab.list(lab.place.path()).unwrap();
    let names: Vec<&str> = listed.iter().map(|file| file.relative_name.as_str()).collect();
    assert_eq!(names, [".", "data", "data", "open", "open/notes"]);
    assert_eq!(listed[2].error, "permission denied");
    let copied = lab.copy(lab.place.path()).unwrap();
    assert!(copied.contains("fine") && !copied.contains(CANARY), "{copied:?}");
}

#[test]
fn another_name_of_the_same_file_is_refused() {
    let lab = Lab::new();
    for (file, link) in [("pki/ca.key", "key"), ("joined/node.pem", "pem"), ("store.redb", "db")] {
        fs::hard_link(lab.path("data").join(file), lab.path("open").join(link)).unwrap();
        lab.must_refuse(&lab.path("open").join(link));
    }
    let copied = lab.copy(&lab.path("open")).unwrap();
    assert!(copied.contains("fine") && !copied.contains(CANARY), "{copied:?}");
}

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Mount {
    fn bind(from: &Path, to: &Path) -> Option<Self> {
        fs::create_dir_all(to).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.arg("--bind").arg(from).arg(to).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(to.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_bind_mount_leads_to_the_same_keys() {
    let lab = Lab::new();
    let keys = Mount::bind(&lab.path("data/pki"), &lab.path("open/keys"));
    let (Some(_keys), Some(_data)) =
        (keys, Mount::bind(&lab.path("data"), &lab.path("open/everything")))
    else {
        selvage_testkit::say_skipped("bind mounts", "only root may mount");
        return;
    };
    lab.must_refuse(&lab.path("open/keys/ca.key"));
    lab.must_refuse(&lab.path("open/everything/joined/node.pem"));
    assert!(lab.list(&lab.path("open/keys")).is_err());
    let copied = lab.copy(&lab.path("open")).unwrap();
    assert!(copied.contains("fine") && !copied.contains(CANARY), "{copied:?}");
}

#[test]
fn a_private_key_is_refused_wherever_it_lies() {
    let lab = Lab::new();
    let far = format!("{}PRIVATE KEY-----", "x".repeat(64 * 1024 - 5));
    for (name, text) in [
        ("pem", "-----BEGIN PRIVATE KEY-----\nMC4C\n"),
        ("ec", "-----BEGIN EC PRIVATE KEY-----\n"),
        ("chain", "-----BEGIN CERTIFICATE-----\nx\n-----BEGIN RSA PRIVATE KEY-----\n"),
        ("ssh", "-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        ("pgp", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n"),
        ("config", "users:\n- user:\n    client-key-data: LS0t\n"),
        ("across", &far),
    ] {
        fs::write(lab.path("open").join(name), text).unwrap();
        assert_eq!(lab.read(&lab.path("open").join(name)), Err(Code::PermissionDenied), "{name}");
        let copied = lab.copy(&lab.path("open")).unwrap();
        assert!(!copied.contains("PRIVATE KEY") && !copied.contains("client-key"), "{name}");
    }
    let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----BEGIN PUBLIC KEY-----\n";
    fs::write(lab.path("open/public"), certificate).unwrap();
    assert_eq!(lab.read(&lab.path("open/public")).unwrap(), certificate);
}

#[test]
fn memory_and_environment_of_processes_are_refused() {
    let lab = Lab::new();
    let own = format!("/proc/{}", std::process::id());
    for name in ["environ", "mem", "cmdline", "task"] {
        let path = format!("{own}/{name}");
        assert!(lab.read(Path::new(&path)).is_err(), "{path}");
    }
    assert_eq!(lab.read(Path::new("/proc/self/environ")), Err(Code::PermissionDenied));
    assert!(lab.read(Path::new("/proc/kcore")).is_err(), "kernel memory");
    assert!(lab.read(Path::new("/proc/meminfo")).is_ok());
}

/// A swap file holds what was in memory.
#[test]
fn swap_space_is_known_by_the_kernels_table() {
    let table = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/vda2                               partition\t1\t0\t-2\n\
        /var/a\\040swap\t\t\tfile\t\t1\t0\t-3\n\
        /old\\040(deleted)\t\t\tfile\t\t1\t0\t-4\n";
    let found = swaps(table);
    let expected = ["/dev/vda2", "/var/a swap", "/old (deleted)"].map(PathBuf::from);
    assert_eq!(found, expected);
    assert_eq!(swaps(b""), Vec::<PathBuf>::new());
}
