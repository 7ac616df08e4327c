//! Blobs become packs.

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    Id,
    crypto::{Key, OVERHEAD},
    format::{BlobKind, IndexPack, PackedBlob, header_plain},
};

/// No pack holds more blobs: its header stays small.
const MOST_BLOBS: usize = 2048;

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
    size: usize,
    data: Mutex<Open>,
    trees: Mutex<Open>,
}

impl Packers {
    pub(crate) fn new(size: u32) -> Self {
        Self { size: size as usize, data: Mutex::default(), trees: Mutex::default() }
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
        let full = {
            let mut open = self.of(kind).lock();
            if open.content.capacity() == 0 {
                // All at once: growing would copy it again and again.
                let room = if kind == BlobKind::Data { self.size + (1 << 20) } else { 0 };
                open.content.reserve_exact(room);
            }
            let (offset, length) = (open.content.len() as u32, sealed.len() as u32);
            open.blobs.push(PackedBlob { id, kind, offset, length, uncompressed_length });
            open.content.extend_from_slice(sealed);
            let full = open.content.len() >= self.size || open.blobs.len() >= MOST_BLOBS;
            full.then(|| std::mem::take(&mut *open))
        };
        full.map(|open| close(key, open))
    }

    /// What is left.
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
