//! Which chunk belongs where.

use std::collections::VecDeque;

use crate::{
    Error, Id, Repository, Result, Snapshot,
    format::{BlobKind, Node, NodeKind},
    volume::StoredVolume,
};

/// Number of chunks that are looked at together: enough to find neighbours in a
/// pack, few enough to be held in memory whatever the size of the volume.
const WINDOW: usize = 32 << 10;

/// Depth of folders at most before it is a loop.
const DEEPEST: usize = 64;

/// A chunk and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) offset: u64,
    pub(crate) id: Id,
    pub(crate) length: u32,
}

/// All chunks of a snapshot, a window at a time.
#[derive(Debug)]
pub(crate) enum Contents {
    /// One of ours.
    Volume {
        /// Its segments.
        volume: StoredVolume,
        /// The next segment.
        next: usize,
    },
    /// A file that stock restic made of an image.
    File {
        /// The snapshot it is in.
        snapshot: Id,
        /// Length.
        size: u64,
        /// The chunks that are left.
        chunks: VecDeque<Id>,
        /// Offset of the next one.
        offset: u64,
    },
}

impl Contents {
    /// Looks for the volume or the image in a snapshot.
    pub(crate) async fn find(
        repository: &Repository,
        snapshot: &Snapshot,
        file: Option<&str>,
    ) -> Result<Self> {
        if file.is_none()
            && let Some(volume) = StoredVolume::load(repository, snapshot).await?
        {
            return Ok(Self::Volume { volume, next: 0 });
        }
        let node = find_file(repository, snapshot, file).await?;
        let chunks = node.content.unwrap_or_default().into();
        Ok(Self::File { snapshot: snapshot.id, size: node.size, chunks, offset: 0 })
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Volume { volume, .. } => volume.layout.size,
            Self::File { size, .. } => *size,
        }
    }

    /// The next chunks, `None` at the end.
    pub(crate) async fn next_window(
        &mut self,
        repository: &Repository,
    ) -> Result<Option<Vec<Chunk>>> {
        match self {
            Self::Volume { volume, next } => volume_window(repository, volume, next).await,
            Self::File { snapshot, size, chunks, offset } => {
                let count = chunks.len().min(WINDOW);
                let mut window = Vec::with_capacity(count);
                for id in chunks.drain(..count) {
                    let length = repository.find_blob(BlobKind::Data, &id)?.blob.plain_length();
                    window.push(Chunk { offset: *offset, id, length });
                    *offset += u64::from(length);
                }
                if *offset > *size || (chunks.is_empty() && *offset != *size) {
                    let reason = "the image is longer or shorter than its chunks".to_owned();
                    return Err(Error::NotAVolume { snapshot: snapshot.short(), reason });
                }
                Ok(Some(window).filter(|window| !window.is_empty()))
            }
        }
    }
}

async fn volume_window(
    repository: &Repository,
    volume: &StoredVolume,
    next: &mut usize,
) -> Result<Option<Vec<Chunk>>> {
    let mut window = Vec::new();
    while *next < volume.segments.len() && window.len() < WINDOW {
        for (number, id) in volume.chunks(repository, *next).await?.into_iter().enumerate() {
            let range = volume.layout.chunk(*next, number);
            let length = (range.end - range.start) as u32;
            window.push(Chunk { offset: range.start, id, length });
        }
        *next += 1;
    }
    Ok(Some(window).filter(|window| !window.is_empty()))
}

/// The one file of a snapshot, or the one that is asked for.
async fn find_file(
    repository: &Repository,
    snapshot: &Snapshot,
    wanted: Option<&str>,
) -> Result<Node> {
    let wrong = |reason: String| Error::NotAVolume { snapshot: snapshot.id.short(), reason };
    let wanted = wanted.map(|path| path.trim_matches('/'));
    let mut found = None;
    let mut folders = vec![(String::new(), snapshot.tree, 0)];
    while let Some((path, tree, depth)) = folders.pop() {
        for node in repository.load_tree(&tree).await?.nodes {
            let path =
                if path.is_empty() { node.name.clone() } else { path.clone() + "/" + &node.name };
            if let Some(subtree) = node.subtree.filter(|_| node.kind == NodeKind::Dir) {
                if depth >= DEEPEST {
                    return Err(wrong("its folders are nested too deeply".to_owned()));
                }
                folders.push((path, subtree, depth + 1));
            } else if node.kind == NodeKind::File && wanted.is_none_or(|wanted| wanted == path) {
                if found.is_some() {
                    return Err(wrong("it holds more than one file: say which".to_owned()));
                }
                found = Some(node);
            }
        }
    }
    found.ok_or_else(|| match wanted {
        Some(file) => wrong(format!("it holds no file '{file}'")),
        None => wrong("it holds no file".to_owned()),
    })
}
