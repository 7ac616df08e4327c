//! A restic repository, written and read: the format (version 2, and 1 for
//! reading and adding), where its files lie, and the four things one does
//! with a volume in it.
//!
//! * [`Repository`] opens or makes a repository on a [`Backend`]: a
//!   [`Directory`] or [`S3`]. [`Location`] reads `bucket/prefix#snapshot`.
//! * [`Repository::backup`] stores a [`BlockSource`] as a snapshot: fixed
//!   chunks that are aligned to the volume, in segment files of 1 GiB, each in
//!   a sub-tree of its own, so that an incremental run writes only what
//!   changed. [`Repository::restore`] brings a snapshot back to a
//!   [`BlockSink`], also one that stock restic made of an image or of stdin.
//! * [`Repository::verify`], [`Repository::heal`], [`Repository::forget`] and
//!   [`Repository::prune`] keep it sound and small.
//! * A [`Job`] goes with each of them: its progress can be looked at, and it
//!   can be cancelled, from anywhere and at any time. [`Limits`] hold bytes
//!   per second that may be changed while a job runs.
//!
//! Whatever is written here, stock restic reads, checks and restores.
//!
//! There are no volumes here and no RPC: where the bytes of a volume come
//! from, what changed in it, and who may ask for it, is for those who call.

#![allow(clippy::disallowed_methods, reason = "the age of files goes by this machine")]

pub mod backend;
mod backup;
mod crypto;
mod diff;
mod error;
mod forget;
pub mod format;
#[doc(hidden)]
pub mod fuzz;
mod heal;
mod id;
mod index;
mod job;
mod key;
mod keys;
mod limits;
mod location;
mod lock;
mod prune;
mod repository;
mod restore;
mod series;
mod sink;
mod source;
mod stats;
mod verify;
mod volume;
mod walk;
mod zeros;

pub use backend::{Backend, Directory, Outage, Rest, S3, StoreOptions};
pub use backup::{BackupOptions, BackupSummary, Parent};
pub use crypto::Secret;
pub use error::{Error, Result};
pub use forget::{Forget, Forgotten, Keep};
pub use format::{CLOCK_TOLERANCE, Snapshot};
pub use heal::HealSummary;
pub use id::Id;
pub use job::{Job, Phase, Progress};
pub use keys::KeyInfo;
pub use limits::{Limits, Rate};
pub use location::{Location, Selector, SnapshotFilter};
pub use lock::{LockInfo, STALE_AFTER, Unlocked};
pub use prune::{PruneOptions, PruneSummary};
pub use repository::{Repository, RepositoryOptions};
pub use restore::{RestoreOptions, RestoreSummary};
pub use sink::{BlockSink, FileSink};
pub use source::{BlockSource, FileSource};
pub use stats::{Stats, VolumeStats};
pub use verify::{Damage, VerifyOptions, VerifyReport};
