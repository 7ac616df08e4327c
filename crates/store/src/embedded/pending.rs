//! Changes that are in the log but not yet in the table of current rows.
//!
//! A change is safe once its log entry is on disk. Log entries lie side by
//! side, current rows lie all over the file, so a commit writes only the log
//! and the rows wait here, in memory, until many can be moved at once. What
//! waits is read back from the log when the file is opened.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::{KeyRange, Revision};

/// Keys and their newest rows; none for a key that was deleted.
pub(super) type Rows = BTreeMap<Bytes, Option<Bytes>>;

/// Rows that wait, as of the revision that readers are allowed to see. Laid
/// over the current rows of any snapshot taken while this is locked, it gives
/// the store at that revision: the writer moves only what is in here.
#[derive(Debug)]
pub(super) struct Pending {
    rows: Rows,
    bytes: usize,
    pub(super) revision: Revision,
}

impl Pending {
    pub(super) fn new(rows: Rows, revision: Revision) -> Self {
        let bytes = rows.iter().map(weight).sum();
        Self { rows, bytes, revision }
    }

    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(super) fn exceeds(&self, keys: usize, bytes: usize) -> bool {
        self.rows.len() > keys || self.bytes > bytes
    }

    pub(super) fn advance(&mut self, moved: bool, fresh: Rows, revision: Revision) {
        if moved {
            self.rows.clear();
            self.bytes = 0;
        }
        for (key, row) in fresh {
            self.bytes += weight((&key, &row));
            if let Some((key, row)) = self.rows.remove_entry(&key) {
                self.bytes -= weight((&key, &row));
            }
            self.rows.insert(key, row);
        }
        self.revision = revision;
    }
}

fn weight((key, row): (&Bytes, &Option<Bytes>)) -> usize {
    key.len() + row.as_ref().map_or(0, Bytes::len) + 64
}

/// Puts the part of `rows` that lies in `range` over what is in `onto`.
pub(super) fn overlay(onto: &mut Rows, rows: &Rows, range: &KeyRange) {
    if let KeyRange::Key(key) = range {
        if let Some(row) = rows.get(key) {
            onto.insert(key.clone(), row.clone());
        }
        return;
    }
    let (from, to) = range.bounds();
    let to = to.map_or(Bound::Unbounded, Bound::Excluded);
    let part = rows.range((Bound::Included(from), to));
    onto.extend(part.map(|(key, row)| (key.clone(), row.clone())));
}
