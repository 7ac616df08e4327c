//! Opening a data file: who else has it, which format it has, what it holds.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, WriteTransaction,
};

use super::fault::{contain, storage};
use super::format::{
    CURRENT, FIRST_REVISION, LEASE_KEYS, LEASES, LOG, META, META_APPLIED, META_COMPACTED,
    META_FORMAT, META_REVISION, decode_log,
};
use super::lease::{LeaseBook, Term};
use super::pending::Rows;
use super::read::Horizon;
use crate::{Error, LeaseId, Result, Revision};

/// The format that this program writes.
pub(super) const FORMAT: u64 = 1;

type Upgrade = fn(&WriteTransaction) -> Result<()>;
/// The step at index n turns format n + 1 into format n + 2.
const UPGRADES: [Upgrade; FORMAT as usize - 1] = [];

/// Lock on the data file, held as long as it is open.
#[derive(Debug)]
pub(super) struct LockFile {
    _file: File,
}

/// Takes the file beside the data file that says who has it open.
pub(super) fn lock(path: &Path) -> Result<LockFile> {
    let lock_path = beside(path, ".lock");
    let io = |error| Error::io(format!("locking {}", lock_path.display()), error);
    let mut file = read_write(&lock_path, false)?;
    match selvage_lock::take(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Locked { path: path.to_owned(), holder: holder(&mut file) });
        }
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(Path::file_name).unwrap_or_default();
    writeln!(file, "process {} ({})", std::process::id(), name.to_string_lossy()).map_err(io)?;
    Ok(LockFile { _file: file })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(256).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

pub(super) fn builder(cache_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    builder.set_repair_callback(|session| {
        tracing::info!(progress = session.progress(), "checking the data file after a crash");
    });
    builder
}

/// Opens the file, making it first if there is none or nothing in it.
pub(super) fn database(path: &Path, builder: &Builder) -> Result<Database> {
    let length = match path.metadata() {
        Ok(data) => data.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(Error::io(format!("opening {}", path.display()), error)),
    };
    if length == 0 {
        create_file(path, builder)?;
    }
    let file = read_write(path, false)?;
    // redb tries for this lock too, but only once. It tells if somebody has it.
    let _ = selvage_lock::take(&file);
    contain(|| builder.create_file(file).map_err(storage)).map_err(|error| name_file(error, path))
}

/// Makes a file under another name and renames it when it is complete, so
/// that a crash leaves either no file or one that can be opened.
fn create_file(path: &Path, builder: &Builder) -> Result<()> {
    let io = |error| Error::io(format!("creating {}", path.display()), error);
    let unfinished = beside(path, ".new");
    let file = read_write(&unfinished, true)?;
    let made = contain(|| {
        let database = builder.create_file(file).map_err(storage)?;
        prepare(&database)
    });
    made.map_err(|error| name_file(error, &unfinished))?;
    selvage_files::rename(&unfinished, path).map_err(io)
}

/// Opens a file that only its owner may read.
fn read_write(path: &Path, empty: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(empty)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))
}

/// Puts the path where so far only "data file" stands.
pub(super) fn name_file(error: Error, path: &Path) -> Error {
    let file = path.display();
    match error {
        Error::Corrupt { detail, .. } => Error::corrupt(format!("data file {file}"), detail),
        Error::NewerFormat { found, supported, .. } => {
            Error::NewerFormat { what: format!("data file {file}"), found, supported }
        }
        Error::Io { source, .. } => {
            Error::io(format!("input or output on data file {file} failed"), source)
        }
        Error::Locked { holder, .. } => Error::Locked { path: path.to_owned(), holder },
        other => other,
    }
}

/// Makes a new file ready, brings an old one up to date, refuses a newer one.
pub(super) fn prepare(database: &Database) -> Result<()> {
    let write = database.begin_write().map_err(storage)?;
    let found = {
        let meta = write.open_table(META).map_err(storage)?;
        meta.get(META_FORMAT).map_err(storage)?.map(|row| row.value())
    };
    let fresh = found.is_none();
    match found {
        None => create(&write)?,
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            let what = "data file".to_owned();
            return Err(Error::NewerFormat { what, found, supported: FORMAT });
        }
        Some(found) => upgrade(&write, found, &UPGRADES)?,
    }
    if !fresh && found == Some(FORMAT) {
        return write.abort().map_err(storage);
    }
    write.open_table(META).map_err(storage)?.insert(META_FORMAT, FORMAT).map_err(storage)?;
    write.commit().map_err(storage)
}

