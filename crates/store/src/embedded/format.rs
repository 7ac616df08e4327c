//! The tables of the data file and how rows are written in them.

use bytes::Bytes;
use prost::Message;
use redb::TableDefinition;

use crate::clock::Millis;
use crate::watch::Event;
use crate::{Error, KeyValue, LeaseId, Result, Revision};

/// Single numbers: format, revision, compacted, applied.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Key to its row as of the revision `applied`; what came later is in the log.
pub(super) const CURRENT: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("current");
/// Revision to what changed at it. Every revision that is not both compacted
/// and applied has exactly one entry.
pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Lease to its duration and end, in milliseconds.
pub(super) const LEASES: TableDefinition<'_, i64, (u64, u64)> = TableDefinition::new("leases");
/// Keys that hang on a lease.
pub(super) const LEASE_KEYS: TableDefinition<'_, (i64, &[u8]), ()> =
    TableDefinition::new("lease-keys");

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
pub(super) const META_APPLIED: &str = "applied";

/// Revision of a store in which nothing was ever written, as in etcd.
pub(super) const FIRST_REVISION: Revision = 1;

const ROW_HEADER: usize = 32;

pub(super) fn encode_row(kv: &KeyValue) -> Vec<u8> {
    let mut row = Vec::with_capacity(ROW_HEADER + kv.value.len());
    row.extend_from_slice(&kv.create_revision.to_le_bytes());
    row.extend_from_slice(&kv.mod_revision.to_le_bytes());
    row.extend_from_slice(&kv.version.to_le_bytes());
    row.extend_from_slice(&kv.lease.map_or(0, |lease| lease.0).to_le_bytes());
    row.extend_from_slice(&kv.value);
    row
}

pub(super) fn decode_row(key: Bytes, row: &[u8], with_value: bool) -> Result<KeyValue> {
    let number = |at: usize| -> Option<[u8; 8]> { row.get(at..at + 8)?.try_into().ok() };
    let header = (|| {
        Some((
            u64::from_le_bytes(number(0)?),
            u64::from_le_bytes(number(8)?),
            u64::from_le_bytes(number(16)?),
            i64::from_le_bytes(number(24)?),
        ))
    })();
    let Some((create_revision, mod_revision, version, lease)) = header else {
        let detail = format!("the row of {:?} has only {} bytes", key, row.len());
        return Err(Error::corrupt("data file", detail));
    };
    let value = if with_value { Bytes::copy_from_slice(&row[ROW_HEADER..]) } else { Bytes::new() };
    let lease = (lease != 0).then_some(LeaseId(lease));
    Ok(KeyValue { key, value, create_revision, mod_revision, version, lease })
}

/// Changes of one revision, with the values before, so that older states can be
/// worked out from the newest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogEntry {
    #[prost(message, repeated, tag = "1")]
    pub(super) changes: Vec<LogChange>,
    #[prost(uint64, tag = "2")]
    pub(super) at: Millis,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogChange {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    /// The new row; none for a delete.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(super) row: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(super) before: Option<Bytes>,
}

pub(super) fn decode_log(revision: Revision, bytes: &[u8]) -> Result<LogEntry> {
    LogEntry::decode(Bytes::copy_from_slice(bytes)).map_err(|error| {
        Error::corrupt("data file", format!("log entry {revision} does not decode: {error}"))
    })
}

/// A log entry as watches want it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) revision: Revision,
    pub(super) events: Vec<Event>,
    pub(super) bytes: usize,
}

impl Entry {
    pub(super) fn from_log(revision: Revision, log: LogEntry) -> Result<Self> {
        let mut bytes = 0;
        let mut events = Vec::with_capacity(log.changes.len());
        for change in log.changes {
            bytes += change.key.len() + change.row.as_ref().map_or(0, Bytes::len) + 64;
            events.push(match change.row {
                Some(row) => Event::Put(decode_row(change.key, &row, true)?),
                None => Event::Delete { key: change.key, mod_revision: revision },
            });
        }
        Ok(Self { revision, events, bytes })
    }
}
