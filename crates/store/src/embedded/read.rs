//! Reading ranges, now or at an older revision.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use redb::{AccessGuard, ReadableTable, StorageError};

use super::fault::storage;
use super::format::{decode_log, decode_row};
use crate::{Error, KeyRange, RangeReply, RangeRequest, Result, Revision};

/// Where a reader stands: what it can see of the history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Horizon {
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
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
    let older = match request.at_revision {
        Some(at) if at < horizon.revision => undone(log, &request.range, at)?,
        _ => BTreeMap::new(),
    };
    if let KeyRange::Key(key) = &request.range {
        match older.get(key) {
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
        collect.merge(rows.rev(), older.iter().rev(), |left, right| left > right)?;
    } else {
        collect.merge(rows, older.iter(), |left, right| left < right)?;
    }
    Ok(collect.reply)
}

/// For every key of the range that changed after `at`, what it was then.
fn undone(
    log: &impl ReadableTable<u64, &'static [u8]>,
    range: &KeyRange,
    at: Revision,
) -> Result<BTreeMap<Bytes, Option<Bytes>>> {
    let mut older = BTreeMap::new();
    for row in log.range(at + 1..).map_err(storage)? {
        let (revision, row) = row.map_err(storage)?;
        for change in decode_log(revision.value(), row.value())?.changes {
            if range.contains(&change.key) {
                older.entry(change.key).or_insert(change.before);
            }
        }
    }
    Ok(older)
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

    /// Walks today's rows and the older ones side by side; where both have a
    /// key, the older one counts.
    fn merge<'r, 'o>(
        &mut self,
        rows: impl Iterator<Item = Row<'r>>,
        older: impl Iterator<Item = (&'o Bytes, &'o Option<Bytes>)>,
        before: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut older = older.peekable();
        for row in rows {
            let (key, row) = row.map_err(storage)?;
            while let Some((older_key, older_row)) =
                older.next_if(|(older_key, _)| before(older_key, key.value()))
            {
                if let Some(older_row) = older_row {
                    self.take(older_key, older_row)?;
                }
            }
            match older.next_if(|(older_key, _)| &older_key[..] == key.value()) {
                Some((_, Some(older_row))) => self.take(key.value(), older_row)?,
                Some((_, None)) => {}
                None => self.take(key.value(), row.value())?,
            }
        }
        for (older_key, older_row) in older {
            if let Some(older_row) = older_row {
                self.take(older_key, older_row)?;
            }
        }
        Ok(())
    }
}
