//! The records of the volumes of one group, and the group's own.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use selvage_files::UNFINISHED;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{EXTENT, GIB, private};
use crate::{Error, Result, config::LoopGroup};

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

    /// Makes a volume: its image first, then the record that makes it exist.
    pub(super) fn add(
        &self,
        record: &mut Record,
        make: impl FnOnce(&mut Record) -> Result<()>,
    ) -> Result<()> {
        if self.record(&record.name).exists() {
            let (group, name) = (self.name().to_owned(), record.name.clone());
            return Err(Error::Exists { group, name });
        }
        let made = make(record).and_then(|()| self.write(record));
        if made.is_err() {
            let _ = fs::remove_file(self.image(&record.name));
        }
        made
    }

    pub(super) fn write(&self, record: &Record) -> Result<()> {
        replace(&self.record(&record.name), record)
    }

    pub(super) fn read(&self, name: &str) -> Result<Option<Record>> {
        read(&self.record(name))
    }

    /// Removes a volume: its record first, which ends it.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let (record, image) = (self.record(name), self.image(name));
        fs::remove_file(&record).map_err(Error::file(&record))?;
        selvage_files::sync_folder(&self.folder).map_err(Error::file(&self.folder))?;
        match fs::remove_file(&image) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file(&image)(error))
            }
            _ => Ok(()),
        }
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

    /// Removes what is not finished, and undoes what is half done.
    pub(super) fn clean(&self) -> Result<()> {
        for path in self.files()? {
            let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let unfinished = end == UNFINISHED || (end == IMAGE && !self.record(stem).exists());
            if unfinished {
                tracing::warn!(file = %path.display(), "removing what was not finished");
                fs::remove_file(&path).map_err(Error::file(&path))?;
            }
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

    fn files(&self) -> Result<Vec<PathBuf>> {
        let listed = fs::read_dir(&self.folder)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
        listed.map_err(Error::file(&self.folder))
    }
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
