//! A layer's tar becomes a directory that overlayfs can use.
//!
//! Every path is looked up inside the layer and those below it ([`Tree`]), so
//! that neither `..` nor a link leads out of the image. What a layer removes
//! becomes what overlayfs takes for a removal, and removes nothing of its own.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

use super::{
    headers::Headers,
    sparse::{Sparse, with_holes},
    tree::{self, Before, Folder, Tree},
};
use crate::{Error, Result, image::Room};

const WHITEOUT: &str = ".wh.";
/// Prefix of files that are about the layer itself.
const ABOUT: &str = ".wh..wh.";
const OPAQUE: &str = ".wh..wh..opq";
const XATTR: &str = "SCHILY.xattr.";

/// Budget of what an image may still take. Holes count, as does an entry
/// without content: whoever reads them has to deal with them.
pub(super) struct Budget {
    limit: u64,
    left: Option<u64>,
    /// Others need the disk, too.
    leaves_room: bool,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, left: Some(limit), leaves_room: false }
    }

    /// The same, and no more than leaves the disk some room.
    pub(super) fn leaving_room(self) -> Self {
        Self { leaves_room: true, ..self }
    }

    fn spend(&mut self, bytes: u64) -> io::Result<()> {
        const LEAST: u64 = 4096;
        self.left = self.left.and_then(|left| left.checked_sub(bytes.max(LEAST)));
        if self.left.is_some() { Ok(()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
    }
}

/// Unpacks a layer into a directory that exists and is empty, as it is above
/// these, the topmost first. Fails unless what was read is what the image's
/// configuration says.
pub(super) fn layer(
    blob: &Path,
    into: &Path,
    lower: &[PathBuf],
    diff_id: &str,
    budget: &mut Budget,
) -> Result<()> {
    let room = budget.leaves_room.then(|| Room::at(into));
    if let Some(room) = &room {
        room.check(0)?;
    }
    unpacked(blob, diff_id, budget, room, |reader, budget| {
        Tree::open(into, lower).and_then(|tree| entries(reader, tree, budget))
    })
}

/// Checks that a blob is what the image's configuration says, and unpacks
/// nothing.
pub(super) fn check(blob: &Path, diff_id: &str, budget: &mut Budget) -> Result<()> {
    unpacked(blob, diff_id, budget, None, |_, _| Ok(()))
}

fn unpacked(
    blob: &Path,
    diff_id: &str,
    budget: &mut Budget,
    room: Option<Room>,
    work: impl FnOnce(&mut dyn Read, &mut Budget) -> io::Result<()>,
) -> Result<()> {
    let inner = crate::image::decompressed(blob)?;
    let (hasher, left) = (Sha256::new(), Some(budget.limit));
    let mut reader = Hashing { inner, hasher, left, room, full: None };
    let unpacked = work(&mut reader, budget).and_then(|()| io::copy(&mut reader, &mut io::sink()));
    if let Some(full) = reader.full {
        return Err(full);
    }
    if reader.left.is_none() || budget.left.is_none() {
        return Err(crate::image::too_large(budget.limit));
    }
    let damaged = |reason: String| Error::Damaged { what: diff_id.to_owned(), reason };
    unpacked.map_err(|error| damaged(error.to_string()))?;
    let found = format!("sha256:{}", hex::encode(reader.hasher.finalize()));
    if found == diff_id { Ok(()) } else { Err(damaged(format!("it is {found}"))) }
}

/// Counts what comes, and reads no more than it may and than there is room for.
struct Hashing<R> {
    inner: R,
    hasher: Sha256,
    left: Option<u64>,
    room: Option<Room>,
    /// Why there is no more room.
    full: Option<Error>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.left = self.left.and_then(|left| left.checked_sub(length as u64));
        if self.left.is_none() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Some(Err(full)) = self.room.as_mut().map(|room| room.wrote(length as u64)) {
            self.full = Some(full);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

fn entries(reader: impl Read, mut tree: Tree, budget: &mut Budget) -> io::Result<()> {
    for entry in Archive::new(Headers::new(reader)).entries()? {
        let mut entry = entry?;
        let sparse = Sparse::of(&mut entry)?;
        let name = match sparse.as_ref().and_then(|sparse| sparse.name.clone()) {
            Some(name) => name,
            None => entry.path()?.into_owned(),
        };
        unpack(&mut tree, &mut entry, &name, sparse.as_ref(), budget).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", name.display()))
        })?;
    }
    tree.finish()
}

/// The parts of a path that name something; `..` is refused.
fn parts(path: &Path) -> io::Result<Vec<&OsStr>> {
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

/// Returns whether it is something; the rest are headers that the reader has
/// used already, and what nobody knows.
fn is_something(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::Regular
            | EntryType::Continuous
            | EntryType::GNUSparse
            | EntryType::Directory
            | EntryType::Symlink
            | EntryType::Link
            | EntryType::Char
            | EntryType::Block
            | EntryType::Fifo
    )
}

fn unpack<R: Read>(
    tree: &mut Tree,
    entry: &mut Entry<'_, R>,
    path: &Path,
    sparse: Option<&Sparse>,
    budget: &mut Budget,
) -> io::Result<()> {
    let kind = entry.header().entry_type();
    if !is_something(kind) {
        return Ok(());
    }
    let has_content = !matches!(kind, EntryType::Link | EntryType::Symlink);
    let size = sparse.map_or_else(|| entry.size(), |sparse| sparse.size);
    budget.spend(if has_content { size } else { 0 })?;
    let parts = parts(path)?;
    let Some((name, parents)) = parts.split_last() else {
        let root = tree.folder(&[])?;
        tree.at_last(&root, OsStr::new(""), times(entry));
        return attributes(root.at.as_fd(), OsStr::new("."), entry);
    };
    let folder = tree.folder(parents)?;
    if *name == OPAQUE {
        return tree::opaque(&folder.at, OsStr::new("."));
    }
    let about = name.to_str().unwrap_or_default();
    if about.starts_with(ABOUT) {
        return Ok(());
    }
    if let Some(removed) = about.strip_prefix(WHITEOUT) {
        if removed.is_empty() || removed == "." || removed == ".." {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "removes nothing"));
        }
        return tree::hide(&folder.at, removed.as_ref());
    }
    make(tree, &folder, name, entry, sparse)
}

