//! The store, which holds all state of Selvage: revisioned keys, multi-key
//! transactions with compares, watches that start at a revision, and leases,
//! with the meaning etcd gives to them.
//!
//! Two implementations stand behind one trait, [`Store`]: [`embedded`] keeps
//! one data file on this machine, [`etcd`] talks to a cluster. On top of both
//! sits [`table`], the typed layer: versioned records, secondary indexes, an
//! in-memory view fed by a watch, and transactions over several tables.
//! [`transfer`] moves the whole content between the two and checks a file.
//!
//! It is not a general database: there are no queries beyond key ranges and
//! exact index values, values are expected to be kilobytes, and everything a
//! table holds is expected to fit in memory.

pub mod clock;
pub mod embedded;
mod error;
pub mod etcd;
mod overlay;
mod store;
pub mod table;
pub mod transfer;
mod txn;
mod types;
mod watch;

pub use error::{Error, Result};
pub use overlay::Overlay;
pub use store::{Lease, SharedStore, Status, Store, StoreExt};
pub use table::{Record, Stored, Table, Transaction, transact};
pub use txn::{Compare, CompareOp, MAX_OPS, Op, OpResult, Txn, TxnReply};
pub use types::{
    KeyRange, KeyValue, LeaseId, MAX_KEY_BYTES, MAX_VALUE_BYTES, RangeReply, RangeRequest, Revision,
};
pub use watch::{Event, Watch, WatchBatch};
