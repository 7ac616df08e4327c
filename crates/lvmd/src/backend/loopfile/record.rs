//! The records of the volumes of one group, and the group's own.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use selvage_files::UNFINISHED;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{EXTENT, GIB};
use crate::{Error, Result, config::LoopGroup, private};

const IMAGE: &str = "img";
const RECORD: &str = "volume";
const GROUP_RECORD: &str = "group";

/// A volume, as its record says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) tags: Vec<String>,
    pub(super) pool: Option<String>,
    pub(super) origin: Option<String>,
    pub(super) read_only: bool,
    /// A snapshot that had its blocks in common with its source when it was made.
    pub(super) shares_blocks: bool,
    /// When it was made, in nanoseconds since 1970; 0 if that is not known.
    pub(super) created: u64,
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

/// A group, as its record says.
#[derive(Debug, Default, Serialize, Deserialize)]
struct GroupRecord {
    size: u64,
}

/// The folder of one group.
pub(super) struct Store {
    folder: PathBuf,
    declared: LoopGroup,
    size: u64,
}

impl Store {
    pub(super) fn open(folder: &Path, declared: &LoopGroup) -> Result<Self> {
        private::make_folder(folder)?;
        let size = match declared.size_gb {
            0 => found_size(folder)?,
            gib => gib.saturating_mul(GIB),
        };
        Ok(Self { folder: folder.to_owned(), declared: declared.clone(), size })
    }

