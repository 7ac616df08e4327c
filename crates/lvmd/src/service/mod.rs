//! The contracts, on top of the volumes.

mod backups;
mod beyond;
mod groups;
mod logical;
mod restore;

pub(crate) use backups::Beside;
pub(crate) use beyond::Beyond;
pub(crate) use groups::Groups;
pub(crate) use logical::Logical;

use crate::{Error, Result};

const GIB: u64 = 1 << 30;

/// A size in GiB, in bytes.
fn gib(size: u64) -> Result<u64> {
    size.checked_mul(GIB).ok_or_else(|| Error::Invalid(format!("size_gb is too large: {size}")))
}
