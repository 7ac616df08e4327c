//! A layer's tar becomes a directory that overlayfs can use.
//!
//! Every path is looked up by the kernel with the layer's directory as its
//! root (`openat2`), so that neither `..` nor a link leads out of it. What a
//! layer removes becomes what overlayfs takes for a removal.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid,
        XattrFlags,
    },
    io::Errno,
};
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

use crate::{Error, Result, error::During};

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
const XATTR: &str = "SCHILY.xattr.";

/// Unpacks a layer into a directory that exists and is empty. Fails unless
/// what was read is what the image's configuration says.
pub(super) fn layer(blob: &Path, into: &Path, diff_id: &str) -> Result<()> {
    let mut reader = Hashing { inner: crate::image::decompressed(blob)?, hasher: Sha256::new() };
    {
        let mut archive = Archive::new(&mut reader);
        let root = open_root(into)?;
        let damaged = |error: io::Error| Error::Damaged {
            what: diff_id.to_owned(),
            reason: error.to_string(),
        };
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let name = entry.path().map_err(damaged)?.into_owned();
            unpack(&root, &mut entry, &name).map_err(|error| Error::Damaged {
                what: diff_id.to_owned(),
                reason: format!("{}: {error}", name.display()),
            })?;
        }
    }
    io::copy(&mut reader, &mut io::sink()).during("reading a layer")?;
    let found = format!("sha256:{}", hex::encode(reader.hasher.finalize()));
    if found != diff_id {
        return Err(Error::Damaged { what: diff_id.to_owned(), reason: format!("it is {found}") });
    }
    Ok(())
}

struct Hashing<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

fn open_root(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .during("opening a layer's directory")
}

/// The parts of a path that name something; `..` is refused.
fn parts(path: &Path) -> io::Result<Vec<&std::ffi::OsStr>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "leads out of the layer"));
            }
        }
    }
    Ok(parts)
}

/// Opens the directory that something goes into, made where it is missing.
fn directory(root: &OwnedFd, parts: &[&std::ffi::OsStr]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open =
        |path: &Path| rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let whole: PathBuf =
        std::iter::once(std::ffi::OsStr::new(".")).chain(parts.iter().copied()).collect();
    match open(&whole) {
        Ok(found) => return Ok(found),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut path = PathBuf::from(".");
    let mut at = open(&path)?;
    for part in parts {
        path.push(part);
        at = match open(&path) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&at, *part, Mode::from_raw_mode(0o755))?;
                open(&path)?
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(at)
}

fn unpack<R: Read>(root: &OwnedFd, entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
    let parts = parts(path)?;
    let Some((name, parents)) = parts.split_last() else {
        return attributes(root.as_fd(), ".".as_ref(), entry);
    };
    let at = directory(root, parents)?;
    if *name == OPAQUE {
        return opaque(&at);
    }
    if let Some(removed) = name.to_str().and_then(|name| name.strip_prefix(WHITEOUT)) {
        if removed.is_empty() || removed == "." || removed == ".." {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "removes nothing"));
        }
        clear(&at, removed.as_ref(), false)?;
        // Overlayfs takes a character device 0/0 for a removal.
        rustix::fs::mknodat(&at, removed, FileType::CharacterDevice, Mode::empty(), 0)?;
        return Ok(());
    }
    make(root, &at, name, entry)
}

fn make<R: Read>(
    root: &OwnedFd,
    at: &OwnedFd,
    name: &std::ffi::OsStr,
    entry: &mut Entry<'_, R>,
) -> io::Result<()> {
    let kind = entry.header().entry_type();
    clear(at, name, kind == EntryType::Directory)?;
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            file(at, name, entry)?;
        }
        EntryType::Directory => match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        },
        EntryType::Symlink => rustix::fs::symlinkat(target(entry)?.as_os_str(), at, name)?,
        EntryType::Link => return link(root, at, name, &target(entry)?),
        EntryType::Char | EntryType::Block | EntryType::Fifo => node(at, name, entry)?,
        // Headers that the reader has used already, and what nobody knows.
        _ => return Ok(()),
    }
    attributes(at.as_fd(), name, entry)
}

fn target<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let target = entry.link_name()?.map(std::borrow::Cow::into_owned);
    target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a link without a target"))
}

