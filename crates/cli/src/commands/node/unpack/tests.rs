#![allow(clippy::unwrap_used)]
use std::os::unix::fs::PermissionsExt;

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

use super::*;

/// An archive as somebody with bad intentions writes it: names go in as they
/// are.
struct Evil(Builder<GzEncoder<Vec<u8>>>);

impl Evil {
    fn new() -> Self {
        Self(Builder::new(GzEncoder::new(Vec::new(), Compression::fast())))
    }

    fn add(mut self, name: &str, kind: EntryType, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.add(name, EntryType::Regular, "", content.as_bytes())
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.add(name, EntryType::Symlink, target, b"")
    }

    fn unpack(self, into: &Path) -> Vec<(String, &'static str)> {
        let bytes = self.0.into_inner().unwrap().finish().unwrap();
        unpack(bytes.as_slice(), into).unwrap().refused
    }
}

/// A folder inside another, whose other content must stay as it is.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "untouched").unwrap();
    let into = outside.path().join("into");
    (outside, into)
}

#[track_caller]
fn unharmed(outside: &Path) {
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "untouched");
    let mut names: Vec<_> =
        fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["into", "precious"]);
}

#[test]
fn files_folders_and_links_come_out_as_they_were() {
    let (outside, into) = folder();
    let refused = Evil::new()
        .add("./", EntryType::Directory, "", b"")
        .add("a/b", EntryType::Directory, "", b"")
        .file("a/b/one", "1")
        .file("./two", "22")
        .symlink("a/up", "../two")
        .add("a/same", EntryType::Link, "two", b"")
        .unpack(&into);
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(fs::read_to_string(into.join("a/b/one")).unwrap(), "1");
    assert_eq!(fs::read_to_string(into.join("a/up")).unwrap(), "22");
    assert_eq!(fs::read_to_string(into.join("a/same")).unwrap(), "22");
    let two = fs::metadata(into.join("two")).unwrap();
    assert_eq!(two.permissions().mode() & 0o7777 & !0o022, 0o755 & !0o022, "no set-user-id");
    let modified = two.modified().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(modified.as_secs(), 1_000_000_000);
    unharmed(outside.path());
}

#[test]
fn names_that_lead_out_are_left_out() {
    let (outside, into) = folder();
    let absolute = outside.path().join("precious");
    let refused = Evil::new()
        .file("../precious", "harm")
        .file("a/../../precious", "harm")
        .file(absolute.to_str().unwrap(), "harm")
        .file("..", "harm")
        .file("good", "good")
        .unpack(&into);
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused.iter().all(|(_, reason)| *reason == OUTSIDE), "{refused:?}");
    assert_eq!(fs::read_to_string(into.join("good")).unwrap(), "good");
    unharmed(outside.path());
}

#[test]
fn links_that_lead_out_are_left_out() {
    let (outside, into) = folder();
    let refused = Evil::new()
        .symlink("absolute", "/etc/passwd")
        .symlink("up", "../precious")
        .symlink("deep/up", "../../precious")
        .symlink("here", ".")
        .symlink("sly", "here/..")
        .symlink("empty", "")
        .add("hard", EntryType::Link, "../precious", b"")
        .add("hard-nowhere", EntryType::Link, "missing", b"")
        .unpack(&into);
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["absolute", "up", "deep/up", "sly", "empty", "hard", "hard-nowhere"]);
    assert!(into.join("here").is_symlink() && !into.join("sly").is_symlink());
    unharmed(outside.path());
}

#[test]
fn nothing_is_written_through_a_link() {
    let (outside, into) = folder();
    // Somebody put it there before, or an entry of the archive did.
    fs::create_dir(&into).unwrap();
    std::os::unix::fs::symlink(outside.path(), into.join("old")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("precious"), into.join("file")).unwrap();
    let refused = Evil::new()
        .file("old/precious", "harm")
        .symlink("new", "good")
        .file("new/x", "harm")
        .add("old", EntryType::Directory, "", b"")
        .add("hard", EntryType::Link, "old/precious", b"")
        .file("file", "in its place")
        .unpack(&into);
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["old/precious", "new/x", "old", "hard"]);
    assert_eq!(fs::read_to_string(into.join("file")).unwrap(), "in its place");
    assert!(!into.join("file").is_symlink());
    unharmed(outside.path());
}

#[test]
fn devices_and_pipes_are_left_out() {
    let (outside, into) = folder();
    let refused = Evil::new()
        .add("null", EntryType::Char, "", b"")
        .add("disk", EntryType::Block, "", b"")
        .add("pipe", EntryType::Fifo, "", b"")
        .unpack(&into);
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|(_, reason)| *reason == SPECIAL));
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
    unharmed(outside.path());
}

#[test]
fn a_file_does_not_take_the_place_of_a_folder() {
    let (_outside, into) = folder();
    let refused = Evil::new().file("a/b", "1").file("a", "2").unpack(&into);
    assert_eq!(refused, [("a".to_owned(), TAKEN)]);
}

#[test]
fn a_damaged_archive_is_reported() {
    let (_outside, into) = folder();
    for bytes in [&b"no archive at all"[..], b"", b"\x1f\x8b\x08\x00"] {
        let message = unpack(bytes, &into).unwrap_err().to_string();
        assert_eq!(message, "cannot read the archive that the machine sent", "{bytes:?}");
    }
}

/// A machine that goes away in the middle of a file leaves the file of before.
#[test]
fn what_is_cut_off_is_not_there() {
    let (_outside, into) = folder();
    Evil::new().file("kept", "as it was").unpack(&into);
    // Does not get smaller.
    let noise: Vec<u8> = (0..200_000_u64)
        .map(|n| (n.wrapping_mul(6_364_136_223_846_793_005) >> 33).to_le_bytes()[0])
        .collect();
    let evil = Evil::new().file("first", "whole").add("kept", EntryType::Regular, "", &noise);
    let bytes = evil.0.into_inner().unwrap().finish().unwrap();
    unpack(&bytes[..bytes.len() / 2], &into).unwrap_err();
    assert_eq!(fs::read_to_string(into.join("first")).unwrap(), "whole");
    assert_eq!(fs::read_to_string(into.join("kept")).unwrap(), "as it was");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 2, "nothing is left beside them");
}
