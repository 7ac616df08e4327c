//! Moving everything from one store to another, and checking a data file.
//!
//! The portable form is a text file, one JSON object a line:
//!
//! ```text
//! {"format":"selvage-store-export","version":1,"revision":4711}
//! {"key":"<base64>","value":"<base64>"}
//! …
//! {"keys":2,"sha256":"<hex>"}
//! ```
//!
//! Keys stand in ascending order. The last line has the number of keys and
//! the SHA-256 of every byte before that line, so a file that was cut off or
//! altered is noticed before anything is written. Keys that hang on a lease
//! are left out, since a lease means nothing to another store; revisions are
//! not carried over, since the target has a history of its own.

mod file;

use std::path::Path;

use bytes::Bytes;

use crate::embedded::{self, blocking};
use crate::table::{ROOT, open_envelope, scan};
use crate::{Error, KeyRange, KeyValue, Op, RangeRequest, Result, Revision, Store, Txn};

use self::file::{Reader, Writer};

/// Keys and bytes that are written to the target in one transaction.
const OPS_AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 512 * 1024;

/// Counts of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// The state of the source at this revision is what was written.
    pub revision: Revision,
    pub keys: u64,
    /// Keys left out because they hang on a lease.
    pub leased: u64,
}

/// Counts of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Revision of the store that the file came from.
    pub source_revision: Revision,
    pub keys: u64,
    /// Revision of the target after it.
    pub revision: Revision,
}

/// Rule for an import into a store that holds keys already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// Write over keys that are in the file, leave the others. Also the way
    /// to go on after an import that was interrupted.
    Merge,
}

/// Writes everything in `store` to a new file; one that exists is replaced
/// only when the new one is complete.
pub async fn export(store: &dyn Store, path: &Path) -> Result<Exported> {
    let (items, revision) = scan(store, KeyRange::All).await?;
    let path = path.to_owned();
    blocking(move || {
        let mut exported = Exported { revision, keys: 0, leased: 0 };
        let mut writer = Writer::create(&path, revision)?;
        for kv in items {
            if kv.lease.is_some() {
                exported.leased += 1;
                continue;
            }
            exported.keys += 1;
            writer.entry(&kv.key, &kv.value)?;
        }
        writer.finish()?;
        Ok(exported)
    })
    .await
}

/// Content of a file written by [`export`].
#[derive(Debug)]
pub struct Content {
    revision: Revision,
    entries: Vec<(Bytes, Bytes)>,
}

/// Reads a file written by [`export`] from end to end, and fails if it was cut
/// off or altered.
pub async fn read(path: &Path) -> Result<Content> {
    let path = path.to_owned();
    blocking(move || {
        let mut reader = Reader::open(&path)?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry()? {
            entries.push(entry);
        }
        Ok(Content { revision: reader.revision(), entries })
    })
    .await
}

/// Writes what [`read`] found into `store`.
pub async fn import(store: &dyn Store, content: Content, existing: Existing) -> Result<Imported> {
    let Content { revision: source_revision, entries } = content;
    if existing == Existing::Refuse {
        let request = RangeRequest::new(KeyRange::All).limit(1).keys_only();
        let count = store.range(request).await?.count;
        if count > 0 {
            return Err(Error::NotEmpty { count });
        }
    }
    let keys = entries.len() as u64;
    let mut txn = Txn::new();
    let mut bytes = 0;
    for (key, value) in entries {
        bytes += key.len() + value.len();
        txn.then.push(Op::put(key, value));
        if txn.then.len() == OPS_AT_ONCE || bytes > BYTES_AT_ONCE {
            store.txn(std::mem::take(&mut txn)).await?;
            bytes = 0;
        }
    }
    if !txn.then.is_empty() {
        store.txn(txn).await?;
    }
    Ok(Imported { source_revision, keys, revision: store.revision().await? })
}

/// Findings of [`check`] in a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    pub format: u64,
    pub revision: Revision,
    pub compacted: Revision,
    pub keys: u64,
    /// Keys that hold a record of the typed layer.
    pub records: u64,
    pub log_entries: u64,
    pub leases: u64,
    /// Empty if all is well.
    pub problems: Vec<String>,
}

/// Walks the data file of an embedded store that nobody has open: its pages
/// and their checksums, the envelope of every record, the change log, the
/// leases. What can be repaired in the pages is repaired.
pub async fn check(path: &Path) -> Result<CheckReport> {
    let path = path.to_owned();
    blocking(move || {
        let mut records = 0;
        let found = embedded::inspect(&path, &mut |kv| {
            let own = kv.key.strip_prefix(ROOT.as_bytes())?;
            records += 1;
            check_record(own, kv).err()
        })?;
        Ok(CheckReport {
            format: found.format,
            revision: found.revision,
            compacted: found.compacted,
            keys: found.keys,
            records,
            log_entries: found.log_entries,
            leases: found.leases,
            problems: found.problems,
        })
    })
    .await
}

fn check_record(own: &[u8], kv: &KeyValue) -> Result<(), String> {
    let name = String::from_utf8_lossy(own);
    let envelope =
        open_envelope(&kv.value).map_err(|detail| format!("record {name:?}: {detail}"))?;
    match name.split_once('/') {
        Some((kind, key)) if kind == envelope.kind && !key.is_empty() => Ok(()),
        _ => Err(format!("record {name:?}: it says it is of kind {:?}", envelope.kind)),
    }
}
