//! Carrying out work inside one write transaction of the data file.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use redb::{ReadableTable, Table, WriteTransaction};

use super::fault::storage;
use super::format::{
    CURRENT, Entry, LEASE_KEYS, LEASES, LOG, LogChange, LogEntry, META, META_APPLIED,
    META_COMPACTED, META_REVISION, decode_log, decode_row, encode_row,
};
use super::lease::{LeaseBook, Term, check_ttl};
use super::pending::{Pending, Rows, overlay};
use super::read::{self, Horizon, Newer};
use crate::clock::Millis;
use crate::{
    Error, KeyRange, KeyValue, Lease, LeaseId, Op, OpResult, RangeReply, RangeRequest, Result,
    Revision, Txn, TxnReply,
};

/// Requests to the writer.
#[derive(Debug)]
pub(super) enum Work {
    Txn(Txn),
    Compact(Revision),
    Grant(Duration),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
    /// End leases whose time is over, drop history that is too old.
    Maintain,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Txn(TxnReply),
    Lease(Lease),
    Done,
}

/// Limits on the history that is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retention {
    pub(super) revisions: u64,
    pub(super) age: Millis,
}

/// Most log entries removed on the side of one batch, so that no caller waits
/// long for the housekeeping.
const COMPACT_AT_ONCE: u64 = 2048;

pub(super) struct Batch<'t, 'b> {
    meta: Table<'t, &'static str, u64>,
    current: Table<'t, &'static [u8], &'static [u8]>,
    log: Table<'t, u64, &'static [u8]>,
    leases: Table<'t, i64, (u64, u64)>,
    lease_keys: Table<'t, (i64, &'static [u8]), ()>,
    book: &'b mut LeaseBook,
    /// Rows of earlier batches and of this one that are not in `current`.
    pending: &'b Pending,
    pub(super) fresh: Rows,
    now: Millis,
    /// Revision up to which `current` is complete.
    applied: Revision,
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) entries: Vec<Arc<Entry>>,
    /// True if there are changes to commit.
    pub(super) dirty: bool,
}

impl<'t, 'b> Batch<'t, 'b> {
    pub(super) fn new(
        write: &'t WriteTransaction,
        book: &'b mut LeaseBook,
        pending: &'b Pending,
        horizon: Horizon,
        now: Millis,
    ) -> Result<Self> {
        let meta = write.open_table(META).map_err(storage)?;
        let applied = meta.get(META_APPLIED).map_err(storage)?.map_or(0, |row| row.value());
        Ok(Self {
            meta,
            current: write.open_table(CURRENT).map_err(storage)?,
            log: write.open_table(LOG).map_err(storage)?,
            leases: write.open_table(LEASES).map_err(storage)?,
            lease_keys: write.open_table(LEASE_KEYS).map_err(storage)?,
            book,
            pending,
            fresh: Rows::new(),
            now,
            applied,
            revision: horizon.revision,
            compacted: horizon.compacted,
            entries: Vec::new(),
            dirty: false,
        })
    }

    /// Performs one request. The outer error means that the file failed and the
    /// batch is lost; the inner one is that of the caller, and means that
    /// nothing was changed.
    pub(super) fn perform(&mut self, work: &Work) -> Result<Result<Outcome>> {
        Ok(match work {
            Work::Txn(txn) => match self.check(txn)? {
                Ok(succeeded) => Ok(Outcome::Txn(self.apply(txn, succeeded)?)),
                Err(refusal) => Err(refusal),
            },
            Work::Compact(revision) => self.compact(*revision)?.map(|()| Outcome::Done),
            Work::Grant(ttl) => match check_ttl(*ttl) {
                Ok(ttl) => Ok(Outcome::Lease(self.grant(ttl)?)),
                Err(refusal) => Err(refusal),
            },
            Work::KeepAlive(id) => match self.book.alive(*id, self.now) {
                Ok(term) => Ok(Outcome::Lease(self.extend(*id, term.ttl)?)),
                Err(refusal) => Err(refusal),
            },
            Work::Revoke(id) => match self.book.alive(*id, self.now) {
                Ok(_) => {
                    self.end_lease(*id)?;
                    Ok(Outcome::Done)
                }
                Err(refusal) => Err(refusal),
            },
            Work::Maintain => {
                self.maintain()?;
                Ok(Outcome::Done)
            }
        })
    }

    fn horizon(&self) -> Horizon {
        Horizon { revision: self.revision, compacted: self.compacted }
    }

