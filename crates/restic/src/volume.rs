//! Layout of a volume in a snapshot: a folder named after it, in that one
//! folder for each GiB, and in each of those a file `data` with that GiB.
//!
//! Beside it lies a file that says how to get the volume back with stock
//! restic alone: `restic dump SNAPSHOT /VOLUME | tar -xO`.

use std::ops::Range;

use crate::{
    Error, Id, Repository, Result, Snapshot,
    format::{Node, NodeKind, Tree},
};

/// Number of bytes of a volume that one file holds.
pub(crate) const SEGMENT: u64 = 1 << 30;

/// The name of that file.
const FILE: &str = "data";

/// The name of the file that says how to get a volume back.
const README: &str = "README-selvage.txt";

/// Smallest volume size, from which on, chunks are this large: an index in
/// memory takes about 100 bytes a chunk, and a changed block costs a chunk.
const CHUNKS: [(u64, u32); 4] =
    [(2 << 40, 4 << 20), (256 << 30, 1 << 20), (16 << 30, 256 << 10), (0, 64 << 10)];

/// At which multiples a volume of this size is cut.
pub(crate) fn chunk_for(size: u64) -> u32 {
    let (_, chunk) = CHUNKS.into_iter().find(|(over, _)| size > *over).unwrap_or(CHUNKS[3]);
    chunk
}

/// The same where changes will never be told by the block: nothing is won by
/// chunks that are smaller, and they compress worse.
pub(crate) fn chunk_without_map(size: u64) -> u32 {
    chunk_for(size).max(256 << 10)
}

/// The measures of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u64,
    pub(crate) chunk: u32,
}

impl Layout {
    /// A chunk has to divide a segment.
    pub(crate) fn new(size: u64, chunk: u32) -> Result<Self> {
        if !chunk.is_power_of_two() || !(4096..=8 << 20).contains(&chunk) {
            let reason = format!("{chunk} is not a power of two from 4 KiB to 8 MiB");
            return Err(Error::Invalid { field: "chunk", reason });
        }
        if size > i64::MAX as u64 {
            let reason = format!("{size} bytes are more than a volume can have");
            return Err(Error::Invalid { field: "size", reason });
        }
        Ok(Self { size, chunk })
    }

    pub(crate) fn segments(&self) -> usize {
        self.size.div_ceil(SEGMENT) as usize
    }

    /// Which bytes of the volume are in a segment.
    pub(crate) fn segment(&self, number: usize) -> Range<u64> {
        let start = number as u64 * SEGMENT;
        start..(start + SEGMENT).min(self.size)
    }

    /// Returns the number of chunks of a segment.
    pub(crate) fn chunks(&self, segment: usize) -> usize {
        let range = self.segment(segment);
        (range.end - range.start).div_ceil(self.chunk.into()) as usize
    }

    /// Which bytes of the volume are in a chunk.
    pub(crate) fn chunk(&self, segment: usize, chunk: usize) -> Range<u64> {
        let range = self.segment(segment);
        let start = range.start + chunk as u64 * u64::from(self.chunk);
        start..(start + u64::from(self.chunk)).min(range.end)
    }
}

/// The tree of one segment.
pub(crate) fn segment_tree(size: u64, content: Vec<Id>) -> Tree {
    Tree { nodes: vec![Node::file(FILE, size, content)] }
}

/// The tree of a volume, from the trees of its segments.
pub(crate) fn volume_tree(segments: &[Id]) -> Tree {
    let node = |(number, id): (usize, &Id)| Node::folder(&format!("{number:06}"), *id);
    Tree { nodes: segments.iter().enumerate().map(node).collect() }
}

