//! Archives as tools and mischief make them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, os::unix::fs::MetadataExt, process::Command};

use super::*;

const LIMIT: u64 = 1 << 30;

/// Entries as a hostile tool would write them: no name is looked at.
fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(7);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if link {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let content = if link { "" } else { content };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpacked(entries: &[(&str, EntryType, &str)]) -> (tempfile::TempDir, Result<()>) {
    let directory = tempfile::tempdir().unwrap();
    let result = put(directory.path(), "layer", &[], &archive(entries), LIMIT);
    (directory, result)
}

/// Unpacks these bytes into a layer of this name above others.
fn put(at: &Path, name: &str, lower: &[&str], bytes: &[u8], limit: u64) -> Result<()> {
    let blob = at.join("blob");
    fs::write(&blob, bytes).unwrap();
    let into = at.join(name);
    fs::create_dir(&into).unwrap();
    let lower: Vec<PathBuf> = lower.iter().map(|name| at.join(name)).collect();
    layer(&blob, &into, &lower, &crate::image::digest_of(bytes), &mut Budget::new(limit))
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn nothing_leads_out_of_the_layer() {
    if !root() {
        return;
    }
    for path in ["../evil", "a/../../evil", "/../evil"] {
        let (directory, result) = unpacked(&[(path, EntryType::Regular, "x")]);
        assert!(result.is_err(), "{path}");
        assert!(!directory.path().join("evil").exists(), "{path}");
    }
    let (directory, result) = unpacked(&[
        ("up", EntryType::Symlink, "../.."),
        ("abs", EntryType::Symlink, "/etc"),
        ("up/evil", EntryType::Regular, "x"),
        ("abs/evil", EntryType::Regular, "x"),
    ]);
    result.unwrap_or_else(|error| assert!(error.to_string().contains("evil"), "{error}"));
    assert!(!Path::new("/etc/evil").exists());
    assert!(!directory.path().join("evil").exists());
    for target in ["../blob", "/etc/passwd", "missing"] {
        let (_directory, result) = unpacked(&[("link", EntryType::Link, target)]);
        assert!(result.is_err(), "{target}");
    }
}

#[test]
fn an_owner_that_is_left_blank_is_root() {
    let mut header = tar::Header::new_gnu();
    assert_eq!(owner(&header).unwrap(), (Uid::from_raw(0), Gid::from_raw(0)));
    header.set_uid(7);
    header.as_old_mut().gid = *b"        ";
    assert_eq!(owner(&header).unwrap(), (Uid::from_raw(7), Gid::from_raw(0)));
    header.as_old_mut().gid = *b"nonsense";
    assert!(owner(&header).is_err());
}

#[test]
fn removals_links_and_attributes() {
    if !root() {
        return;
    }
    let (directory, result) = unpacked(&[
        ("/absolute", EntryType::Regular, "one"),
        ("deep/er/file", EntryType::Regular, "two"),
        ("same", EntryType::Link, "deep/er/file"),
        ("soft", EntryType::Symlink, "/absolute"),
        ("deep/.wh.gone", EntryType::Regular, ""),
        ("deep/.wh..wh..opq", EntryType::Regular, ""),
        ("absolute", EntryType::Regular, "later wins"),
        ("pipe", EntryType::Fifo, ""),
    ]);
    result.unwrap();
    let at = directory.path().join("layer");
    assert_eq!(fs::read(at.join("absolute")).unwrap(), b"later wins");
    let (one, two) =
        (fs::metadata(at.join("same")).unwrap(), fs::metadata(at.join("deep/er/file")).unwrap());
    assert_eq!(one.ino(), two.ino());
    assert_eq!((one.mode() & 0o7777, one.mtime()), (0o755, 7));
    assert_eq!(fs::read_link(at.join("soft")).unwrap(), Path::new("/absolute"));
    let gone = fs::symlink_metadata(at.join("deep/gone")).unwrap();
    assert_eq!((gone.mode() & 0o170_000, gone.rdev()), (0o020_000, 0));
    let mut value = [0u8; 4];
    let length =
        rustix::fs::getxattr(at.join("deep"), "trusted.overlay.opaque", &mut value).unwrap();
    assert_eq!(&value[..length], b"y");
}

#[test]
fn a_layer_that_is_not_what_it_should_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let blob = directory.path().join("blob");
    fs::write(&blob, archive(&[])).unwrap();
    let wrong = format!("sha256:{}", "0".repeat(64));
    let mut budget = Budget::new(LIMIT);
    let error = layer(&blob, directory.path(), &[], &wrong, &mut budget).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
}

/// A tar of a folder by the real program.
fn real_tar(folder: &Path, options: &[&str]) -> Vec<u8> {
    let mut command = Command::new("tar");
    let made = command.args(options).args(["-c", "-C"]).arg(folder).arg(".").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    made.stdout
}

#[test]
fn files_with_holes_are_what_they_were_and_keep_their_holes() {
    use std::os::unix::fs::FileExt;
    if !root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("from")).unwrap();
    let file = File::create(at.join("from/holes")).unwrap();
    file.write_all_at(b"begin", 70_000).unwrap();
    file.write_all_at(b"end", 60 << 20).unwrap();
    file.set_len(64 << 20).unwrap();
    let empty = File::create(at.join("from/empty")).unwrap();
    empty.set_len(1 << 20).unwrap();
    let forms: [&[&str]; 5] = [
        &["--format=gnu"],
        &["--format=gnu", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
    ];
    for (number, form) in forms.iter().enumerate() {
        let name = format!("layer{number}");
        put(at, &name, &[], &real_tar(&at.join("from"), form), LIMIT).unwrap();
        let files = fs::read_dir(at.join(&name)).unwrap().count();
        assert_eq!(files, 2, "{form:?}");
        let same = fs::read(at.join("from/holes")).unwrap()
            == fs::read(at.join(&name).join("holes")).unwrap();
        assert!(same, "{form:?}");
        assert_eq!(fs::metadata(at.join(&name).join("empty")).unwrap().len(), 1 << 20, "{form:?}");
        let held = fs::metadata(at.join(&name).join("holes")).unwrap().blocks() * 512;
        assert!(held < 1 << 20, "{form:?} holds {held} bytes");
    }
    for (number, form) in forms.iter().enumerate() {
        let bytes = real_tar(&at.join("from"), form);
        let error = put(at, &format!("large{number}"), &[], &bytes, 32 << 20).unwrap_err();
        assert_eq!(error.code(), selvage_api::Code::ResourceExhausted, "{form:?}: {error}");
        assert!(error.to_string().contains("32 MiB"), "{error}");
    }
}

/// A file whose map does not fit is refused, not guessed at.
#[test]
fn maps_of_holes_that_are_wrong_are_refused() {
    let sparse = |pairs: &[(&str, &str)], data: &[u8]| {
        let mut builder = tar::Builder::new(Vec::new());
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        builder.append_pax_extensions(pairs).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        builder.append_data(&mut header, "GNUSparseFile.0/file", data).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let bytes = builder.into_inner().unwrap();
        let result = put(directory.path(), "layer", &[], &bytes, LIMIT);
        result.map(|()| fs::read(directory.path().join("layer/file")).unwrap())
    };
    let size = ("GNU.sparse.size", "6");
    let (name, blocks) = (("GNU.sparse.name", "file"), ("GNU.sparse.numblocks", "1"));
    let map = |map| [size, name, blocks, ("GNU.sparse.map", map)];
    assert_eq!(sparse(&map("2,2"), b"ab").unwrap(), b"\0\0ab\0\0");
    for (wrong, data) in [
        ("2", "ab"),
        ("5,2", "ab"),
        ("2,2", "abc"),
        ("2,3", "ab"),
        ("3,1,0,1", "ab"),
        ("x,2", "ab"),
    ] {
        let error = sparse(&map(wrong), data.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("sparse"), "{wrong}: {error}");
    }
    let form = [("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0"), size, name];
    let error = sparse(&form, b"ab").unwrap_err().to_string();
    assert!(error.contains("unknown form 2.0"), "{error}");
}

#[test]
fn an_image_takes_no_more_than_it_may_however_it_tries() {
    if !root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let many: Vec<String> = (0..300).map(|number| format!("file{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), EntryType::Regular, "")).collect();
    put(directory.path(), "fits", &[], &archive(&many), 2 << 20).unwrap();
    let error = put(directory.path(), "many", &[], &archive(&many), 1 << 20).unwrap_err();
    assert_eq!(error.code(), selvage_api::Code::ResourceExhausted, "{error}");
    let mut endless = archive(&many[..1]);
    endless.resize(2 << 20, 0);
    let error = put(directory.path(), "endless", &[], &endless, 1 << 20).unwrap_err();
    assert_eq!(error.code(), selvage_api::Code::ResourceExhausted, "{error}");
}

#[test]
fn paths_lead_where_they_lead_in_the_image() {
    if !root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let base = archive(&[
        ("usr/", EntryType::Directory, ""),
        ("usr/lib/", EntryType::Directory, ""),
        ("usr/lib/base.so", EntryType::Regular, "base"),
        ("lib", EntryType::Symlink, "usr/lib"),
        ("bin", EntryType::Symlink, "/usr/bin"),
        ("out", EntryType::Symlink, "../../../usr"),
        ("turn", EntryType::Symlink, "turn"),
        ("home/", EntryType::Directory, ""),
    ]);
    put(at, "base", &[], &base, LIMIT).unwrap();
    std::os::unix::fs::chown(at.join("base/home"), Some(1000), Some(1000)).unwrap();
    let upper = archive(&[
        ("lib/extra.so", EntryType::Regular, "extra"),
        ("bin/tool", EntryType::Regular, "tool"),
        ("out/share/file", EntryType::Regular, "file"),
        ("home/.profile", EntryType::Regular, "profile"),
        ("near", EntryType::Symlink, "lib"),
        ("near/more.so", EntryType::Regular, "more"),
        ("same.so", EntryType::Link, "lib/extra.so"),
    ]);
    put(at, "upper", &["base"], &upper, LIMIT).unwrap();
    let is = |path: &str, content: &str| {
        assert_eq!(fs::read_to_string(at.join("upper").join(path)).unwrap(), content, "{path}");
    };
    is("usr/lib/extra.so", "extra");
    is("usr/bin/tool", "tool");
    is("usr/share/file", "file");
    is("usr/lib/more.so", "more");
    is("same.so", "extra");
    assert!(fs::symlink_metadata(at.join("upper/lib")).is_err(), "the link stays one");
    let home = fs::metadata(at.join("upper/home")).unwrap();
    assert_eq!((home.uid(), home.gid(), home.mtime()), (1000, 1000, 7), "it is whose it was");
    assert_eq!(fs::read_dir(at.join("base/usr/lib")).unwrap().count(), 1, "what is below stays");
    assert!(!at.parent().unwrap().join("usr").exists());

    let error =
        put(at, "turning", &["base"], &archive(&[("turn/x", EntryType::Regular, "")]), LIMIT);
    assert!(error.unwrap_err().to_string().contains("turn/x"));
    // What a layer between has taken away leads nowhere.
    let between = archive(&[(".wh.lib", EntryType::Regular, "")]);
    put(at, "between", &["base"], &between, LIMIT).unwrap();
    let top = archive(&[("lib/own.so", EntryType::Regular, "own")]);
    put(at, "top", &["between", "base"], &top, LIMIT).unwrap();
    assert_eq!(fs::read(at.join("top/lib/own.so")).unwrap(), b"own");
}

fn is_opaque(path: &Path) -> bool {
    let mut value = [0u8; 4];
    rustix::fs::getxattr(path, "trusted.overlay.opaque", &mut value).is_ok()
}

#[test]
fn what_a_layer_removes_is_below_it() {
    if !root() {
        return;
    }
    let (directory, result) = unpacked(&[
        ("z", EntryType::Regular, "stays"),
        (".wh.z", EntryType::Regular, ""),
        ("folder/file", EntryType::Regular, "stays too"),
        (".wh.folder", EntryType::Regular, ""),
        (".wh.again", EntryType::Regular, ""),
        ("again/", EntryType::Directory, ""),
        (".wh.deep", EntryType::Regular, ""),
        ("deep/er", EntryType::Regular, "made anew"),
        (".wh..wh.plnk", EntryType::Regular, ""),
    ]);
    result.unwrap();
    let at = directory.path().join("layer");
    assert_eq!(fs::read(at.join("z")).unwrap(), b"stays");
    assert_eq!(fs::read(at.join("folder/file")).unwrap(), b"stays too");
    assert_eq!(fs::read(at.join("deep/er")).unwrap(), b"made anew");
    for name in ["folder", "again", "deep"] {
        assert!(is_opaque(&at.join(name)), "{name} hides what is below");
    }
    assert_eq!(fs::read_dir(&at).unwrap().count(), 4, "and nothing else is there");
}

#[test]
fn later_entries_win_and_folders_keep_their_time() {
    if !root() {
        return;
    }
    let (directory, result) = unpacked(&[
        ("./", EntryType::Directory, ""),
        ("folder/", EntryType::Directory, ""),
        ("folder/in/file", EntryType::Regular, "x"),
        ("full/", EntryType::Directory, ""),
        ("full/of", EntryType::Regular, "things"),
        ("full", EntryType::Regular, "a file now"),
        ("folder/later", EntryType::Regular, "x"),
    ]);
    result.unwrap();
    let at = directory.path().join("layer");
    assert_eq!(fs::read(at.join("full")).unwrap(), b"a file now");
    assert_eq!(fs::metadata(at.join("folder")).unwrap().mtime(), 7);
    assert_eq!(fs::metadata(&at).unwrap().mtime(), 7);
}

/// A disk of its own, as small as given.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let image = disk.0.path().join("image");
        File::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(disk.place()).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-m0"]).arg(&image).status().unwrap();
        let mount = Command::new("mount").arg("-oloop").arg(&image).arg(disk.place()).status();
        assert!(made.success() && mount.unwrap().success());
        disk
    }

    fn place(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.place()).unwrap();
        disk.f_bavail * disk.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.place()).status();
    }
}

