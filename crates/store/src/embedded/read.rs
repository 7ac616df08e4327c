//! Reading ranges, now or at an older revision.

use std::ops::{Bound, Range};

use bytes::Bytes;
use redb::{AccessGuard, ReadableTable, StorageError};

use super::fault::storage;
use super::format::{LogChange, decode_log, decode_row};
use super::pending::Rows;
use crate::{Error, KeyRange, RangeReply, RangeRequest, Result, Revision};

/// Position of a reader in the history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Horizon {
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
}

/// Changes that make the rows of a snapshot the state that the reader is to
/// see.
#[derive(Debug, Default)]
pub(super) struct Newer<'a> {
    /// Rows of the range that are newer than those of the snapshot.
    pub(super) rows: Rows,
    /// Changes of the reader itself, on top of the log.
    pub(super) own: &'a [LogChange],
}

impl Horizon {
    pub(super) fn check(self, at: Option<Revision>) -> Result<()> {
        match at {
            Some(asked) if asked > self.revision => {
                Err(Error::FutureRevision { asked, current: self.revision })
            }
            Some(asked) if asked < self.compacted => {
                Err(Error::Compacted { oldest: self.compacted })
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn range<C, L>(
    current: &C,
    log: &L,
    horizon: Horizon,
    newer: Newer<'_>,
    request: &RangeRequest,
) -> Result<RangeReply>
where
    C: ReadableTable<&'static [u8], &'static [u8]>,
    L: ReadableTable<u64, &'static [u8]>,
{
    horizon.check(request.at_revision)?;
    let mut collect = Collect {
        request,
        reply: RangeReply { revision: horizon.revision, ..RangeReply::default() },
    };
    let mut other = newer.rows;
    if let Some(at) = request.at_revision {
        other.append(&mut undone(log, &request.range, at..horizon.revision, newer.own)?);
    }
    if let KeyRange::Key(key) = &request.range {
        match other.get(key) {
            Some(Some(row)) => collect.take(key, row)?,
            Some(None) => {}
            None => {
                if let Some(row) = current.get(&key[..]).map_err(storage)? {
                    collect.take(key, row.value())?;
                }
            }
        }
        return Ok(collect.reply);
    }
    let (from, to) = request.range.bounds();
    let to = to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(&to[..]));
    let rows = current.range::<&[u8]>((Bound::Included(&from[..]), to)).map_err(storage)?;
    if request.descending {
        collect.merge(rows.rev(), other.iter().rev(), |left, right| left > right)?;
    } else {
        collect.merge(rows, other.iter(), |left, right| left < right)?;
    }
    Ok(collect.reply)
}

/// Returns the former value of every key of the range that changed after the
/// start of `span`.
fn undone(
    log: &impl ReadableTable<u64, &'static [u8]>,
    range: &KeyRange,
    span: Range<Revision>,
    own: &[LogChange],
) -> Result<Rows> {
    let mut then = Rows::new();
    let later = log.range(span.start + 1..span.end + 1).map_err(storage)?;
    for row in later {
        let (revision, row) = row.map_err(storage)?;
        for change in decode_log(revision.value(), row.value())?.changes {
            if range.contains(&change.key) {
                then.entry(change.key).or_insert(change.before);
            }
        }
    }
    for change in own.iter().filter(|change| range.contains(&change.key)) {
        then.entry(change.key.clone()).or_insert_with(|| change.before.clone());
    }
    Ok(then)
}

type Row<'a> =
    Result<(AccessGuard<'a, &'static [u8]>, AccessGuard<'a, &'static [u8]>), StorageError>;

struct Collect<'a> {
    request: &'a RangeRequest,
    reply: RangeReply,
}

impl Collect<'_> {
    fn take(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        self.reply.count += 1;
        if self.request.limit != 0 && self.reply.items.len() == self.request.limit {
            self.reply.more = true;
            return Ok(());
        }
        let key = Bytes::copy_from_slice(key);
        self.reply.items.push(decode_row(key, row, !self.request.keys_only)?);
        Ok(())
    }

    /// Walks the rows of the snapshot and the other ones side by side; where
    /// both have a key, the other one counts.
    fn merge<'r, 'o>(
        &mut self,
        rows: impl Iterator<Item = Row<'r>>,
        other: impl Iterator<Item = (&'o Bytes, &'o Option<Bytes>)>,
        before: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut other = other.peekable();
        for row in rows {
            let (key, row) = row.map_err(storage)?;
            while let Some((other_key, other_row)) =
                other.next_if(|(other_key, _)| before(other_key, key.value()))
            {
                if let Some(other_row) = other_row {
                    self.take(other_key, other_row)?;
                }
            }
            match other.next_if(|(other_key, _)| &other_key[..] == key.value()) {
                Some((_, Some(other_row))) => self.take(key.value(), other_row)?,
                Some((_, None)) => {}
                None => self.take(key.value(), row.value())?,
            }
        }
        for (other_key, other_row) in other {
            if let Some(other_row) = other_row {
                self.take(other_key, other_row)?;
            }
        }
        Ok(())
    }
}
