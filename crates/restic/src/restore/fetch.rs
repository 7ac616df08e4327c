//! Chunks are fetched, checked and written.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use tokio_util::task::TaskTracker;

use super::contents::Chunk;
use crate::{
    BlockSink, Error, Id, Job, Repository, Result,
    backend::{File, Kind},
    format::{BlobKind, PackedBlob},
    index::IdMap,
    job::add,
    repository::{Opener, internal},
    zeros::all_zero,
};

/// The most that is fetched at a time.
const LONGEST: u64 = 8 << 20;

/// Longest gap between two chunks that is fetched along:
/// cheaper than another question.
const GAP: u64 = 128 << 10;

/// Stock restic's longest chunk, which is what long runs of zeros become.
const STOCK_LONGEST: u32 = 8 << 20;

/// A blob and all the places it belongs to.
#[derive(Debug)]
pub(crate) struct WantedBlob {
    pub(crate) blob: PackedBlob,
    pub(crate) places: Vec<u64>,
}

/// A part of a pack, with the blobs one wants of it.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) pack: Id,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) blobs: Vec<WantedBlob>,
}

/// Cuts what is wanted of a pack into pieces.
pub(crate) fn ranges(pack: Id, mut wanted: Vec<WantedBlob>) -> Vec<Piece> {
    wanted.sort_by_key(|wanted| wanted.blob.offset);
    let mut pieces: Vec<Piece> = Vec::new();
    for wanted in wanted {
        let (offset, length) = (u64::from(wanted.blob.offset), u64::from(wanted.blob.length));
        match pieces.last_mut() {
            Some(piece)
                if offset <= piece.offset + piece.length + GAP
                    && offset + length - piece.offset <= LONGEST =>
            {
                piece.length = piece.length.max(offset + length - piece.offset);
                piece.blobs.push(wanted);
            }
            _ => pieces.push(Piece { pack, offset, length, blobs: vec![wanted] }),
        }
    }
    pieces
}

/// Target of a restore.
pub(super) struct Target {
    repository: Repository,
    sink: Arc<dyn BlockSink>,
    job: Job,
    written: Arc<AtomicU64>,
    /// Threads that write. Also if a restore ends early, the last of them has
    /// ended before it does.
    writers: TaskTracker,
}

impl Target {
    pub(super) fn new(repository: &Repository, sink: Arc<dyn BlockSink>, job: &Job) -> Self {
        Self {
            repository: repository.clone(),
            sink,
            job: job.clone(),
            written: Arc::default(),
            writers: TaskTracker::new(),
        }
    }

    /// Waits until nobody writes any more.
    pub(super) async fn settle(&self) {
        self.writers.close();
        self.writers.wait().await;
    }

    pub(super) fn sink(&self) -> &dyn BlockSink {
        &*self.sink
    }

