//! Looking through a data file for damage.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable};

use super::fault::{chain, contain, storage};
use super::format::{CURRENT, Entry, LEASE_KEYS, LEASES, LOG, decode_log, decode_row};
use super::open::{self, FORMAT, Loaded};
use crate::{Error, KeyValue, Result, Revision};

/// Findings in a file.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    pub(crate) format: u64,
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    pub(crate) keys: u64,
    pub(crate) log_entries: u64,
    pub(crate) leases: u64,
    pub(crate) problems: Vec<String>,
}

/// Walks the whole file; `visit` sees every key and says what is wrong with
/// its value. Fails only if the file cannot be opened at all.
pub(crate) fn inspect(
    path: &Path,
    visit: &mut dyn FnMut(&KeyValue) -> Option<String>,
) -> Result<Inspection> {
    if !path
        .try_exists()
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?
    {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io(format!("opening {}", path.display()), missing));
    }
    let _lock = open::lock(path)?;
    let mut database = open::database(path, &open::builder(64 << 20))?;
    let mut found = Inspection { format: FORMAT, ..Inspection::default() };
    let sound = contain(|| database.check_integrity().map_err(storage));
    match sound {
        Ok(true) => {}
        Ok(false) => {
            found.problems.push("page structure was damaged and has been repaired".to_owned())
        }
        Err(error) => {
            found.problems.push(format!("page structure: {}", chain(&error)));
            return Ok(found);
        }
    }
    let walked = contain(|| walk(&database, &mut found, visit));
    if let Err(error) = walked {
        let error = open::name_file(error, path);
        found.problems.push(chain(&error));
    }
    Ok(found)
}

fn walk(
    database: &Database,
    found: &mut Inspection,
    visit: &mut dyn FnMut(&KeyValue) -> Option<String>,
) -> Result<()> {
    open::prepare(database)?;
    let Loaded { horizon, applied, pending, .. } = open::load(database)?;
    found.revision = horizon.revision;
    found.compacted = horizon.compacted;
    let mut rows = current_rows(database, found)?;
    for (key, row) in pending {
        match row {
            Some(row) => rows.insert(key.clone(), decode_row(key, &row, true)?),
            None => rows.remove(&key),
        };
    }
    found.keys = rows.len() as u64;
    for (key, kv) in &rows {
        let ordered = kv.create_revision <= kv.mod_revision && kv.mod_revision <= horizon.revision;
        if !ordered || kv.version == 0 {
            found.problems.push(format!("key {key:?} has impossible revisions"));
        }
        found.problems.extend(visit(kv));
    }
    walk_log(database, applied.min(horizon.compacted) + 1, &rows, found)?;
    walk_leases(database, &rows, found)
}

fn current_rows(database: &Database, found: &mut Inspection) -> Result<BTreeMap<Bytes, KeyValue>> {
    let read = database.begin_read().map_err(storage)?;
    let mut rows = BTreeMap::new();
    for row in read.open_table(CURRENT).map_err(storage)?.iter().map_err(storage)? {
        let (key, row) = row.map_err(storage)?;
        let key = Bytes::copy_from_slice(key.value());
        match decode_row(key.clone(), row.value(), true) {
            Ok(kv) => {
                rows.insert(key, kv);
            }
            Err(error) => found.problems.push(error.to_string()),
        }
    }
    Ok(rows)
}

/// The log must be without gaps, and its last word on a key must be the row
/// that is there.
fn walk_log(
    database: &Database,
    first: Revision,
    rows: &BTreeMap<Bytes, KeyValue>,
    found: &mut Inspection,
) -> Result<()> {
    let read = database.begin_read().map_err(storage)?;
    let mut last_word = BTreeMap::new();
    let mut expected = first;
    for row in read.open_table(LOG).map_err(storage)?.iter().map_err(storage)? {
        let (revision, row) = row.map_err(storage)?;
        let revision = revision.value();
        if revision != expected {
            found.problems.push(format!("log entry {expected} is missing"));
        }
        expected = revision + 1;
        found.log_entries += 1;
        match decode_log(revision, row.value()).and_then(|log| Entry::from_log(revision, log)) {
            Ok(entry) => {
                for event in entry.events {
                    let exists = matches!(event, crate::Event::Put(_));
                    last_word.insert(event.key().clone(), (exists, revision));
                }
            }
            Err(error) => found.problems.push(error.to_string()),
        }
    }
    for (key, (exists, revision)) in last_word {
        let row = rows.get(&key).map(|kv| kv.mod_revision);
        if row != exists.then_some(revision) {
            found.problems.push(format!("key {key:?} is not what log entry {revision} made of it"));
        }
    }
    Ok(())
}

fn walk_leases(
    database: &Database,
    rows: &BTreeMap<Bytes, KeyValue>,
    found: &mut Inspection,
) -> Result<()> {
    let read = database.begin_read().map_err(storage)?;
    let leases = read.open_table(LEASES).map_err(storage)?;
    found.leases = leases.iter().map_err(storage)?.count() as u64;
    let lease_keys = read.open_table(LEASE_KEYS).map_err(storage)?;
    for row in lease_keys.iter().map_err(storage)? {
        let (pair, _) = row.map_err(storage)?;
        let (lease, key) = pair.value();
        let held = rows.get(key).and_then(|kv| kv.lease).map(|id| id.0);
        if held != Some(lease) {
            found
                .problems
                .push(format!("lease {lease:016x} claims {:?}", Bytes::copy_from_slice(key)));
        }
    }
    for kv in rows.values() {
        let Some(lease) = kv.lease else { continue };
        let known = leases.get(lease.0).map_err(storage)?.is_some();
        if !known || lease_keys.get((lease.0, &kv.key[..])).map_err(storage)?.is_none() {
            found
                .problems
                .push(format!("key {:?} hangs on lease {lease}, which does not know it", kv.key));
        }
    }
    Ok(())
}
