//! Volumes, and what is known of backups, are for their owner alone: folders are 0700, files
//! are 0600.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use crate::{Error, Result};

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;
/// Permissions of others.
const OTHERS: u32 = 0o077;

/// Makes a folder, and those above it, if it is not there.
pub(super) fn make_folder(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(path);
    made.map_err(Error::file(path))
}

/// Makes a folder that is ours alone, and takes one that is there from others.
pub(super) fn take_folder(path: &Path) -> Result<()> {
    make_folder(path)?;
    if tighten(path, FOLDER)? {
        tracing::warn!(folder = %path.display(), "it could be read by others; now it cannot");
    }
    Ok(())
}

/// Makes an empty file; one that is there is emptied.
pub(super) fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Takes from others what earlier versions gave them of the folder of a group
/// and what is in it.
pub(super) fn repair(folder: &Path) -> Result<()> {
    let mut repaired = usize::from(tighten(folder, FOLDER)?);
    for entry in fs::read_dir(folder).map_err(Error::file(folder))?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            repaired += usize::from(tighten(&entry.path(), FILE)?);
        }
    }
    if repaired > 0 {
        let folder = folder.display();
        tracing::warn!(%folder, repaired, "volumes could be read by others; now they cannot");
    }
    Ok(())
}

/// Takes the directory of all groups from others, unless it holds what is not
/// ours: that may be theirs.
pub(super) fn repair_directory(directory: &Path, ours: &[&str]) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(Error::file(directory))?.flatten();
    let foreign = entries.into_iter().any(|entry| {
        !ours.iter().any(|name| entry.file_name().as_encoded_bytes() == name.as_bytes())
    });
    if !foreign && tighten(directory, FOLDER)? {
        let directory = directory.display();
        tracing::warn!(%directory, "the directory of volumes could be read by others; now it cannot");
    }
    Ok(())
}

/// Takes permissions of others away; returns whether there were any.
fn tighten(path: &Path, mode: u32) -> Result<bool> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        // Removed between the list and the look.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::file(path)(error)),
    };
    if about.permissions().mode() & OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file(path))?;
    Ok(true)
}