/// The tree above it, with the file beside it.
pub(crate) fn root_tree(volume: &str, id: Id, readme: (Id, u64)) -> Tree {
    let mut nodes = vec![Node::folder(volume, id)];
    if volume != README {
        nodes.push(Node::file(README, readme.1, vec![readme.0]));
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Tree { nodes }
}

/// Returns the text of the file beside a volume. The same for every backup of a volume
/// that has not grown, so that it is stored once.
pub(crate) fn readme(volume: &str, size: u64) -> String {
    format!(
        "The folder /{volume} holds a volume of {size} bytes, in pieces of 1 GiB.\n\
         With stock restic it is put together again, in a file or on a device, by\n\
         \n    \
         restic -r REPOSITORY dump SNAPSHOT '/{volume}' | tar -xO > IMAGE\n\
         \n\
         where SNAPSHOT is the id of this snapshot, as `restic snapshots` lists it.\n"
    )
}

/// A volume that is in the repository.
#[derive(Debug)]
pub(crate) struct StoredVolume {
    pub(crate) layout: Layout,
    /// The trees of its segments.
    pub(crate) segments: Vec<Id>,
}

impl StoredVolume {
    /// Reads it, `None` if the snapshot is not one of ours.
    pub(crate) async fn load(repository: &Repository, snapshot: &Snapshot) -> Result<Option<Self>> {
        let (Some(size), Some(chunk)) = (snapshot.size(), snapshot.chunk()) else {
            return Ok(None);
        };
        let layout = Layout::new(size, chunk)?;
        let root = repository.load_tree(&snapshot.tree).await?;
        let folders = root.nodes.iter().filter(|node| node.kind == NodeKind::Dir);
        let folders: Vec<Id> = folders.filter_map(|node| node.subtree).collect();
        let [volume] = folders[..] else { return Ok(None) };
        let volume = repository.load_tree(&volume).await?;
        let segments: Vec<Id> = volume.nodes.iter().filter_map(|node| node.subtree).collect();
        if segments.len() != layout.segments() {
            return Ok(None);
        }
        Ok(Some(Self { layout, segments }))
    }

    /// The chunks of a segment.
    pub(crate) async fn chunks(&self, repository: &Repository, number: usize) -> Result<Vec<Id>> {
        let id = self.segments.get(number).ok_or_else(|| Error::Internal(number.to_string()))?;
        let tree = repository.load_tree(id).await?;
        let damaged = |reason: &str| Error::DamagedBlob { id: *id, reason: reason.to_owned() };
        let node = tree.nodes.into_iter().next().ok_or_else(|| damaged("it is empty"))?;
        let content = node.content.unwrap_or_default();
        if content.len() != self.layout.chunks(number) {
            return Err(damaged("it has another number of chunks than the volume"));
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn chunks_grow_with_the_volume() {
        for (size, chunk) in [
            (0, 64 << 10),
            (16 << 30, 64 << 10),
            ((16 << 30) + 1, 256 << 10),
            (256 << 30, 256 << 10),
            (1 << 40, 1 << 20),
            (2 << 40, 1 << 20),
            (3 << 40, 4 << 20),
        ] {
            assert_eq!(chunk_for(size), chunk, "{size}");
        }
    }

    #[test]
    fn chunks_are_larger_where_all_is_read() {
        for (size, chunk) in [(0, 256 << 10), (17 << 30, 256 << 10), (1 << 40, 1 << 20)] {
            assert_eq!(chunk_without_map(size), chunk, "{size}");
        }
    }

    #[test]
    fn segments_and_chunks_cover_the_volume_once() {
        for size in [0, 1, 65_536, 65_537, SEGMENT - 1, SEGMENT, SEGMENT + 100_000] {
            let layout = Layout::new(size, 65_536).unwrap();
            let mut at = 0;
            for segment in 0..layout.segments() {
                for chunk in 0..layout.chunks(segment) {
                    let range = layout.chunk(segment, chunk);
                    assert_eq!(range.start, at);
                    assert!(range.end > at);
                    at = range.end;
                }
            }
            assert_eq!(at, size);
        }
    }

    #[test]
    fn odd_chunks_are_refused() {
        for chunk in [0, 1, 2048, 100_000, 16 << 20] {
            assert!(Layout::new(1, chunk).is_err(), "{chunk}");
        }
        assert!(Layout::new(u64::MAX, 4096).is_err());
    }
}
