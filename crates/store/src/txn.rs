//! Transactions: compares, then one list of operations or the other.

use std::collections::HashSet;

use bytes::Bytes;

use crate::types::{check_key, check_value};
use crate::{Error, KeyRange, KeyValue, LeaseId, RangeReply, RangeRequest, Result, Revision};

/// Maximum that etcd takes in one transaction; the same for every store so that
/// what works on one works on the other.
pub const MAX_OPS: usize = 128;

/// Comparison of the state of a key with a given value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareOp {
    Equal,
    NotEqual,
    Less,
    Greater,
}

impl CompareOp {
    fn holds<T: Ord + ?Sized>(self, found: &T, given: &T) -> bool {
        match self {
            Self::Equal => found == given,
            Self::NotEqual => found != given,
            Self::Less => found < given,
            Self::Greater => found > given,
        }
    }
}

/// A condition on one key. A key that is not there has revision and version
/// 0; a condition on its value never holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    Exists(Bytes),
    Missing(Bytes),
    ModRevision(Bytes, CompareOp, Revision),
    CreateRevision(Bytes, CompareOp, Revision),
    Version(Bytes, CompareOp, u64),
    Value(Bytes, CompareOp, Bytes),
}

impl Compare {
    pub fn exists(key: impl Into<Bytes>) -> Self {
        Self::Exists(key.into())
    }

    pub fn missing(key: impl Into<Bytes>) -> Self {
        Self::Missing(key.into())
    }

    /// The key has not changed since `revision`; 0 means that it is not there.
    pub fn unchanged(key: impl Into<Bytes>, revision: Revision) -> Self {
        Self::ModRevision(key.into(), CompareOp::Equal, revision)
    }

    pub fn value(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Value(key.into(), CompareOp::Equal, value.into())
    }

    pub fn key(&self) -> &Bytes {
        match self {
            Self::Exists(key)
            | Self::Missing(key)
            | Self::ModRevision(key, ..)
            | Self::CreateRevision(key, ..)
            | Self::Version(key, ..)
            | Self::Value(key, ..) => key,
        }
    }

    pub(crate) fn holds(&self, found: Option<&KeyValue>) -> bool {
        match self {
            Self::Exists(_) => found.is_some(),
            Self::Missing(_) => found.is_none(),
            Self::ModRevision(_, op, given) => {
                op.holds(&found.map_or(0, |kv| kv.mod_revision), given)
            }
            Self::CreateRevision(_, op, given) => {
                op.holds(&found.map_or(0, |kv| kv.create_revision), given)
            }
            Self::Version(_, op, given) => op.holds(&found.map_or(0, |kv| kv.version), given),
            Self::Value(_, op, given) => found.is_some_and(|kv| op.holds(&kv.value, given)),
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    Delete(KeyRange),
    Get(RangeRequest),
}

impl Op {
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: None }
    }

    pub fn put_with_lease(
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: impl Into<Option<LeaseId>>,
    ) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: lease.into() }
    }

    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::Delete(KeyRange::key(key))
    }

    pub fn get(key: impl Into<Bytes>) -> Self {
        Self::Get(RangeRequest::key(key))
    }
}

/// Transaction: if every compare holds, do `then`, else do `otherwise`; all at
/// one revision, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

impl Txn {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    #[must_use]
    pub fn then(mut self, op: Op) -> Self {
        self.then.push(op);
        self
    }

    #[must_use]
    pub fn otherwise(mut self, op: Op) -> Self {
        self.otherwise.push(op);
        self
    }

    /// Refuses what etcd would refuse, with a message that names the field.
    pub(crate) fn validate(&self) -> Result<()> {
        for (what, count) in [
            ("compares", self.compares.len()),
            ("then", self.then.len()),
            ("otherwise", self.otherwise.len()),
        ] {
            if count > MAX_OPS {
                return Err(Error::TooManyOps { what, count, limit: MAX_OPS });
            }
        }
        for compare in &self.compares {
            check_key(compare.key())?;
        }
        validate_ops(&self.then)?;
        validate_ops(&self.otherwise)
    }
}

fn validate_ops(ops: &[Op]) -> Result<()> {
    let mut written = HashSet::new();
    for op in ops {
        match op {
            Op::Put { key, value, .. } => {
                check_key(key)?;
                check_value(value)?;
                if !written.insert(key) {
                    return Err(Error::invalid("then", "puts the same key twice"));
                }
            }
            Op::Delete(range) => range.validate()?,
            Op::Get(request) => request.range.validate()?,
        }
    }
    let overlaps = ops
        .iter()
        .any(|op| matches!(op, Op::Delete(range) if written.iter().any(|key| range.contains(key))));
    if overlaps {
        return Err(Error::invalid("then", "puts and deletes the same key"));
    }
    Ok(())
}

/// Result of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    Put,
    /// Number of keys that went.
    Delete(u64),
    Get(RangeReply),
}

/// Result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnReply {
    /// True if all compares held, so that `then` was done.
    pub succeeded: bool,
    /// Revision of the store after the transaction: its own one if it
    /// changed something.
    pub revision: Revision,
    /// One result an operation, in order.
    pub results: Vec<OpResult>,
}