    pub(super) fn name(&self) -> &str {
        &self.declared.name
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn size(&self) -> u64 {
        self.size / EXTENT * EXTENT
    }

    /// Thin pools with their sizes.
    pub(super) fn pools(&self) -> Vec<(String, u64)> {
        let size = |gib: u64| if gib == 0 { self.size / 2 } else { gib.saturating_mul(GIB) };
        let pools = self.declared.thin_pools.iter();
        pools.map(|pool| (pool.name.clone(), size(pool.size_gb) / EXTENT * EXTENT)).collect()
    }

    /// Returns whether the space of a volume is reserved on disk. One that is never
    /// written to needs no more than it has.
    pub(super) fn reserves(&self, record: &Record) -> bool {
        let wanted = self.declared.preallocate.unwrap_or(true);
        wanted && record.pool.is_none() && !record.read_only
    }

    pub(super) fn image(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{IMAGE}"))
    }

    fn record(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{RECORD}"))
    }

    /// Image that is being made or removed.
    fn unfinished(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{IMAGE}.{UNFINISHED}"))
    }

    /// Makes a volume: its image first, under the name of one that is not finished, then the
    /// record that makes it exist. The image gets its name last, at the next start if the
    /// process ends before.
    pub(super) fn add(
        &self,
        record: &mut Record,
        make: impl FnOnce(&mut Record, &Path) -> Result<()>,
    ) -> Result<()> {
        self.check_free_name(&record.name)?;
        let (image, unfinished) = (self.image(&record.name), self.unfinished(&record.name));
        let made = make(record, &unfinished)
            .and_then(|()| self.write(record))
            .and_then(|()| put_in_place(&unfinished, &image));
        if made.is_err() {
            for path in [self.record(&record.name), unfinished, image] {
                let _ = fs::remove_file(path);
            }
        }
        made
    }

    fn check_free_name(&self, name: &str) -> Result<()> {
        if is_there(&self.record(name))? {
            let (group, name) = (self.name().to_owned(), name.to_owned());
            return Err(Error::Exists { group, name });
        }
        let image = self.image(name);
        if is_there(&image)? {
            let image = image.display();
            let why = format!("{image} is there without a record: move it away first");
            return Err(Error::Precondition(why));
        }
        Ok(())
    }

    pub(super) fn write(&self, record: &Record) -> Result<()> {
        replace(&self.record(&record.name), record)
    }

    pub(super) fn read(&self, name: &str) -> Result<Option<Record>> {
        read(&self.record(name))
    }

    /// Removes a volume. Its image loses its name first, so that a process that ends
    /// meanwhile leaves the volume, or an image that is known to be of no use. The end of
    /// its record ends it.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let (record, image) = (self.record(name), self.image(name));
        let unfinished = self.unfinished(name);
        let has_image = is_there(&image)?;
        if has_image {
            put_in_place(&image, &unfinished)?;
        }
        if let Err(error) = fs::remove_file(&record) {
            if has_image {
                put_in_place(&unfinished, &image)?;
            }
            return Err(Error::file(&record)(error));
        }
        selvage_files::sync_folder(&self.folder).map_err(Error::file(&self.folder))?;
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file(&unfinished)(error))
            }
            _ => Ok(()),
        }
    }

    /// Images that no record tells of. Somebody may have put them there, or lost the record.
    pub(super) fn strays(&self) -> Result<Vec<String>> {
        let mut strays = Vec::new();
        for path in self.files()? {
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let is_image = path.extension().is_some_and(|end| end == IMAGE);
            if is_image && !is_there(&self.record(name))? {
                strays.push(name.to_owned());
            }
        }
        Ok(strays)
    }

    /// All volumes, by name.
    pub(super) fn all(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for path in self.files()? {
            if path.extension().is_some_and(|end| end == RECORD) {
                records.extend(read::<Record>(&path)?);
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// Removes what is not finished, and undoes what is half done. An image without a record
    /// is left alone: it may be all that is left of a volume.
    pub(super) fn clean(&self) -> Result<()> {
        for path in self.files()? {
            if path.extension().is_some_and(|end| end == UNFINISHED) {
                self.finish_or_remove(&path)?;
            }
        }
        for name in self.strays()? {
            let image = self.image(&name);
            tracing::error!(image = %image.display(), "an image has no record, and is left alone");
        }
        for record in self.all()? {
            let image = self.image(&record.name);
            match fs::metadata(&image) {
                Ok(found) if found.len() > record.size => {
                    let file = File::options().write(true).open(&image);
                    let cut = file.and_then(|file| file.set_len(record.size));
                    cut.map_err(Error::file(&image))?;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(volume = %record.name, %error, "a volume lost its image");
                }
            }
        }
        Ok(())
    }

    /// An image whose record was written, and that has not got its name, or had lost it to
    /// be removed, gets it. Everything else goes.
    fn finish_or_remove(&self, path: &Path) -> Result<()> {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let image = self.folder.join(stem);
        if image.extension().is_some_and(|end| end == IMAGE) {
            let name = image.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if is_there(&self.record(name))? && !is_there(&image)? {
                return put_in_place(path, &image);
            }
        }
        tracing::warn!(file = %path.display(), "removing what was not finished");
        fs::remove_file(path).map_err(Error::file(path))
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let listed = fs::read_dir(&self.folder)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
        listed.map_err(Error::file(&self.folder))
    }
}

/// Returns whether a file is there. That this cannot be told is no answer.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(Error::file(path))
}

fn put_in_place(from: &Path, to: &Path) -> Result<()> {
    selvage_files::rename(from, to).map_err(Error::file(from))
}

/// Returns the size in the group's record, or, the first time, half of what is free.
fn found_size(folder: &Path) -> Result<u64> {
    let path = folder.join(GROUP_RECORD);
    if let Some(record) = read::<GroupRecord>(&path)? {
        return Ok(record.size);
    }
    let space = rustix::fs::statvfs(folder).map_err(|error| Error::file(folder)(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let size = (free / 2 / GIB).max(1) * GIB;
    replace(&path, &GroupRecord { size })?;
    Ok(size)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file(path)(error)),
    };
    let malformed =
        |error: serde_json::Error| Error::Malformed { path: path.into(), what: error.to_string() };
    serde_json::from_slice(&text).map(Some).map_err(malformed)
}

/// Puts a file in place whole or not at all.
fn replace<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Error::Malformed { path: path.into(), what: error.to_string() })?;
    selvage_files::replace(path, &text, 0o600).map_err(Error::file(path))
}