    fn row(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some(row) = self.fresh.get(key).or_else(|| self.pending.rows().get(key)) {
            return Ok(row.clone());
        }
        let row = self.current.get(key).map_err(storage)?;
        Ok(row.map(|row| Bytes::copy_from_slice(row.value())))
    }

    fn key_value(&self, key: &Bytes) -> Result<Option<KeyValue>> {
        self.row(key)?.map(|row| decode_row(key.clone(), &row, true)).transpose()
    }

    /// Reads a range in the middle of a transaction that has made `own`.
    fn range(&self, request: &RangeRequest, own: &[LogChange]) -> Result<RangeReply> {
        let mut rows = Rows::new();
        overlay(&mut rows, self.pending.rows(), &request.range);
        overlay(&mut rows, &self.fresh, &request.range);
        let newer = Newer { rows, own };
        read::range(&self.current, &self.log, self.horizon(), newer, request)
    }

    /// Finds out which way a transaction goes and whether everything on that
    /// way can be done.
    fn check(&self, txn: &Txn) -> Result<Result<bool>> {
        let mut succeeded = true;
        for compare in &txn.compares {
            if !compare.holds(self.key_value(compare.key())?.as_ref()) {
                succeeded = false;
                break;
            }
        }
        for op in chosen(txn, succeeded) {
            let possible = match op {
                Op::Put { lease: Some(lease), .. } => self.book.alive(*lease, self.now).map(|_| ()),
                Op::Get(request) => self.horizon().check(request.at_revision),
                Op::Put { lease: None, .. } | Op::Delete(_) => Ok(()),
            };
            if let Err(refusal) = possible {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(succeeded))
    }

    fn apply(&mut self, txn: &Txn, succeeded: bool) -> Result<TxnReply> {
        let revision = self.revision + 1;
        let mut changes = Vec::new();
        let mut results = Vec::new();
        for op in chosen(txn, succeeded) {
            results.push(match op {
                Op::Put { key, value, lease } => {
                    changes.push(self.put(key, value, *lease, revision)?);
                    OpResult::Put
                }
                Op::Delete(range) => {
                    let deleted = self.delete(range)?;
                    let count = deleted.len() as u64;
                    changes.extend(deleted);
                    OpResult::Delete(count)
                }
                Op::Get(request) => OpResult::Get(self.range(request, &changes)?),
            });
        }
        self.record(changes)?;
        Ok(TxnReply { succeeded, revision: self.revision, results })
    }

    fn put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        lease: Option<LeaseId>,
        revision: Revision,
    ) -> Result<LogChange> {
        let before = self.row(key)?;
        let previous =
            before.as_ref().map(|row| decode_row(key.clone(), row, false)).transpose()?;
        let old_lease = previous.as_ref().and_then(|kv| kv.lease);
        if old_lease != lease {
            self.detach(key, old_lease)?;
            if let Some(lease) = lease {
                self.lease_keys.insert((lease.0, &key[..]), ()).map_err(storage)?;
            }
        }
        let kv = KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: previous.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: previous.as_ref().map_or(0, |kv| kv.version) + 1,
            lease,
        };
        let row = Bytes::from(encode_row(&kv));
        self.fresh.insert(key.clone(), Some(row.clone()));
        Ok(LogChange { key: key.clone(), row: Some(row), before })
    }

    fn detach(&mut self, key: &[u8], lease: Option<LeaseId>) -> Result<()> {
        if let Some(lease) = lease {
            self.lease_keys.remove((lease.0, key)).map_err(storage)?;
        }
        Ok(())
    }

    fn delete(&mut self, range: &KeyRange) -> Result<Vec<LogChange>> {
        let keys = self.keys(range)?;
        let mut changes = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(before) = self.row(&key)? else { continue };
            self.fresh.insert(key.clone(), None);
            let lease = decode_row(key.clone(), &before, false)?.lease;
            self.detach(&key, lease)?;
            changes.push(LogChange { key, row: None, before: Some(before) });
        }
        Ok(changes)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Bytes>> {
        if let KeyRange::Key(key) = range {
            return Ok(vec![key.clone()]);
        }
        let reply = self.range(&RangeRequest::new(range.clone()).keys_only(), &[])?;
        Ok(reply.items.into_iter().map(|kv| kv.key).collect())
    }

    /// Makes the next revision out of changes, unless there are none.
    fn record(&mut self, changes: Vec<LogChange>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.revision += 1;
        let entry = LogEntry { changes, at: self.now };
        let bytes = entry.encode_to_vec();
        self.log.insert(self.revision, &bytes[..]).map_err(storage)?;
        self.entries.push(Arc::new(Entry::from_log(self.revision, entry)?));
        self.dirty = true;
        Ok(())
    }

    fn grant(&mut self, ttl: Millis) -> Result<Lease> {
        let id = loop {
            let id = LeaseId(rand::random_range(1..=i64::MAX));
            if !self.book.contains(id) {
                break id;
            }
        };
        self.extend(id, ttl)
    }

    fn extend(&mut self, id: LeaseId, ttl: Millis) -> Result<Lease> {
        let term = Term { ttl, ends: self.now.saturating_add(ttl) };
        self.leases.insert(id.0, (term.ttl, term.ends)).map_err(storage)?;
        self.book.set(id, term);
        self.dirty = true;
        Ok(term.lease(id, self.now))
    }

    fn end_lease(&mut self, id: LeaseId) -> Result<()> {
        let mut keys = Vec::new();
        let none: &[u8] = &[];
        for row in self.lease_keys.range((id.0, none)..).map_err(storage)? {
            let (pair, _) = row.map_err(storage)?;
            let (lease, key) = pair.value();
            if lease != id.0 {
                break;
            }
            keys.push(Bytes::copy_from_slice(key));
        }
        let mut changes = Vec::new();
        for key in keys {
            changes.extend(self.delete(&KeyRange::Key(key))?);
        }
        self.record(changes)?;
        self.leases.remove(id.0).map_err(storage)?;
        self.book.remove(id);
        self.dirty = true;
        Ok(())
    }

    fn maintain(&mut self) -> Result<()> {
        while let Some(id) = self.book.ended(self.now) {
            tracing::debug!(lease = %id, "lease ended");
            self.end_lease(id)?;
        }
        Ok(())
    }

    fn compact(&mut self, revision: Revision) -> Result<Result<()>> {
        if revision > self.revision {
            return Ok(Err(Error::FutureRevision { asked: revision, current: self.revision }));
        }
        if revision > self.compacted {
            self.forget(revision)?;
        }
        Ok(Ok(()))
    }

    fn forget(&mut self, up_to: Revision) -> Result<()> {
        self.compacted = up_to;
        self.dirty = true;
        self.trim()
    }

    /// Removes log entries that nobody needs: compacted, and applied.
    fn trim(&mut self) -> Result<()> {
        let up_to = self.compacted.min(self.applied);
        self.log.retain_in(..=up_to, |_, _| false).map_err(storage)
    }

    /// Moves the rows of earlier batches to their place. Those of this batch
    /// must wait: nobody may see them before they are committed, and a reader
    /// takes its snapshot when it likes.
    pub(super) fn move_pending(&mut self) -> Result<()> {
        for (key, row) in self.pending.rows() {
            match row {
                Some(row) => self.current.insert(&key[..], &row[..]).map_err(storage)?,
                None => self.current.remove(&key[..]).map_err(storage)?,
            };
        }
        self.applied = self.pending.revision;
        self.dirty = true;
        self.trim()
    }

    /// Drops a bounded part of the history that is over the limits.
    pub(super) fn retain(&mut self, retention: Retention) -> Result<()> {
        let most = self.compacted.saturating_add(COMPACT_AT_ONCE).min(self.revision);
        let slack = retention.revisions / 10;
        let mut up_to = self.compacted;
        if self.revision - self.compacted > retention.revisions.saturating_add(slack) {
            up_to = most.min(self.revision - retention.revisions);
        }
        let oldest_allowed = self.now.saturating_sub(retention.age);
        while up_to < most {
            let Some(row) = self.log.get(up_to + 1).map_err(storage)? else { break };
            if decode_log(up_to + 1, row.value())?.at >= oldest_allowed {
                break;
            }
            up_to += 1;
        }
        if up_to > self.compacted {
            self.forget(up_to)?;
        }
        Ok(())
    }

    /// Writes down where the history stands now.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.meta.insert(META_REVISION, self.revision).map_err(storage)?;
        self.meta.insert(META_COMPACTED, self.compacted).map_err(storage)?;
        self.meta.insert(META_APPLIED, self.applied).map_err(storage)?;
        Ok(())
    }
}

fn chosen(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.then } else { &txn.otherwise }
}
