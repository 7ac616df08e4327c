//! A layer in the making, seen with the layers below it.
//!
//! Rules of a layer for a path hold for what its image has there: a link of
//! a layer below leads on, a folder of one below keeps its owner. Everything
//! is looked up by the kernel inside one layer at a time and without following
//! links (`openat2`); links are followed here, and lead nowhere but to paths
//! of the image. Only the layer in the making is ever written to.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid,
        XattrFlags,
    },
    io::Errno,
};

const OPAQUE: &str = "trusted.overlay.opaque";
/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

pub(super) struct Tree {
    upper: OwnedFd,
    /// The topmost first.
    lower: Vec<OwnedFd>,
    /// Of folders, which change with what comes into them.
    times: BTreeMap<PathBuf, Timestamps>,
}

/// A folder of the layer in the making.
pub(super) struct Folder {
    pub(super) at: OwnedFd,
    path: PathBuf,
}

/// Entry that one layer has at a path.
enum LayerEntry {
    Is(OwnedFd),
    NotHere,
    /// Nothing, and nothing of the layers below it either.
    Hidden,
}

/// Entry that made room for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    Folder,
    /// Something that hid what is below.
    Other,
}

impl Tree {
    pub(super) fn open(upper: &Path, lower: &[PathBuf]) -> io::Result<Self> {
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
        };
        let lower = lower.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
        Ok(Self { upper: open(upper)?, lower, times: BTreeMap::new() })
    }

    /// The folder of the layer that something at this path of the image goes
    /// into, made where it is missing.
    pub(super) fn folder(&mut self, parts: &[&OsStr]) -> io::Result<Folder> {
        let path: PathBuf = parts.iter().collect();
        match open(&self.upper, &path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(at) => return Ok(Folder { at, path }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error.into()),
        }
        let path = self.resolve(parts)?;
        let mut at = open(&self.upper, Path::new(""), OFlags::PATH | OFlags::DIRECTORY)?;
        let mut below = PathBuf::new();
        for part in &path {
            below.push(part);
            at = self.step(&at, part, &below)?;
        }
        Ok(Folder { at, path })
    }

    /// Goes into a folder, which is made if it is missing.
    fn step(&mut self, at: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<OwnedFd> {
        let before = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if is_whiteout(&found) => {
                rustix::fs::unlinkat(at, name, AtFlags::empty())?;
                Before::Other
            }
            Ok(_) => Before::Folder,
            Err(Errno::NOENT) => Before::Nothing,
            Err(error) => return Err(error.into()),
        };
        if before != Before::Folder {
            let model = self.find(path)?.map(|(_, found)| found);
            rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755))?;
            if before == Before::Other {
                opaque(at, name)?;
            } else if let Some(model) = model.filter(is_folder) {
                self.liken(at, name, path, &model)?;
            }
        }
        Ok(open(&self.upper, path, OFlags::PATH | OFlags::DIRECTORY)?)
    }

    /// Makes a folder that the layer does not speak of what it is below.
    fn liken(&mut self, at: &OwnedFd, name: &OsStr, path: &Path, model: &Stat) -> io::Result<()> {
        let owner = (Uid::from_raw(model.st_uid), Gid::from_raw(model.st_gid));
        if owner != (rustix::process::geteuid(), rustix::process::getegid()) {
            let (user, group) = (Some(owner.0), Some(owner.1));
            rustix::fs::chownat(at, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let mode = Mode::from_raw_mode(model.st_mode & 0o7777);
        rustix::fs::chmodat(at, name, mode, AtFlags::empty())?;
        let nanoseconds = model.st_mtime_nsec.try_into().unwrap_or(0);
        let time = Timespec { tv_sec: model.st_mtime, tv_nsec: nanoseconds };
        self.times
            .insert(path.to_owned(), Timestamps { last_access: time, last_modification: time });
        Ok(())
    }

    /// Resolves the path of a folder, with all links followed.
    fn resolve(&self, parts: &[&OsStr]) -> io::Result<PathBuf> {
        let mut left: Vec<OsString> = parts.iter().rev().map(|part| (*part).to_owned()).collect();
        let (mut path, mut links) = (PathBuf::new(), 0);
        while let Some(part) = left.pop() {
            if part == ".." {
                path.pop();
                continue;
            }
            path.push(&part);
            let link = self.find(&path)?.filter(|(_, found)| is_link(found));
            let Some((link, _)) = link else { continue };
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            path.pop();
            let target = rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes();
            let target = PathBuf::from(OsString::from_vec(target));
            if target.is_absolute() {
                path.clear();
            }
            left.extend(target.components().rev().filter_map(|part| match part {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            }));
        }
        Ok(path)
    }

    /// Finds what the image has at a path in which no link is followed.
    fn find(&self, path: &Path) -> io::Result<Option<(OwnedFd, Stat)>> {
        for layer in std::iter::once(&self.upper).chain(&self.lower) {
            match look(layer, path)? {
                LayerEntry::Is(found) => {
                    let stat = rustix::fs::fstat(&found)?;
                    return Ok((!is_whiteout(&stat)).then_some((found, stat)));
                }
                LayerEntry::Hidden => return Ok(None),
                LayerEntry::NotHere => {}
            }
        }
        Ok(None)
    }

    /// When a folder was changed, in the end.
    pub(super) fn at_last(&mut self, folder: &Folder, name: &OsStr, times: Timestamps) {
        self.times.insert(folder.path.join(name), times);
    }

    /// Sets what would have changed with every entry.
    pub(super) fn finish(self) -> io::Result<()> {
        for (path, times) in &self.times {
            match open(&self.upper, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(folder) => rustix::fs::futimens(&folder, times)?,
                // Something else is there by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Opens what is in a layer; no link is followed.
fn open(layer: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(layer, Path::new(".").join(path), flags, Mode::empty(), how)
}

fn look(layer: &OwnedFd, path: &Path) -> io::Result<LayerEntry> {
    match open(layer, path, OFlags::PATH) {
        Ok(found) => return Ok(LayerEntry::Is(found)),
        // Something that is no folder is in the way.
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(LayerEntry::Hidden),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    for folder in path.ancestors().skip(1) {
        match open(layer, folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(folder) if is_opaque(&folder) => return Ok(LayerEntry::Hidden),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(LayerEntry::NotHere)
}

fn is_opaque(folder: &OwnedFd) -> bool {
    let mut value = [0u8; 8];
    rustix::fs::fgetxattr(folder, OPAQUE, &mut value).is_ok_and(|length| &value[..length] == b"y")
}

/// Hides what layers below have in a folder.
pub(super) fn opaque(at: &OwnedFd, name: &OsStr) -> io::Result<()> {
    // Extended attributes cannot be set through a descriptor opened by path.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(at, name, flags, Mode::empty())?;
    Ok(rustix::fs::fsetxattr(&folder, OPAQUE, b"y", XattrFlags::empty())?)
}

/// Hides what layers below have by a name; what this layer has stays.
pub(super) fn hide(at: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if is_folder(&found) => opaque(at, name),
        Ok(_) => Ok(()),
        // Overlayfs takes a character device 0/0 for a removal.
        Err(Errno::NOENT) => {
            Ok(rustix::fs::mknodat(at, name, FileType::CharacterDevice, Mode::empty(), 0)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes room: a later entry replaces an earlier one, but a folder may stay.
pub(super) fn clear(at: &OwnedFd, name: &OsStr, keep_folder: bool) -> io::Result<Before> {
    let found = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(Before::Nothing),
        Err(error) => return Err(error.into()),
    };
    if !is_folder(&found) {
        rustix::fs::unlinkat(at, name, AtFlags::empty())?;
        return Ok(Before::Other);
    }
    if !keep_folder {
        let folder = PathBuf::from(format!("/proc/self/fd/{}", at.as_raw_fd()));
        fs::remove_dir_all(folder.join(name))?;
    }
    Ok(Before::Folder)
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn is_folder(found: &Stat) -> bool {
    kind(found) == FileType::Directory
}

fn is_link(found: &Stat) -> bool {
    kind(found) == FileType::Symlink
}

fn is_whiteout(found: &Stat) -> bool {
    kind(found) == FileType::CharacterDevice && found.st_rdev == 0
}
