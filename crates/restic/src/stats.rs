//! Figures of a repository.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    Repository, Result, Snapshot,
    backend::Kind,
    crypto::OVERHEAD,
    format::{BlobKind, IndexBlob},
    index::IdSet,
    series::{AllSeries, Series},
};

/// Figures of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Number of snapshots.
    pub snapshots: u64,
    /// Number of packs.
    pub packs: u64,
    /// Number of bytes of all packs.
    pub stored: u64,
    /// Number of different chunks.
    pub chunks: u64,
    /// Number of bytes of these chunks before they were compressed.
    pub chunk_bytes: u64,
    /// Number of bytes of the volumes of all snapshots together.
    pub volume_bytes: u64,
    /// Snapshots of each volume, by volume and machine.
    pub volumes: Vec<VolumeStats>,
}

/// Snapshots of one volume of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    /// Volume; empty for snapshots that we did not make.
    pub volume: String,
    /// Volume group that it was in, if that is known.
    pub group: Option<String>,
    /// Machine that they were made on.
    pub hostname: String,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Size of the volume in the newest of them.
    pub size: u64,
    /// Time of the oldest.
    pub oldest: Timestamp,
    /// Time of the newest.
    pub newest: Timestamp,
}

impl Repository {
    /// Counts what is in the repository. Reads its index, not its packs.
    pub async fn stats(&self) -> Result<Stats> {
        let snapshots = self.snapshots().await?;
        let packs = self.backend().list(Kind::Pack).await?;
        let mut stats = Stats {
            snapshots: snapshots.len() as u64,
            packs: packs.len() as u64,
            stored: packs.iter().map(|pack| pack.size).sum(),
            volume_bytes: snapshots.iter().filter_map(Snapshot::size).sum(),
            volumes: by_volume(&snapshots),
            ..Stats::default()
        };
        let mut seen = IdSet::default();
        for blob in self.pack_table().await?.into_values().flatten() {
            if blob.kind == BlobKind::Data && seen.insert(blob.id) {
                stats.chunks += 1;
                stats.chunk_bytes += plain_length(&blob);
            }
        }
        Ok(stats)
    }
}

fn plain_length(blob: &IndexBlob) -> u64 {
    let sealed = blob.length.saturating_sub(OVERHEAD as u32);
    blob.uncompressed_length.unwrap_or(sealed).into()
}

/// Snapshots come oldest first.
fn by_volume(snapshots: &[Snapshot]) -> Vec<VolumeStats> {
    let all = AllSeries::of(snapshots);
    let mut volumes: BTreeMap<(&str, Series<'_>), VolumeStats> = BTreeMap::new();
    for snapshot in snapshots {
        let series = all.find(snapshot);
        let found = volumes.entry((series.volume, series)).or_insert_with(|| VolumeStats {
            volume: series.volume.to_owned(),
            group: series.group.map(str::to_owned),
            hostname: snapshot.hostname.clone(),
            snapshots: 0,
            size: 0,
            oldest: snapshot.time,
            newest: snapshot.time,
        });
        found.snapshots += 1;
        found.size = snapshot.size().unwrap_or_default();
        found.newest = snapshot.time;
    }
    volumes.into_values().collect()
}
