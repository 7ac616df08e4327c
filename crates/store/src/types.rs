//! Keys, values and ranges.

use std::fmt;

use bytes::Bytes;

use crate::{Error, Result};

/// A point in the history of a store. The first write makes revision 1 or
/// later; every transaction that changes something makes exactly one more.
pub type Revision = u64;

/// Longest key that is accepted.
pub const MAX_KEY_BYTES: usize = 4096;
/// Largest value that is accepted: what a default etcd takes in one request,
/// less room for the request itself.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// Names a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key with its value and where it stands in history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// Revision at which the key came into being (again, after a delete).
    pub create_revision: Revision,
    /// Revision of the last change.
    pub mod_revision: Revision,
    /// Number of puts since the key came into being; 1 after the first.
    pub version: u64,
    /// The lease that takes the key with it when it ends.
    pub lease: Option<LeaseId>,
}

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRange {
    /// Exactly this key.
    Key(Bytes),
    /// Every key that starts with these bytes.
    Prefix(Bytes),
    /// Keys from the first, included, to the second, not included.
    Span(Bytes, Bytes),
    /// Every key there is.
    All,
}

impl KeyRange {
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self::Key(key.into())
    }

    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::Prefix(prefix.into())
    }

    pub fn span(from: impl Into<Bytes>, to: impl Into<Bytes>) -> Self {
        Self::Span(from.into(), to.into())
    }

    /// Returns whether `key` lies within.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(own) => own == key,
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::Span(from, to) => &from[..] <= key && key < &to[..],
            Self::All => true,
        }
    }

    /// The first key within, and the first key after it; `None` means that
    /// the range has no upper end.
    pub fn bounds(&self) -> (Bytes, Option<Bytes>) {
        match self {
            Self::Key(key) => (key.clone(), Some(successor(key))),
            Self::Prefix(prefix) => (prefix.clone(), prefix_end(prefix)),
            Self::Span(from, to) => (from.clone(), Some(to.clone())),
            Self::All => (Bytes::new(), None),
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::Key(key) => check_key(key),
            Self::Prefix(_) | Self::All => Ok(()),
            Self::Span(from, to) if from >= to => {
                Err(Error::invalid("range", "its start does not lie before its end"))
            }
            Self::Span(..) => Ok(()),
        }
    }
}

/// The smallest key that is greater than `key`.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// The smallest key that is greater than every key with this prefix.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let keep = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end.into())
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("key", "must not be empty"));
    }
    if key.len() > MAX_KEY_BYTES {
        let reason = format!("has {} bytes, the limit is {MAX_KEY_BYTES}", key.len());
        return Err(Error::invalid("key", reason));
    }
    Ok(())
}

pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooLarge { what: "value", found: value.len(), limit: MAX_VALUE_BYTES });
    }
    Ok(())
}

/// A question for keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    pub range: KeyRange,
    /// Maximum number of items; 0 means all.
    pub limit: usize,
    /// Revision to read at; `None` means now.
    pub at_revision: Option<Revision>,
    /// Leave the values empty.
    pub keys_only: bool,
    /// True to read from the last key to the first.
    pub descending: bool,
}

impl RangeRequest {
    pub fn new(range: KeyRange) -> Self {
        Self { range, limit: 0, at_revision: None, keys_only: false, descending: false }
    }

    pub fn key(key: impl Into<Bytes>) -> Self {
        Self::new(KeyRange::key(key))
    }

    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::new(KeyRange::prefix(prefix))
    }

    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    #[must_use]
    pub fn at(mut self, revision: Revision) -> Self {
        self.at_revision = Some(revision);
        self
    }

    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    #[must_use]
    pub fn descending(mut self) -> Self {
        self.descending = true;
        self
    }
}

/// The answer to a [`RangeRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeReply {
    pub items: Vec<KeyValue>,
    /// The limit cut something off.
    pub more: bool,
    /// Number of keys in the range, whatever the limit.
    pub count: u64,
    /// Revision of the store when it answered, also for a question about an
    /// older one.
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix_end(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    #[test]
    fn contains_agrees_with_bounds() {
        let ranges = [
            KeyRange::key("b"),
            KeyRange::prefix("b"),
            KeyRange::prefix(&b"\xff"[..]),
            KeyRange::span("a", "bb"),
            KeyRange::span("b", "b"),
            KeyRange::All,
        ];
        let keys: [&[u8]; 7] = [b"a", b"b", b"b\0", b"ba", b"bb", b"c", b"\xff\xff"];
        for range in &ranges {
            let (from, to) = range.bounds();
            for key in keys {
                let within = key >= &from[..] && to.as_ref().is_none_or(|to| key < &to[..]);
                assert_eq!(range.contains(key), within, "{range:?} {key:?}");
            }
        }
    }
}
