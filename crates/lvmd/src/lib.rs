//! Logical volumes of one machine: `proto.LVService` and `proto.VGService`.
//!
//! A request names a device class, the class names a volume group, and the
//! group lives in a [`backend`]: LVM, or image files with loop devices where
//! there is no LVM. [`Volumes`] stands between the two: it keeps what the
//! backend holds in memory, lets one change at a time into a group, and tells
//! watchers of every change, its own and those from outside.
//!
//! `backup` stores volumes in restic repositories and makes volumes of them.
//!
//! This crate makes no file systems, mounts nothing and knows nothing of
//! what is on a volume.

#![allow(clippy::disallowed_methods, reason = "records of volumes have the time of this machine")]

pub mod backend;
mod backup;
pub mod config;
mod daemon;
mod error;
mod hold;
mod model;
mod names;
mod options;
mod part;
mod private;
mod reload;
mod service;
mod volumes;

pub use backup::Error as BackupError;
pub use daemon::LvmdPart;
pub use error::{Error, Result};
pub use hold::Hold;
pub use model::{Group, PENDING_TAG, Pool, REVERT_TAG, Volume};
pub use options::Options;
pub use part::{Lvmd, Settings};
pub use volumes::{Capacity, ClassCapacity, NewSnapshot, NewVolume, Volumes};