/// Makes room: a later entry replaces an earlier one, but a directory stays.
fn clear(at: &OwnedFd, name: &std::ffi::OsStr, keep_directory: bool) -> io::Result<()> {
    let found = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Ok(rustix::fs::unlinkat(at, name, AtFlags::empty())?);
    }
    if keep_directory {
        return Ok(());
    }
    Ok(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?)
}

fn file<R: Read>(at: &OwnedFd, name: &std::ffi::OsStr, entry: &mut Entry<'_, R>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o600))?);
    let mut buffered = io::BufWriter::with_capacity(256 << 10, &file);
    io::copy(entry, &mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    let (uid, gid) = owner(entry.header())?;
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    for extension in extensions {
        let extension = extension?;
        let key = extension.key().unwrap_or_default();
        if let Some(attribute) = key.strip_prefix(XATTR)
            && (attribute.starts_with("user.") || attribute == "security.capability")
        {
            // A chown would take a capability away again: see `attributes`.
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
            let value = extension.value_bytes();
            match rustix::fs::fsetxattr(&file, attribute, value, XattrFlags::empty()) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn link(root: &OwnedFd, at: &OwnedFd, name: &std::ffi::OsStr, target: &Path) -> io::Result<()> {
    let parts = parts(target)?;
    let Some((file, parents)) = parts.split_last() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a link to the root"));
    };
    let from = directory(root, parents)?;
    Ok(rustix::fs::linkat(&from, *file, at, name, AtFlags::empty())?)
}

fn node<R: Read>(at: &OwnedFd, name: &std::ffi::OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
    let header = entry.header();
    let number = |number: Option<u32>| number.unwrap_or(0);
    let (kind, device) = match header.entry_type() {
        // Its numbers mean nothing, and are not always numbers.
        EntryType::Fifo => (FileType::Fifo, 0),
        kind => {
            let (major, minor) = (number(header.device_major()?), number(header.device_minor()?));
            let block = kind == EntryType::Block;
            let kind = if block { FileType::BlockDevice } else { FileType::CharacterDevice };
            (kind, rustix::fs::makedev(major, minor))
        }
    };
    Ok(rustix::fs::mknodat(at, name, kind, Mode::from_raw_mode(0o600), device)?)
}

/// Some leave the fields blank, and mean root.
fn owner(header: &tar::Header) -> io::Result<(Uid, Gid)> {
    let number = |field: &[u8], read: &dyn Fn() -> io::Result<u64>| {
        if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
            return Ok(0);
        }
        u32::try_from(read()?)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "an owner out of range"))
    };
    let fields = header.as_old();
    let user = number(&fields.uid, &|| header.uid())?;
    let group = number(&fields.gid, &|| header.gid())?;
    Ok((Uid::from_raw(user), Gid::from_raw(group)))
}

fn attributes<R: Read>(
    at: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    entry: &Entry<'_, R>,
) -> io::Result<()> {
    let header = entry.header();
    let (uid, gid) = owner(header)?;
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (found.st_uid, found.st_gid) != (uid.as_raw(), gid.as_raw()) {
        rustix::fs::chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if header.entry_type() != EntryType::Symlink {
        let mode = Mode::from_raw_mode(header.mode()? & 0o7777);
        rustix::fs::chmodat(at, name, mode, AtFlags::empty())?;
    }
    let seconds = i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0);
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(at, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn opaque(at: &OwnedFd) -> io::Result<()> {
    // Extended attributes cannot be set through a descriptor opened by path.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(at, ".", flags, Mode::empty())?;
    Ok(rustix::fs::fsetxattr(&directory, "trusted.overlay.opaque", b"y", XattrFlags::empty())?)
}

/// Removes a directory and everything in it, without following links.
pub(super) fn remove_all(path: &Path) -> io::Result<()> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => std::fs::remove_dir_all(path),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

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
        let bytes = archive(entries);
        let blob = directory.path().join("blob");
        fs::write(&blob, &bytes).unwrap();
        let into = directory.path().join("layer");
        fs::create_dir(&into).unwrap();
        let result = layer(&blob, &into, &crate::image::digest_of(&bytes));
        (directory, result)
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
        let (one, two) = (
            fs::metadata(at.join("same")).unwrap(),
            fs::metadata(at.join("deep/er/file")).unwrap(),
        );
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
        let error = layer(&blob, directory.path(), &wrong).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
    }
}
