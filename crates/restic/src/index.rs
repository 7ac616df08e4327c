//! Index of all blobs, in memory.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    Id,
    format::{BlobKind, IndexFile, IndexPack, PackedBlob},
};

/// Ids are hashes already.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// A map by id.
pub(crate) type IdMap<T> = HashMap<Id, T, BuildHasherDefault<FirstBytes>>;

/// A set of ids.
pub(crate) type IdSet = HashSet<Id, BuildHasherDefault<FirstBytes>>;

/// Position of a blob. Small: there may be millions.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pack: u32,
    offset: u32,
    length: u32,
    /// 0 for a blob that is not compressed.
    uncompressed: u32,
}

/// Position of a blob, spelt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobLocation {
    pub(crate) pack: Id,
    pub(crate) blob: PackedBlob,
}

/// All blobs of a repository.
#[derive(Debug, Default)]
pub(crate) struct Index {
    packs: Vec<Id>,
    numbers: IdMap<u32>,
    data: IdMap<Entry>,
    trees: IdMap<Entry>,
    /// Packs that are marked to go. Nothing new may count on them.
    doomed: IdSet,
}

impl Index {
    pub(crate) fn add_file(&mut self, file: &IndexFile) {
        for pack in &file.packs {
            self.add_pack(pack);
        }
        self.doomed.extend(file.packs_to_delete.iter().map(|pack| pack.id));
    }

    pub(crate) fn add_pack(&mut self, pack: &IndexPack) {
        let next = self.packs.len() as u32;
        let number = *self.numbers.entry(pack.id).or_insert(next);
        if number == next {
            self.packs.push(pack.id);
        }
        for blob in &pack.blobs {
            let entry = Entry {
                pack: number,
                offset: blob.offset,
                length: blob.length,
                uncompressed: blob.uncompressed_length.unwrap_or(0),
            };
            self.map_mut(blob.kind).entry(blob.id).or_insert(entry);
        }
    }

    fn map(&self, kind: BlobKind) -> &IdMap<Entry> {
        match kind {
            BlobKind::Data => &self.data,
            BlobKind::Tree => &self.trees,
        }
    }

    fn map_mut(&mut self, kind: BlobKind) -> &mut IdMap<Entry> {
        match kind {
            BlobKind::Data => &mut self.data,
            BlobKind::Tree => &mut self.trees,
        }
    }

    pub(crate) fn has(&self, kind: BlobKind, id: &Id) -> bool {
        self.map(kind).contains_key(id)
    }

    pub(crate) fn find(&self, kind: BlobKind, id: &Id) -> Option<BlobLocation> {
        let entry = self.map(kind).get(id)?;
        let blob = PackedBlob {
            id: *id,
            kind,
            offset: entry.offset,
            length: entry.length,
            uncompressed_length: Some(entry.uncompressed).filter(|length| *length > 0),
        };
        Some(BlobLocation { pack: *self.packs.get(entry.pack as usize)?, blob })
    }

    /// Returns whether any index speaks of this pack.
    pub(crate) fn knows_pack(&self, id: &Id) -> bool {
        self.numbers.contains_key(id) || self.doomed.contains(id)
    }
}