/// Whatever an image has in it, others can go on writing.
#[test]
fn an_image_leaves_the_disk_some_room() {
    if !root() {
        return;
    }
    const MIB: usize = 1 << 20;
    let disk = SmallDisk::new(256 << 20);
    let big = "x".repeat(16 * MIB);
    let blob = disk.0.path().join("blob");
    let try_to = |count: usize, name: &str, budget: Budget| {
        let names: Vec<String> = (0..count).map(|number| format!("file{number}")).collect();
        let entries: Vec<_> =
            names.iter().map(|name| (name.as_str(), EntryType::Regular, big.as_str())).collect();
        let bytes = archive(&entries);
        fs::write(&blob, &bytes).unwrap();
        let into = disk.place().join(name);
        fs::create_dir(&into).unwrap();
        let mut budget = budget;
        layer(&blob, &into, &[], &crate::image::digest_of(&bytes), &mut budget)
    };
    try_to(4, "fits", Budget::new(LIMIT).leaving_room()).unwrap();
    let error = try_to(13, "hostile", Budget::new(LIMIT).leaving_room()).unwrap_err();
    assert_eq!(error.code(), selvage_api::Code::ResourceExhausted, "{error}");
    assert!(error.to_string().contains("the disk has room for"), "{error}");
    assert!(disk.free() >= 8 << 20, "{} bytes are left", disk.free());
    let error = try_to(1, "more", Budget::new(LIMIT).leaving_room()).unwrap_err();
    assert_eq!(error.code(), selvage_api::Code::ResourceExhausted, "{error}");
    assert!(Room::at(&disk.place()).check(64 << 20).is_err());
}