fn make<R: Read>(
    tree: &mut Tree,
    folder: &Folder,
    name: &OsStr,
    entry: &mut Entry<'_, R>,
    sparse: Option<&Sparse>,
) -> io::Result<()> {
    let (at, kind) = (&folder.at, entry.header().entry_type());
    if kind == EntryType::Link {
        return link(tree, at, name, &target(entry)?);
    }
    let before = tree::clear(at, name, kind == EntryType::Directory)?;
    match kind {
        EntryType::Directory => {
            if before != Before::Folder {
                rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755))?;
            }
            if before == Before::Other {
                tree::opaque(at, name)?;
            }
            tree.at_last(folder, name, times(entry));
        }
        EntryType::Symlink => rustix::fs::symlinkat(target(entry)?.as_os_str(), at, name)?,
        EntryType::Char | EntryType::Block | EntryType::Fifo => node(at, name, entry)?,
        _ => file(at, name, entry, sparse)?,
    }
    attributes(at.as_fd(), name, entry)
}

fn target<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let target = entry.link_name()?.map(std::borrow::Cow::into_owned);
    target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a link without a target"))
}

fn file<R: Read>(
    at: &OwnedFd,
    name: &OsStr,
    entry: &mut Entry<'_, R>,
    sparse: Option<&Sparse>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o600))?);
    match sparse {
        Some(sparse) => sparse.write(&file, entry)?,
        None => {
            let length = with_holes(&file, entry, 0)?;
            file.set_len(length)?;
        }
    }
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

fn link(tree: &mut Tree, at: &OwnedFd, name: &OsStr, target: &Path) -> io::Result<()> {
    let parts = parts(target)?;
    let Some((file, parents)) = parts.split_last() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a link to the root"));
    };
    let from = tree.folder(parents)?.at;
    // One to itself would take itself away.
    let found = rustix::fs::statat(&from, *file, AtFlags::SYMLINK_NOFOLLOW)?;
    let there = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW);
    if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)) {
        return Ok(());
    }
    tree::clear(at, name, false)?;
    Ok(rustix::fs::linkat(&from, *file, at, name, AtFlags::empty())?)
}

fn node<R: Read>(at: &OwnedFd, name: &OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
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

fn attributes<R: Read>(at: BorrowedFd<'_>, name: &OsStr, entry: &Entry<'_, R>) -> io::Result<()> {
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
    Ok(rustix::fs::utimensat(at, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times<R: Read>(entry: &Entry<'_, R>) -> Timestamps {
    let seconds = i64::try_from(entry.header().mtime().unwrap_or(0)).unwrap_or(0);
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
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
mod tests;
