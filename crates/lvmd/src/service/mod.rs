//! The contracts, on top of the volumes.

mod backups;
mod lv;
mod restore;
mod vg;
mod volumes;

pub(crate) use backups::BackupsApi;
pub(crate) use lv::LvApi;
pub(crate) use vg::VgApi;
pub(crate) use volumes::VolumesApi;

use crate::{Error, Result};

const GIB: u64 = 1 << 30;

/// A size in GiB, in bytes.
fn gib(size: u64) -> Result<u64> {
    size.checked_mul(GIB).ok_or_else(|| Error::Invalid(format!("size_gb is too large: {size}")))
}
