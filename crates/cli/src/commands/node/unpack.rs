//! Taking an archive apart that may mean harm: nothing is written outside the
//! folder, nothing through a link, and no link leads out of it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use crate::Error;

/// Result of unpacking.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    /// Entries that were left out, and why.
    pub(crate) refused: Vec<(String, &'static str)>,
}

const OUTSIDE: &str = "its name leads out of the folder";
const THROUGH: &str = "its path leads over something that is no folder";
const LINK_OUT: &str = "it is a link that leads out of the folder";
const LINK_NOWHERE: &str = "it is a link to a file that was not fetched";
const SPECIAL: &str = "it is neither file, folder nor link";
/// End of the name of a file that is not whole yet.
const PART: &str = ".selvage-part";
const TAKEN: &str = "a folder of that name is there already";

/// Takes a tar.gz apart into a folder, which is made where it is missing.
pub(crate) fn unpack(archive: impl Read, into: &Path) -> Result<Unpacked, Error> {
    fs::create_dir_all(into).map_err(|source| Error::write(into, source))?;
    let mut archive = Archive::new(MultiGzDecoder::new(archive));
    let mut unpacked = Unpacked::default();
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let name = entry.path().map_err(damaged)?.into_owned();
        if let Some(reason) = one(&mut entry, &name, into)? {
            unpacked.refused.push((name.display().to_string(), reason));
        }
    }
    Ok(unpacked)
}

fn damaged(source: io::Error) -> Error {
    Error::read("the archive that the machine sent", source)
}

/// Unpacks one entry, or says why not.
fn one<R: Read>(
    entry: &mut Entry<'_, R>,
    name: &Path,
    into: &Path,
) -> Result<Option<&'static str>, Error> {
    let Some(inside) = inside(name) else { return Ok(Some(OUTSIDE)) };
    let path = into.join(&inside);
    let failed = |source| Error::write(&path, source);
    let kind = entry.header().entry_type();
    if inside.as_os_str().is_empty() {
        return Ok(if kind.is_dir() { None } else { Some(OUTSIDE) });
    }
    if !folders(into, inside.parent().unwrap_or(Path::new(""))).map_err(failed)? {
        return Ok(Some(THROUGH));
    }
    match kind {
        EntryType::Directory => {
            let made = folders(into, &inside).map_err(failed)?;
            Ok(if made { None } else { Some(THROUGH) })
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                return Ok(Some(TAKEN));
            }
            regular(entry, &path).map_err(failed)?;
            Ok(None)
        }
        EntryType::Symlink | EntryType::Link => {
            let target = entry.link_name().map_err(damaged)?.map(|name| name.into_owned());
            link(kind, &target.unwrap_or_default(), &inside, into).map_err(failed)
        }
        _ => Ok(Some(SPECIAL)),
    }
}

/// The path without `.`, unless it is absolute or climbs.
fn inside(name: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(inside)
}

/// Makes the folders of a path that are missing; false when one of them is
/// something else, a link above all.
fn folders(into: &Path, inside: &Path) -> io::Result<bool> {
    let mut path = into.to_owned();
    for part in inside {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().mode(0o755).create(&path)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Makes room, so that nothing is ever written through what is there; false
/// when a folder is.
fn cleared(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(false),
        Ok(_) => fs::remove_file(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Writes a file beside its place, and puts it there when it is whole.
fn regular<R: Read>(entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(PART);
    let part = path.with_file_name(name);
    // Of an earlier run that was cut off.
    if !cleared(&part)? {
        return Err(io::Error::other(format!("{} is a folder", part.display())));
    }
    let written = fetched(entry, &part).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // What made it fail says more than what keeps the rest there.
        let _ = fs::remove_file(&part);
    }
    written
}

fn fetched<R: Read>(entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
    // Neither set-user-id nor owners come along.
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let size = io::copy(entry, &mut file)?;
    if size < entry.header().size().unwrap_or(size) && !entry.header().entry_type().is_gnu_sparse()
    {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it was sent in part only"));
    }
    let modified = entry.header().mtime().unwrap_or(0);
    if let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(modified)) {
        // A file system that keeps no such times still keeps the file.
        let _ = file.set_modified(time);
    }
    Ok(())
}

fn link(
    kind: EntryType,
    target: &Path,
    inside_name: &Path,
    into: &Path,
) -> io::Result<Option<&'static str>> {
    let path = into.join(inside_name);
    if kind.is_symlink() {
        if !stays(target, inside_name) {
            return Ok(Some(LINK_OUT));
        }
        if !cleared(&path)? {
            return Ok(Some(TAKEN));
        }
        std::os::unix::fs::symlink(target, &path)?;
        return Ok(None);
    }
    let Some(target) = inside(target) else { return Ok(Some(LINK_OUT)) };
    let real = target.parent().is_none_or(|parent| is_real(into, parent));
    let original = into.join(&target);
    if !real || !fs::symlink_metadata(&original).is_ok_and(|found| found.is_file()) {
        return Ok(Some(LINK_NOWHERE));
    }
    if original == path {
        return Ok(None);
    }
    if !cleared(&path)? {
        return Ok(Some(TAKEN));
    }
    fs::hard_link(&original, &path).map(|()| None)
}

/// Returns whether all of a path are folders and none is a link.
fn is_real(into: &Path, inside: &Path) -> bool {
    let mut path = into.to_owned();
    inside.iter().all(|part| {
        path.push(part);
        fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())
    })
}

/// Returns whether a symbolic link stays inside. It may climb only at its beginning,
/// where what it climbs from is a true folder: after a name, which may be a
/// link itself, nobody can tell where `..` leads.
fn stays(target: &Path, name: &Path) -> bool {
    let depth = name.components().count().saturating_sub(1);
    let mut climbed = 0;
    let mut named = false;
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if !named => climbed += 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    climbed <= depth && !target.as_os_str().is_empty()
}

#[cfg(test)]
mod tests;
