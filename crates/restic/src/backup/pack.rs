//! Blobs become packs.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    Id, RepositoryOptions,
    crypto::{Key, OVERHEAD},
    format::{BlobKind, IndexPack, PackedBlob, header_plain},
};

/// No pack holds more blobs: its header stays small.
const MOST_BLOBS: usize = 2048;

/// No pack is closed that is smaller, but for the last.
const SMALLEST: u64 = 1 << 20;

/// Limit of what is on its way, and is lost when a process is killed: no
/// more than one part of so many of what was sent before.
const LOSS: u64 = 20;

/// A pack that is ready to go.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) id: Id,
    pub(crate) content: Bytes,
    pub(crate) blobs: Vec<PackedBlob>,
}

impl Pack {
    pub(crate) fn to_index(&self) -> IndexPack {
        let blobs = self.blobs.iter().map(|blob| (*blob).into()).collect();
        IndexPack { id: self.id, blobs, time: None }
    }
}

/// A pack in the making.
#[derive(Debug, Default)]
struct Open {
    content: Vec<u8>,
    blobs: Vec<PackedBlob>,
}

/// One pack in the making for each kind of blobs: stock tools want them apart.
#[derive(Debug)]
pub(crate) struct Packers {
    /// Size of packs in the end.
    size: u64,
    /// Number of packs that are on their way at a time.
    connections: u64,
    /// Number of bytes in packs that are closed.
    closed: AtomicU64,
    data: Mutex<Open>,
    trees: Mutex<Open>,
}

impl Packers {
    pub(crate) fn new(options: &RepositoryOptions) -> Self {
        Self {
            size: options.pack_size.into(),
            connections: options.connections.max(1) as u64,
            closed: AtomicU64::new(0),
            data: Mutex::default(),
            trees: Mutex::default(),
        }
    }

    /// Returns the size of a pack now: they grow with what was sent.
    fn full(&self) -> usize {
        let closed = self.closed.load(Ordering::Relaxed);
        let bearable = closed / (LOSS * self.connections);
        bearable.max(SMALLEST).min(self.size) as usize
    }

    fn of(&self, kind: BlobKind) -> &Mutex<Open> {
        match kind {
            BlobKind::Data => &self.data,
            BlobKind::Tree => &self.trees,
        }
    }

    /// Adds a sealed blob, and gives the pack back if that filled it.
    pub(crate) fn add(
        &self,
        key: &Key,
        kind: BlobKind,
        id: Id,
        sealed: &[u8],
        uncompressed_length: Option<u32>,
    ) -> Option<Pack> {
        let size = self.full();
        let full = {
            let mut open = self.of(kind).lock();
            if open.content.capacity() == 0 {
                // All at once: growing would copy it again and again.
                let room = if kind == BlobKind::Data { size + (1 << 20) } else { 0 };
                open.content.reserve_exact(room);
            }
            let (offset, length) = (open.content.len() as u32, sealed.len() as u32);
            open.blobs.push(PackedBlob { id, kind, offset, length, uncompressed_length });
            open.content.extend_from_slice(sealed);
            let full = open.content.len() >= size || open.blobs.len() >= MOST_BLOBS;
            full.then(|| std::mem::take(&mut *open))
        };
        let full = full?;
        self.closed.fetch_add(full.content.len() as u64, Ordering::Relaxed);
        Some(close(key, full))
    }

    /// Returns what is left.
    pub(crate) fn flush(&self, key: &Key) -> Vec<Pack> {
        [BlobKind::Data, BlobKind::Tree]
            .into_iter()
            .map(|kind| std::mem::take(&mut *self.of(kind).lock()))
            .filter(|open| !open.blobs.is_empty())
            .map(|open| close(key, open))
            .collect()
    }
}

fn close(key: &Key, mut open: Open) -> Pack {
    let header = header_plain(&open.blobs);
    key.seal_into(&header, &mut open.content);
    let length = (header.len() + OVERHEAD) as u32;
    open.content.extend_from_slice(&length.to_le_bytes());
    Pack { id: Id::of(&open.content), content: open.content.into(), blobs: open.blobs }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn what_is_on_its_way_is_little_of_what_was_sent() {
        let options = RepositoryOptions::default();
        let (packers, key) = (Packers::new(&options), Key::random());
        let blob = vec![0; 64 << 10];
        let mut sent: Vec<u64> = Vec::new();
        while sent.iter().sum::<u64>() < 1 << 30 {
            let pack = packers.add(&key, BlobKind::Data, Id::random(), &blob, None);
            sent.extend(pack.map(|pack| pack.content.len() as u64));
        }
        let (few, over) = (options.connections, (blob.len() + (16 << 10)) as u64);
        for at in 0..sent.len() - few {
            let before: u64 = sent[..at].iter().sum();
            let under_way: u64 = sent[at..at + few].iter().sum();
            let bearable = (before / LOSS * 11 / 10).max(few as u64 * SMALLEST);
            assert!(under_way <= bearable + few as u64 * over, "{under_way} after {before}");
        }
        assert!(*sent.last().unwrap() >= u64::from(options.pack_size));
    }
}