fn create(write: &WriteTransaction) -> Result<()> {
    let mut meta = write.open_table(META).map_err(storage)?;
    let current = write.open_table(CURRENT).map_err(storage)?;
    if !meta.is_empty().map_err(storage)? || !current.is_empty().map_err(storage)? {
        return Err(Error::corrupt("data file", "it holds data but names no format"));
    }
    meta.insert(META_REVISION, FIRST_REVISION).map_err(storage)?;
    meta.insert(META_COMPACTED, FIRST_REVISION).map_err(storage)?;
    meta.insert(META_APPLIED, FIRST_REVISION).map_err(storage)?;
    write.open_table(LOG).map_err(storage)?;
    write.open_table(LEASES).map_err(storage)?;
    write.open_table(LEASE_KEYS).map_err(storage)?;
    Ok(())
}

/// Runs the steps from format `found` on, all inside one transaction.
fn upgrade(write: &WriteTransaction, found: u64, steps: &[Upgrade]) -> Result<()> {
    let done = found.checked_sub(1).and_then(|done| usize::try_from(done).ok());
    let Some(rest) = done.and_then(|done| steps.get(done..)) else {
        return Err(Error::corrupt("data file", format!("format {found} never existed")));
    };
    for step in rest {
        step(write)?;
    }
    tracing::info!(from = found, to = FORMAT, "data file brought to the current format");
    Ok(())
}

/// State that has to be known at the start.
pub(super) struct Loaded {
    pub(super) horizon: Horizon,
    /// Revision up to which the table of current rows is complete.
    pub(super) applied: Revision,
    /// Rows that came after that.
    pub(super) pending: Rows,
    pub(super) leases: LeaseBook,
}

pub(super) fn load(database: &Database) -> Result<Loaded> {
    let read = database.begin_read().map_err(storage)?;
    let meta = read.open_table(META).map_err(storage)?;
    let number = |name: &str| -> Result<u64> {
        let row = meta.get(name).map_err(storage)?;
        row.map(|row| row.value())
            .ok_or_else(|| Error::corrupt("data file", format!("it does not say its {name}")))
    };
    let horizon = Horizon { revision: number(META_REVISION)?, compacted: number(META_COMPACTED)? };
    let applied = number(META_APPLIED)?;
    if applied > horizon.revision || horizon.compacted > horizon.revision {
        return Err(Error::corrupt("data file", format!("its revisions disagree: {horizon:?}")));
    }
    read.open_table(CURRENT).map_err(storage)?;
    read.open_table(LEASE_KEYS).map_err(storage)?;
    let mut leases = LeaseBook::default();
    for row in read.open_table(LEASES).map_err(storage)?.iter().map_err(storage)? {
        let (id, term) = row.map_err(storage)?;
        let (ttl, ends) = term.value();
        leases.set(LeaseId(id.value()), Term { ttl, ends });
    }
    let log = read.open_table(LOG).map_err(storage)?;
    let pending = load_pending(&log, applied, horizon.revision)?;
    Ok(Loaded { horizon, applied, pending, leases })
}

/// Changes of the log after `applied`; none may be missing.
fn load_pending(
    log: &impl ReadableTable<u64, &'static [u8]>,
    applied: Revision,
    revision: Revision,
) -> Result<Rows> {
    let mut rows = Rows::new();
    let mut seen = applied;
    for row in log.range(applied + 1..).map_err(storage)? {
        let (at, row) = row.map_err(storage)?;
        if at.value() != seen + 1 {
            break;
        }
        seen += 1;
        for change in decode_log(seen, row.value())?.changes {
            rows.insert(change.key, change.row);
        }
    }
    if seen == revision {
        return Ok(rows);
    }
    let detail = format!("it is at revision {revision} but its log goes only to {seen}");
    Err(Error::corrupt("data file", detail))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use redb::backends::InMemoryBackend;

    use super::*;

    fn step(write: &WriteTransaction) -> Result<()> {
        let mut meta = write.open_table(META).map_err(storage)?;
        let ran = meta.get("ran").map_err(storage)?.map_or(0, |row| row.value());
        meta.insert("ran", ran + 1).map_err(storage)?;
        Ok(())
    }

    #[test]
    fn an_older_format_is_taken_through_the_steps_it_lacks() {
        let database = builder(1 << 20).create_with_backend(InMemoryBackend::new()).unwrap();
        let write = database.begin_write().unwrap();
        upgrade(&write, 2, &[step, step, step]).unwrap();
        let ran = write.open_table(META).unwrap().get("ran").unwrap().unwrap().value();
        assert_eq!(ran, 2);
        let error = upgrade(&write, 0, &[step]).unwrap_err();
        assert_eq!(error.to_string(), "data file is damaged: format 0 never existed");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let database = builder(1 << 20).create_with_backend(InMemoryBackend::new()).unwrap();
        prepare(&database).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(META_FORMAT, FORMAT + 1).unwrap();
        write.commit().unwrap();
        let error = prepare(&database).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found, .. } if found == FORMAT + 1));
    }
}