    /// Makes what was written last.
    pub(super) async fn finish(&self, size: u64) -> Result<()> {
        let sink = Arc::clone(&self.sink);
        let finished = self.writers.spawn_blocking(move || sink.finish()).await;
        finished.map_err(internal)?.map_err(|source| Error::Sink { offset: size, source })
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns whether this chunk is zeros, as its id tells. Odd lengths are not
    /// looked at: hashing them costs more than fetching.
    fn is_zero(&self, chunk: &Chunk) -> bool {
        let usual = chunk.length.is_power_of_two() && chunk.length <= STOCK_LONGEST;
        usual && self.repository.zeros().of(chunk.length as usize) == chunk.id
    }

    /// Writes one window.
    pub(super) async fn write(&self, window: Vec<Chunk>) -> Result<()> {
        let mut places: IdMap<Vec<u64>> = IdMap::default();
        let mut zeros: Vec<std::ops::Range<u64>> = Vec::new();
        let mut lengths: IdMap<u32> = IdMap::default();
        for chunk in window {
            if !self.is_zero(&chunk) {
                lengths.insert(chunk.id, chunk.length);
                places.entry(chunk.id).or_default().push(chunk.offset);
                continue;
            }
            let end = chunk.offset + u64::from(chunk.length);
            match zeros.last_mut() {
                Some(last) if last.end == chunk.offset => last.end = end,
                _ => zeros.push(chunk.offset..end),
            }
        }
        self.write_zeros(zeros).await?;
        let places = self.differing(places, lengths).await?;
        let pieces = self.pieces(places)?;
        stream::iter(pieces)
            .map(|piece| self.write_piece(piece))
            .buffer_unordered(self.repository.options().connections.max(1))
            .try_collect::<()>()
            .await
    }

    /// Leaves out what is in its place already: of an earlier attempt, or because
    /// it never changed.
    async fn differing(
        &self,
        places: IdMap<Vec<u64>>,
        lengths: IdMap<u32>,
    ) -> Result<IdMap<Vec<u64>>> {
        if self.sink.is_fresh() {
            return Ok(places);
        }
        let threads = self.repository.options().threads.max(1);
        let all: Vec<(Id, Vec<u64>)> = places.into_iter().collect();
        let share = all.len().div_ceil(threads).max(1);
        let lengths = Arc::new(lengths);
        let looking = all.chunks(share).map(|part| {
            let target = (Arc::clone(&self.sink), self.job.clone(), Arc::clone(&lengths));
            let part = part.to_vec();
            self.writers.spawn_blocking(move || {
                let (sink, job, lengths) = target;
                leave_out(&*sink, &job, part, &lengths)
            })
        });
        let mut differing = IdMap::default();
        for looked in futures::future::join_all(looking).await {
            differing.extend(looked.map_err(internal)??);
        }
        Ok(differing)
    }

    async fn write_zeros(&self, zeros: Vec<std::ops::Range<u64>>) -> Result<()> {
        add(&self.job.counters().done, zeros.iter().map(|range| range.end - range.start).sum());
        if self.sink.is_fresh() || zeros.is_empty() {
            return Ok(());
        }
        let sink = Arc::clone(&self.sink);
        let writing = self.writers.spawn_blocking(move || {
            zeros.into_iter().try_for_each(|range| {
                sink.zero_at(range.start, range.end - range.start)
                    .map_err(|source| Error::Sink { offset: range.start, source })
            })
        });
        writing.await.map_err(internal)?
    }

    fn pieces(&self, places: IdMap<Vec<u64>>) -> Result<Vec<Piece>> {
        let mut packs: BTreeMap<Id, Vec<WantedBlob>> = BTreeMap::new();
        for (id, places) in places {
            let found = self.repository.find_blob(BlobKind::Data, &id)?;
            packs.entry(found.pack).or_default().push(WantedBlob { blob: found.blob, places });
        }
        Ok(packs.into_iter().flat_map(|(pack, wanted)| ranges(pack, wanted)).collect())
    }

    async fn write_piece(&self, piece: Piece) -> Result<()> {
        let file = File::Named(Kind::Pack, piece.pack);
        let backend = self.repository.backend();
        let content = backend.read_range(file, piece.offset, piece.length).await?;
        add(&self.job.counters().downloaded, piece.length);
        let target = (self.repository.clone(), Arc::clone(&self.sink), self.job.clone());
        let written = Arc::clone(&self.written);
        let writing = self.writers.spawn_blocking(move || {
            let (repository, sink, job) = target;
            write_blobs(&repository, &*sink, &job, &written, &piece, content)
        });
        // What did not arrive whole is fetched by itself, which tries again.
        for wanted in writing.await.map_err(internal)?? {
            let text = self.repository.load_blob(BlobKind::Data, &wanted.blob.id).await?;
            let target = (Arc::clone(&self.sink), self.job.clone(), Arc::clone(&self.written));
            let writing = self.writers.spawn_blocking(move || {
                let (sink, job, written) = target;
                write_blob(&*sink, &job, &written, &wanted.places, &text)
            });
            writing.await.map_err(internal)??;
        }
        Ok(())
    }
}

/// Reads what is in the places of blobs, and gives those back that are not there.
fn leave_out(
    sink: &dyn BlockSink,
    job: &Job,
    part: Vec<(Id, Vec<u64>)>,
    lengths: &IdMap<u32>,
) -> Result<Vec<(Id, Vec<u64>)>> {
    let (mut buffer, mut left) = (Vec::new(), Vec::new());
    for (id, mut places) in part {
        job.check()?;
        buffer.resize(lengths.get(&id).copied().unwrap_or_default() as usize, 0);
        let before = places.len();
        // What cannot be read is written.
        places.retain(|offset| {
            !matches!(sink.read_at(*offset, &mut buffer), Ok(true)) || Id::of(&buffer) != id
        });
        add(&job.counters().done, (before - places.len()) as u64 * buffer.len() as u64);
        if !places.is_empty() {
            left.push((id, places));
        }
    }
    Ok(left)
}

/// Writes the blobs of a piece and gives back those that are damaged.
fn write_blobs(
    repository: &Repository,
    sink: &dyn BlockSink,
    job: &Job,
    written: &AtomicU64,
    piece: &Piece,
    content: Bytes,
) -> Result<Vec<WantedBlob>> {
    let mut damaged = Vec::new();
    let mut opener = Opener::new()?;
    let mut content = BytesMut::from(content);
    for wanted in &piece.blobs {
        job.check()?;
        let start = (u64::from(wanted.blob.offset) - piece.offset) as usize;
        let sealed = &mut content[start..start + wanted.blob.length as usize];
        match opener.open(repository, &wanted.blob, sealed) {
            Ok(text) => write_blob(sink, job, written, &wanted.places, text)?,
            Err(_) => {
                damaged.push(WantedBlob { blob: wanted.blob, places: wanted.places.clone() });
            }
        }
    }
    Ok(damaged)
}

fn write_blob(
    sink: &dyn BlockSink,
    job: &Job,
    written: &AtomicU64,
    places: &[u64],
    text: &[u8],
) -> Result<()> {
    let zero = all_zero(text);
    for offset in places.iter().copied() {
        let length = text.len() as u64;
        let done = if !zero {
            add(written, length);
            sink.write_at(offset, text)
        } else if !sink.is_fresh() {
            sink.zero_at(offset, length)
        } else {
            Ok(())
        };
        done.map_err(|source| Error::Sink { offset, source })?;
        add(&job.counters().done, length);
        add(&job.counters().chunks, 1);
    }
    Ok(())
}
