//! A walk through a folder: each entry after its folder, in the order of
//! names, links not followed, one that cannot be looked at no reason to stop.

use std::{
    ffi::CString,
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat},
    io::Errno,
};

use super::confine::Located;

/// Maximum depth of a walk: each level costs a file descriptor.
const MAX_DEPTH: usize = 256;

/// One entry on the way.
pub(super) struct Entry<'a> {
    /// Path from where the walk began; `.` for the start itself.
    pub(super) relative: &'a Path,
    pub(super) stat: Result<Stat, Errno>,
    /// Target of a symbolic link.
    pub(super) link: Option<PathBuf>,
    pub(super) location: Location<'a>,
}

/// Location of an entry, to open it.
pub(super) enum Location<'a> {
    /// Start of the walk.
    Start(&'a Located),
    /// Entry by name in a folder of the walk that began there.
    In(&'a Located, BorrowedFd<'a>, &'a CString),
}

impl Location<'_> {
    /// The entry as a file to read, wherever its name may lead by now.
    pub(super) fn open(&self) -> Result<std::fs::File, String> {
        match self {
            Self::Start(located) => located.open_file().map_err(|error| error.to_string()),
            Self::In(start, folder, name) => {
                let flags = OFlags::RDONLY
                    | OFlags::NOFOLLOW
                    | OFlags::NONBLOCK
                    | OFlags::NOCTTY
                    | OFlags::CLOEXEC;
                let file = openat(folder, name.as_c_str(), flags, Mode::empty())
                    .map(std::fs::File::from)
                    .map_err(super::confine::plain)?;
                match start.refuse(&file) {
                    Some(reason) => Err(format!("is not served: it {reason}")),
                    None => Ok(file),
                }
            }
        }
    }
}

/// Function that is called for every entry; it may stop the walk.
pub(super) type Visit<'a> = dyn FnMut(Entry<'_>) -> ControlFlow<()> + 'a;

/// Walks `depth` levels below a place, without end for `None`.
pub(super) fn walk(
    start: &Located,
    depth: Option<usize>,
    visit: &mut Visit<'_>,
) -> ControlFlow<()> {
    let here = Path::new(".");
    let location = || Location::Start(start);
    visit(Entry { relative: here, stat: Ok(start.stat), link: None, location: location() })?;
    if start.kind() != FileType::Directory || depth == Some(0) {
        return ControlFlow::Continue(());
    }
    match start.open_folder() {
        Ok(folder) => {
            let levels = Levels { start, deepest: depth.unwrap_or(usize::MAX), level: 1 };
            descend(&folder, Path::new(""), levels, visit)
        }
        Err(error) => {
            visit(Entry { relative: here, stat: Err(error), link: None, location: location() })
        }
    }
}

/// Depth of a walk, and its limit.
#[derive(Clone, Copy)]
struct Levels<'a> {
    start: &'a Located,
    deepest: usize,
    level: usize,
}

impl Levels<'_> {
    fn enter(self, folder: &OwnedFd, name: &CString) -> Result<OwnedFd, Errno> {
        if self.level >= MAX_DEPTH {
            return Err(Errno::MFILE);
        }
        let inner = subfolder(folder, name)?;
        if self.start.closed(&inner) { Err(Errno::ACCESS) } else { Ok(inner) }
    }
}

fn descend(
    folder: &OwnedFd,
    prefix: &Path,
    levels: Levels<'_>,
    visit: &mut Visit<'_>,
) -> ControlFlow<()> {
    for name in names(folder) {
        let relative = prefix.join(as_path(&name));
        let location = || Location::In(levels.start, folder.as_fd(), &name);
        let stat = statat(folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
        let kind = stat.as_ref().ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
        let link = (kind == Some(FileType::Symlink)).then(|| {
            let target = readlinkat(folder, name.as_c_str(), Vec::new()).ok();
            target.map(|target| as_path(&target).to_owned()).unwrap_or_default()
        });
        visit(Entry { relative: &relative, stat, link, location: location() })?;
        if kind != Some(FileType::Directory) || levels.level >= levels.deepest {
            continue;
        }
        match levels.enter(folder, &name) {
            Ok(inner) => {
                let deeper = Levels { level: levels.level + 1, ..levels };
                descend(&inner, &relative, deeper, visit)?;
            }
            Err(error) => {
                visit(Entry {
                    relative: &relative,
                    stat: Err(error),
                    link: None,
                    location: location(),
                })?;
            }
        }
    }
    ControlFlow::Continue(())
}

fn subfolder(folder: &OwnedFd, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name.as_c_str(), flags, Mode::empty())
}

/// The names in a folder, in byte order. A folder that changes meanwhile, or
/// goes away, has those that were read.
fn names(folder: &OwnedFd) -> Vec<CString> {
    let Ok(entries) = Dir::read_from(folder) else { return Vec::new() };
    let names = entries.map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    let mut names: Vec<CString> =
        names.filter(|name| !matches!(name.as_bytes(), b"." | b"..")).collect();
    names.sort_unstable();
    names
}

fn as_path(name: &CString) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()))
}
