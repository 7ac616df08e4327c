//! History of changes, as far back as is worth keeping.

use std::collections::{BTreeSet, VecDeque};

use crate::ObjectKey;

/// The keys of the last changes of a [`crate::Source`], deletions included,
/// in the order of their revisions.
#[derive(Debug)]
pub struct History {
    changes: VecDeque<(i64, ObjectKey)>,
    limit: usize,
    /// All changes after this one are here.
    complete_after: i64,
    newest: i64,
}

impl History {
    /// Number of changes that are kept unless set otherwise.
    pub const DEFAULT_LIMIT: usize = 64 * 1024;

    /// A history that starts after a revision and keeps so many changes.
    pub fn new(revision: i64, limit: usize) -> Self {
        Self { changes: VecDeque::new(), limit, complete_after: revision, newest: revision }
    }

    /// Takes note of a change. Revisions do not go back: one that is less
    /// than the newest is taken for that.
    pub fn record(&mut self, revision: i64, key: ObjectKey) {
        self.newest = self.newest.max(revision);
        self.changes.push_back((self.newest, key));
        self.trim();
    }

    /// Adds what was before: all changes after a revision up to where this
    /// history begins, in the order of their revisions.
    pub fn recall(&mut self, after: i64, changes: impl IntoIterator<Item = (i64, ObjectKey)>) {
        let begins = self.complete_after;
        let mut older: VecDeque<_> = changes.into_iter().filter(|(at, _)| *at <= begins).collect();
        older.append(&mut self.changes);
        self.changes = older;
        self.complete_after = begins.min(after);
        self.trim();
    }

    fn trim(&mut self) {
        while self.changes.len() > self.limit {
            if let Some((revision, _)) = self.changes.pop_front() {
                self.complete_after = revision;
            }
        }
    }

    /// All changes after this revision are known.
    pub fn begins(&self) -> i64 {
        self.complete_after
    }

    /// Marks everything up to this revision as recorded.
    pub fn advance(&mut self, revision: i64) {
        self.newest = self.newest.max(revision);
    }

    /// The newest revision that is recorded.
    pub fn revision(&self) -> i64 {
        self.newest
    }

    /// The keys of all changes after a revision, each once; `None` when some
    /// of them are forgotten, or when the revision has not been reached here.
    pub fn since(&self, revision: i64) -> Option<Vec<ObjectKey>> {
        if revision < self.complete_after || revision > self.newest {
            return None;
        }
        let start = self.changes.partition_point(|(at, _)| *at <= revision);
        let keys: BTreeSet<&ObjectKey> = self.changes.range(start..).map(|(_, key)| key).collect();
        Some(keys.into_iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto::{Flavor, FlavorKey};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        let key = Some(FlavorKey { name: name.into() });
        ObjectKey::of(&Flavor { key, ..Flavor::default() }).unwrap()
    }

    #[test]
    fn what_is_forgotten_is_not_guessed() {
        let mut history = History::new(10, 3);
        assert_eq!(history.since(10), Some(vec![]));
        assert_eq!(history.since(9), None);
        assert_eq!(history.since(11), None);
        history.record(11, key("b"));
        history.record(13, key("a"));
        history.record(14, key("b"));
        assert_eq!(history.since(10), Some(vec![key("a"), key("b")]));
        assert_eq!(history.since(13), Some(vec![key("b")]));
        history.record(15, key("c"));
        assert_eq!(history.since(10), None, "the change at 11 is gone");
        assert_eq!(history.since(11), Some(vec![key("a"), key("b"), key("c")]));
        history.advance(20);
        assert_eq!(history.since(20), Some(vec![]));
        assert_eq!(history.since(21), None);
    }

    #[test]
    fn what_was_before_can_be_added() {
        let mut history = History::new(10, 4);
        history.record(12, key("new"));
        history.recall(4, [(5, key("a")), (9, key("b")), (12, key("new"))]);
        assert_eq!(history.since(4), Some(vec![key("a"), key("b"), key("new")]));
        assert_eq!(history.since(5), Some(vec![key("b"), key("new")]));
        assert_eq!(history.since(3), None);
        history.recall(1, [(2, key("c")), (3, key("d"))]);
        assert_eq!((history.begins(), history.since(1)), (2, None), "over the limit");
        assert_eq!(history.since(4), Some(vec![key("a"), key("b"), key("new")]));
    }

    #[test]
    fn revisions_do_not_go_back() {
        let mut history = History::new(10, 4);
        history.record(20, key("a"));
        history.record(15, key("b"));
        assert_eq!(history.since(15), Some(vec![key("a"), key("b")]));
        assert_eq!(history.since(19), Some(vec![key("a"), key("b")]));
    }
}
