//! Image files of machines that share a host: each sees its own folder by the
//! same name, and the loop devices of all.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use selvage_lvmd::{
    backend::{Backend, Create, loopfile::LoopFiles},
    config::Config,
};

use super::{conformance::run, site::skip};

const SIZE: u64 = 64 << 20;

fn open(directory: &Path) -> LoopFiles {
    let text = format!(
        "
backend: loop
loop: {{directory: {}, groups: [{{name: tg, size-gb: 1, preallocate: false}}]}}
device-classes: [{{name: thick, volume-group: tg, default: true, spare-gb: 0}}]
",
        directory.display()
    );
    LoopFiles::open(&Config::parse(&text).unwrap()).unwrap()
}

fn make(files: &LoopFiles) -> PathBuf {
    let create =
        Create { group: "tg".into(), name: "data".into(), size: SIZE, ..Create::default() };
    files.create(&create).unwrap();
    device(files)
}

fn device(files: &LoopFiles) -> PathBuf {
    files.scan().unwrap()["tg"].volumes["data"].path.clone()
}

/// Devices of files below a folder, whoever attached them.
fn devices_of(folder: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let image = fs::metadata(folder.join("tg/data.img")).unwrap();
    let is_ours = |inode: &(u64, u64)| *inode == (image.dev(), image.ino());
    let devices = selvage_memory::loop_devices();
    let ours = devices.filter(|device| device.inode.as_ref().is_some_and(is_ours));
    ours.map(|device| device.path).collect()
}

fn detach(folder: &Path) {
    for device in devices_of(folder) {
        run("losetup", &["-d", device.to_str().unwrap()]);
    }
}

/// Another machine that has its folder where we have ours, and a device of an
/// image in it. Ends when its input does.
fn neighbour(own: &Path, seen_as: &Path) -> (Child, PathBuf) {
    let script = "mount --bind \"$1\" \"$2\" && losetup -f --show \"$2/tg/data.img\" && read end";
    let mut child = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
        .args([own, seen_as])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().into())
}

#[test]
fn devices_are_distinguished_by_image_not_by_name() {
    if !rustix::process::geteuid().is_root() {
        return skip("loop devices", "only root may make them");
    }
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(theirs.path().join("tg")).unwrap();
    fs::File::create(theirs.path().join("tg/data.img")).unwrap().set_len(SIZE).unwrap();
    let (mut child, foreign) = neighbour(theirs.path(), ours.path());
    let files = open(ours.path());
    let own = make(&files);
    assert_ne!(own, foreign, "somebody else's device was taken for ours");
    drop(files);
    // An orphan by its name, but not ours.
    open(ours.path());
    let kept = devices_of(theirs.path());
    drop(child.stdin.take());
    child.wait().unwrap();
    detach(ours.path());
    detach(theirs.path());
    assert_eq!(kept, [foreign], "somebody else's device was let go");
}

#[test]
fn a_device_is_found_again_after_its_namespace_has_ended() {
    if !rustix::process::geteuid().is_root() {
        return skip("loop devices", "only root may make them");
    }
    let (real, seen) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (real, seen) = (real.path(), seen.path());
    run("mount", &["--bind", real.to_str().unwrap(), seen.to_str().unwrap()]);
    let before = make(&open(seen));
    run("umount", &["-l", seen.to_str().unwrap()]);
    let after = device(&open(real));
    let all = devices_of(real);
    detach(real);
    assert_eq!((after, all.len()), (before, 1));
}
