//! Snapshots of volumes, and volumes that begin as a copy of something.
//!
//! A snapshot is a copy at lvmd that stands on its own, so that it outlives its
//! volume and never runs out of room for changes. Where lvmd can share blocks such
//! a copy is made at once. Tags tell it from a volume, and say what it is of.

use jiff::Timestamp;

use crate::{
    Error, Result,
    driver::Shared,
    lvmd::VolumeInfo,
    volume::{self, GIB, VolumeId},
    wire::csi::CapacityRange,
};

/// Tag of a snapshot that names its volume.
const SNAPSHOT_OF: &str = "selvage.io/csi-snapshot-of=";
/// Tag of a snapshot with the second in which it was taken.
const TAKEN_AT: &str = "selvage.io/csi-taken-at=";
/// Tag of a volume that names what it is a copy of.
const COPY_OF: &str = "selvage.io/csi-copy-of=";

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) id: VolumeId,
    pub(crate) source: VolumeId,
    pub(crate) size: u64,
    pub(crate) taken: Timestamp,
}

impl Snapshot {
    /// Reads a snapshot of its tags; none for a volume.
    pub(crate) fn of(volume: &VolumeInfo) -> Option<Self> {
        let source: VolumeId = volume.tag(SNAPSHOT_OF)?.parse().ok()?;
        let taken = volume.tag(TAKEN_AT).and_then(|second| second.parse().ok());
        Some(Self {
            // A snapshot is in the class of its volume.
            id: VolumeId { class: source.class.clone(), name: volume.name.clone() },
            source,
            size: volume.size,
            taken: Timestamp::from_second(taken.unwrap_or_default()).unwrap_or_default(),
        })
    }
}

/// Content that a volume begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Snapshot(VolumeId),
    Volume(VolumeId),
}

impl Origin {
    pub(crate) fn id(&self) -> &VolumeId {
        match self {
            Self::Snapshot(id) | Self::Volume(id) => id,
        }
    }
}

impl Shared {
    /// Returns a snapshot; none when it is not there.
    pub(crate) async fn find_snapshot(&self, id: &VolumeId) -> Result<Option<Snapshot>> {
        Ok(self.lvmd.find(id).await?.as_ref().and_then(Snapshot::of))
    }

    /// Takes a snapshot of a volume, unless it is there.
    pub(crate) async fn snapshot(&self, source: &VolumeId, name: &str) -> Result<Snapshot> {
        let id = VolumeId::for_name(name, &source.class);
        let _turn = self.turn(&id)?;
        if let Some(found) = self.lvmd.find(&id).await? {
            let known = Snapshot::of(&found).filter(|known| known.source == *source);
            return known.ok_or_else(|| Error::Exists(format!("{id} is there already")));
        }
        self.lvmd.volume(source).await?;
        let tags = vec![
            format!("{SNAPSHOT_OF}{source}"),
            format!("{TAKEN_AT}{}", Timestamp::now().as_second()),
        ];
        self.lvmd.copy(source, &id, tags).await?;
        tracing::info!(snapshot = %id, volume = %source, "was taken");
        self.find_snapshot(&id).await?.ok_or_else(|| Error::NoSnapshot(id.to_string()))
    }

    /// Removes a snapshot; one that is not there is no error.
    pub(crate) async fn remove_snapshot(&self, id: &VolumeId) -> Result<()> {
        let _turn = self.turn(id)?;
        match self.find_snapshot(id).await? {
            Some(_) => self.lvmd.remove(id).await,
            None => Ok(()),
        }
    }

    /// Makes a volume that begins as a copy, unless it is there; returns its size.
    pub(crate) async fn make_from(
        &self,
        id: &VolumeId,
        origin: &Origin,
        range: Option<&CapacityRange>,
    ) -> Result<u64> {
        let requested = range.is_some_and(|range| range.required_bytes != 0);
        let wanted = volume::size_gb(range)?;
        let _turn = self.turn(id)?;
        let from = origin.id();
        let found = match self.lvmd.find(id).await? {
            // One that was begun may not have its size yet.
            Some(found) if found.tag(COPY_OF) == Some(from.to_string().as_str()) => found,
            Some(_) => return Err(Error::Exists(format!("{id} is there with other content"))),
            None => {
                let size = self.size_of(origin).await?;
                check_size(size, range)?;
                self.lvmd.copy(from, id, vec![format!("{COPY_OF}{from}")]).await?;
                self.lvmd.volume(id).await?
            }
        };
        let size = match requested && found.size < wanted * GIB {
            true => self.lvmd.grow(id, wanted).await?,
            false => found.size,
        };
        match volume::fits(size, range) {
            true => Ok(size),
            false => Err(Error::Exists(format!("volume {id} is there with {size} bytes"))),
        }
    }

    async fn size_of(&self, origin: &Origin) -> Result<u64> {
        Ok(match origin {
            Origin::Volume(id) => self.lvmd.volume(id).await?.size,
            Origin::Snapshot(id) => {
                let found = self.find_snapshot(id).await?;
                found.ok_or_else(|| Error::NoSnapshot(id.to_string()))?.size
            }
        })
    }
}

/// Refuses a size that the content does not fit in.
fn check_size(content: u64, range: Option<&CapacityRange>) -> Result<()> {
    let range = range.copied().unwrap_or_default();
    let (required, limit) = (range.required_bytes, range.limit_bytes);
    let small = |bytes: i64| bytes > 0 && bytes.cast_unsigned() < content;
    match small(required) || small(limit) {
        true => Err(Error::Range(format!("what it is made of has {content} bytes"))),
        false => Ok(()),
    }
}
