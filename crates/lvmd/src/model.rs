//! Model of a volume group, whatever keeps it.

use std::{collections::BTreeMap, path::PathBuf};

/// Marks a volume whose content is not complete. It is not shown to clients,
/// who would adopt it, and whoever set the mark finishes or removes it.
pub const PENDING_TAG: &str = "selvage.pending";

/// Marks a volume that is being reverted; behind it stands the snapshot. Its content is
/// not complete either until the mark is gone, and whatever has it after a start is reverted
/// then.
pub const REVERT_TAG: &str = "selvage.revert=";

/// A volume group at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    pub name: String,
    pub size: u64,
    pub free: u64,
    /// Sizes are multiples of it.
    pub extent: u64,
    /// Number of its devices that are not there. As long as there are such, LVM
    /// makes and grows nothing in it.
    pub missing: usize,
    pub volumes: BTreeMap<String, Volume>,
    pub pools: BTreeMap<String, Pool>,
}

/// A thin pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pool {
    pub size: u64,
    /// Space that its volumes would take if they were full.
    pub promised: u64,
    /// Bytes that are used; none where that is not known.
    pub used: Option<u64>,
    /// Part of its metadata that is used, in thousandths; none where that is not known, or
    /// there are no such.
    pub metadata_used: Option<u32>,
}

impl Pool {
    /// Returns how full it is, in thousandths: its data or its metadata, whichever is fuller.
    /// Writes fail when either is full.
    pub(crate) fn fill(&self) -> u32 {
        let data = self.used.map_or(0, |used| thousandths(used, self.size));
        data.max(self.metadata_used.unwrap_or_default())
    }
}

/// Returns a part of something in thousandths.
pub(crate) fn thousandths(part: u64, of: u64) -> u32 {
    let thousandths = u128::from(part) * 1000 / u128::from(of.max(1));
    u32::try_from(thousandths).unwrap_or(u32::MAX)
}

/// A volume that clients may see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volume {
    pub name: String,
    /// Not that of another volume that had the name before; empty where that
    /// is not known.
    pub id: String,
    /// Number of bytes that can be written to it; for a snapshot the size of its origin.
    pub size: u64,
    /// Sorted.
    pub tags: Vec<String>,
    /// 0 and 0 when there is no device.
    pub major: u32,
    pub minor: u32,
    /// Path at which it can be opened.
    pub path: PathBuf,
    /// Its thin pool; none for a thick volume.
    pub pool: Option<String>,
    /// Volume that it is a snapshot of.
    pub origin: Option<String>,
    /// Room for changes of its origin, if the snapshot has a limit to that.
    pub change_room: Option<u64>,
    pub read_only: bool,
    /// Seconds since 1970; 0 where that is not known.
    pub created: u64,
}

/// Returns whether a volume is what a job reads and nobody writes: it takes what it
/// holds, and nothing more was promised.
pub(crate) fn is_temporary(tags: &[String], read_only: bool) -> bool {
    read_only && tags.iter().any(|tag| tag == PENDING_TAG)
}

impl Volume {
    /// Returns whether its content is not complete yet.
    pub fn is_pending(&self) -> bool {
        self.reverted_to().is_some() || self.tags.iter().any(|tag| tag == PENDING_TAG)
    }

    /// The snapshot that it is being reverted to.
    pub(crate) fn reverted_to(&self) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(REVERT_TAG))
    }
}

impl Group {
    /// Snapshots that go with this volume when it goes.
    pub fn dependants(&self, name: &str) -> Vec<&Volume> {
        let depends = |volume: &&Volume| {
            volume.origin.as_deref() == Some(name) && volume.change_room.is_some()
        };
        self.volumes.values().filter(depends).collect()
    }

    /// A size as it will be, in whole extents.
    pub fn round_up(&self, bytes: u64) -> u64 {
        let extent = self.extent.max(1);
        bytes.div_ceil(extent).saturating_mul(extent)
    }
}
