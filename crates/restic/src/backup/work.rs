//! Threads that read, hash, compress and seal.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;
use zstd::zstd_safe::CParameter;

use super::{
    Pack, Packers, folder,
    plan::{self, Base, Segment},
    upload_all,
};
use crate::{
    BlockSource, Error, Id, Job, Repository, Result,
    format::{BlobKind, Tree},
    index::IdSet,
    job::add,
    repository::internal,
    volume::{Layout, readme, root_tree, segment_tree, volume_tree},
    zeros::all_zero,
};

/// When to drop claims that are in the index by now.
const MOST_CLAIMED: usize = 1 << 15;

/// Which parts of a volume may hold anything. Looked up while others get the
/// repository ready: it may take a while.
pub(crate) struct Allocated(AbortOnDropHandle<Result<Option<Vec<Range<u64>>>>>);

/// Begins to look.
pub(crate) fn find_allocated(source: &Arc<dyn BlockSource>) -> Allocated {
    let source = Arc::clone(source);
    let looking = tokio::task::spawn_blocking(move || {
        let found = source.allocated().map_err(|source| Error::Source { offset: 0, source })?;
        Ok(found.map(plan::tidy))
    });
    Allocated(AbortOnDropHandle::new(looking))
}

/// Stores all chunks and trees of a volume, and says which tree is its root.
/// When this returns, everything below that tree is in the repository and in
/// an index.
pub(crate) async fn store_volume(
    repository: &Repository,
    source: Arc<dyn BlockSource>,
    allocated: Allocated,
    layout: Layout,
    volume: &str,
    base: Option<Base>,
    job: &Job,
) -> Result<Id> {
    job.counters().total.store(layout.size, Ordering::Relaxed);
    let (packs, queue) = mpsc::channel(1);
    let mut engine = Engine::new(repository, source, layout, job, packs);
    if base.is_some() {
        engine.level = repository.options().compression_of_changes;
    }
    let engine = Arc::new(engine);
    let folder = folder(volume);
    let store = async {
        engine.store_segments(base, allocated).await?;
        let last = Arc::clone(&engine);
        let root = tokio::task::spawn_blocking(move || last.finish(&folder));
        let root = root.await.map_err(internal)?;
        // The uploads end when nobody can add any more.
        drop(engine);
        root
    };
    let (stored, uploaded) = tokio::join!(store, upload_all(repository, queue, job));
    match (stored, uploaded) {
        // Whoever gives packs to an upload that failed sees only that it ended.
        (Err(Error::Internal(_)), Err(error)) => Err(error),
        (stored, uploaded) => {
            let root = stored?;
            uploaded?;
            Ok(root)
        }
    }
}

/// A segment while its chunks are read.
struct Open {
    number: usize,
    chunks: Mutex<Vec<Option<Id>>>,
    /// Number of runs that are not done.
    left: AtomicUsize,
}

/// Task of one thread at a time.
struct Task {
    segment: Arc<Open>,
    run: Range<usize>,
}

/// State of a thread from one task to the next.
struct Scratch {
    read: Vec<u8>,
    compressed: Vec<u8>,
    sealed: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
}

struct Engine {
    repository: Repository,
    source: Arc<dyn BlockSource>,
    layout: Layout,
    job: Job,
    /// Level of compression.
    level: i32,
    packers: Packers,
    packs: mpsc::Sender<Pack>,
    /// Blobs that are on their way and in no index yet.
    claimed: Mutex<(IdSet, IdSet)>,
    /// The trees of the segments that are done.
    trees: Mutex<BTreeMap<usize, Id>>,
    /// The trees of segments that are nothing but zeros, by their length.
    zero_trees: Mutex<HashMap<u64, Id>>,
}

impl Engine {
    fn new(
        repository: &Repository,
        source: Arc<dyn BlockSource>,
        layout: Layout,
        job: &Job,
        packs: mpsc::Sender<Pack>,
    ) -> Self {
        Self {
            repository: repository.clone(),
            source,
            layout,
            job: job.clone(),
            level: repository.options().compression,
            packers: Packers::new(repository.options()),
            packs,
            claimed: Mutex::default(),
            trees: Mutex::default(),
            zero_trees: Mutex::default(),
        }
    }

    /// Plans segment after segment and lets threads do the rest.
    async fn store_segments(
        self: &Arc<Self>,
        base: Option<Base>,
        allocated: Allocated,
    ) -> Result<()> {
        let threads = self.repository.options().threads.max(1);
        let (tasks, queue) = mpsc::channel(threads * 4);
        let queue = Arc::new(Mutex::new(queue));
        let mut workers = JoinSet::new();
        for _ in 0..threads {
            let (engine, queue) = (Arc::clone(self), Arc::clone(&queue));
            workers.spawn_blocking(move || engine.work(&queue));
        }
        // Once the last thread has ended, giving tasks fails.
        drop(queue);
        let planned = self.job.or_cancelled(self.give_tasks(base, allocated, tasks)).await;
        let mut outcome = Ok(());
        while let Some(worker) = workers.join_next().await {
            outcome = outcome.and(worker.map_err(internal)?);
        }
        outcome.and(planned)
    }

    async fn give_tasks(
        &self,
        base: Option<Base>,
        allocated: Allocated,
        tasks: mpsc::Sender<Task>,
    ) -> Result<()> {
        let allocated = allocated.0.await.map_err(internal)??;
        // Several at a time: each may have to fetch what the parent had.
        let mut planned = stream::iter(0..self.layout.segments())
            .map(|number| {
                let (base, allocated) = (base.as_ref(), allocated.as_deref());
                plan::plan_segment(&self.repository, self.layout, number, base, allocated)
                    .map_ok(move |segment| (number, segment))
            })
            .buffered(self.repository.options().connections.max(1));
        while let Some((number, segment)) = planned.try_next().await? {
            let chunks = match segment {
                Segment::Stored(tree) => {
                    let range = self.layout.segment(number);
                    add(&self.job.counters().done, range.end - range.start);
                    self.trees.lock().insert(number, tree);
                    continue;
                }
                Segment::Chunks(chunks) => chunks,
            };
            self.count_known(number, &chunks);
            let mut runs = plan::runs(&chunks, self.layout.chunk);
            if runs.is_empty() {
                // Somebody has to write the tree all the same.
                runs.push(0..0);
            }
            let left = AtomicUsize::new(runs.len());
            let segment = Arc::new(Open { number, chunks: Mutex::new(chunks), left });
            for run in runs {
                let task = Task { segment: Arc::clone(&segment), run };
                tasks.send(task).await.map_err(|_| internal("the workers ended"))?;
            }
        }
        Ok(())
    }

    /// Counts what need not be read as done.
    fn count_known(&self, segment: usize, chunks: &[Option<Id>]) {
        let known = chunks.iter().enumerate().filter(|(_, id)| id.is_some());
        let bytes = known.map(|(number, _)| {
            let range = self.layout.chunk(segment, number);
            range.end - range.start
        });
        add(&self.job.counters().done, bytes.sum());
    }

    /// The life of a thread.
    fn work(&self, queue: &Mutex<mpsc::Receiver<Task>>) -> Result<()> {
        let mut scratch = self.scratch()?;
        loop {
            // Held while waiting: whoever has it gets the next task.
            let task = queue.lock().blocking_recv();
            let Some(task) = task else { return Ok(()) };
            let done = self.job.check().and_then(|()| self.store_run(&task, &mut scratch));
            if let Err(error) = done {
                // Nobody else should go on, nor wait for room in the queue.
                queue.lock().close();
                return Err(error);
            }
        }
    }

    fn scratch(&self) -> Result<Scratch> {
        let mut compressor = zstd::bulk::Compressor::new(self.level).map_err(internal)?;
        if self.level == 3 {
            // As it is for all other lengths: for those up to 256 KiB the level
            // means matches of four, a fifth slower for a hundredth of the size.
            compressor.set_parameter(CParameter::MinMatch(5)).map_err(internal)?;
        }
        let (read, compressed, sealed) = Default::default();
        Ok(Scratch { read, compressed, sealed, compressor })
    }

    fn store_run(&self, task: &Task, scratch: &mut Scratch) -> Result<()> {
        let mut ids = Vec::with_capacity(task.run.len());
        let mut buffer = std::mem::take(&mut scratch.read);
        if !task.run.is_empty() {
            let start = self.layout.chunk(task.segment.number, task.run.start).start;
            let end = self.layout.chunk(task.segment.number, task.run.end - 1).end;
            self.read(start, (end - start) as usize, &mut buffer)?;
            for chunk in buffer.chunks(self.layout.chunk as usize) {
                ids.push(self.store_chunk(chunk, scratch)?);
            }
            add(&self.job.counters().done, end - start);
        }
        scratch.read = buffer;
        {
            let mut chunks = task.segment.chunks.lock();
            for (slot, id) in chunks[task.run.clone()].iter_mut().zip(ids) {
                *slot = Some(id);
            }
        }
        if task.segment.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.store_segment(&task.segment, scratch)?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<()> {
        self.repository.options().limits.read.take_blocking(length, || self.job.check())?;
        buffer.resize(length, 0);
        self.source.read_at(offset, buffer).map_err(|source| Error::Source { offset, source })?;
        add(&self.job.counters().read, length as u64);
        Ok(())
    }

    fn store_chunk(&self, chunk: &[u8], scratch: &mut Scratch) -> Result<Id> {
        add(&self.job.counters().chunks, 1);
        if all_zero(chunk) {
            let id = self.repository.zeros().of(chunk.len());
            self.store_blob(BlobKind::Data, id, chunk, scratch)?;
            return Ok(id);
        }
        let id = Id::of(chunk);
        self.store_blob(BlobKind::Data, id, chunk, scratch)?;
        Ok(id)
    }

    /// All chunks of a segment are stored: now its tree.
    fn store_segment(&self, segment: &Open, scratch: &mut Scratch) -> Result<()> {
        let range = self.layout.segment(segment.number);
        let length = range.end - range.start;
        let known: Option<Vec<Id>> = segment.chunks.lock().drain(..).collect();
        let ids = known.ok_or_else(|| internal("a chunk was not stored"))?;
        let zero = self.store_zeros(&ids, length, scratch)?;
        if zero && let Some(tree) = self.zero_trees.lock().get(&length) {
            self.trees.lock().insert(segment.number, *tree);
            return Ok(());
        }
        let tree = self.store_tree(&segment_tree(length, ids), scratch)?;
        if zero {
            self.zero_trees.lock().insert(length, tree);
        }
        self.trees.lock().insert(segment.number, tree);
        Ok(())
    }

    /// Chunks that were zeros without being read need their blob, too. Says
    /// whether there is nothing else.
    fn store_zeros(&self, ids: &[Id], length: u64, scratch: &mut Scratch) -> Result<bool> {
        let chunk = self.layout.chunk as usize;
        let tail = (length % chunk as u64) as usize;
        let mut zeros = 0;
        for length in [chunk, tail].into_iter().filter(|length| *length > 0) {
            let zero = self.repository.zeros().of(length);
            let found = ids.iter().filter(|id| **id == zero).count();
            if found > 0 {
                self.store_blob(BlobKind::Data, zero, &vec![0; length], scratch)?;
            }
            zeros += found;
        }
        Ok(zeros == ids.len())
    }

    fn store_tree(&self, tree: &Tree, scratch: &mut Scratch) -> Result<Id> {
        let text = tree.to_json();
        let id = Id::of(&text);
        self.store_blob(BlobKind::Tree, id, &text, scratch)?;
        Ok(id)
    }

    /// Compresses, seals and packs a blob, unless it is there or on its way.
    fn store_blob(&self, kind: BlobKind, id: Id, text: &[u8], scratch: &mut Scratch) -> Result<()> {
        if !self.claim(kind, id) {
            return Ok(());
        }
        let mut uncompressed_length = None;
        let mut plain = text;
        if self.repository.config().compresses() {
            scratch.compressed.clear();
            scratch.compressed.reserve(zstd::zstd_safe::compress_bound(text.len()));
            scratch
                .compressor
                .compress_to_buffer(text, &mut scratch.compressed)
                .map_err(internal)?;
            if scratch.compressed.len() < text.len() {
                plain = &scratch.compressed;
                uncompressed_length = Some(text.len() as u32);
            }
        }
        scratch.sealed.clear();
        let key = self.repository.key();
        key.seal_into(plain, &mut scratch.sealed);
        add(&self.job.counters().new, text.len() as u64);
        add(&self.job.counters().stored, scratch.sealed.len() as u64);
        match self.packers.add(key, kind, id, &scratch.sealed, uncompressed_length) {
            Some(pack) => self.send(pack),
            None => Ok(()),
        }
    }

    fn send(&self, pack: Pack) -> Result<()> {
        self.packs.blocking_send(pack).map_err(|_| internal("the uploads ended"))
    }

    /// Returns whether it is for us to store this blob.
    fn claim(&self, kind: BlobKind, id: Id) -> bool {
        let mut claimed = self.claimed.lock();
        // A blob is in the index only after its pack was uploaded; looked at
        // under the same lock, so that it is claimed once.
        if self.repository.index().read().has(kind, &id) {
            return false;
        }
        let (data, trees) = &mut *claimed;
        let set = if kind == BlobKind::Data { data } else { trees };
        if set.len() >= MOST_CLAIMED {
            let index = self.repository.index().read();
            set.retain(|id| !index.has(kind, id));
        }
        set.insert(id)
    }

    /// The trees above the segments, and what is left in the packs.
    fn finish(&self, folder: &str) -> Result<Id> {
        let mut scratch = self.scratch()?;
        let segments: Vec<Id> = self.trees.lock().values().copied().collect();
        if segments.len() != self.layout.segments() {
            return Err(internal("a segment was not stored"));
        }
        let volume = self.store_tree(&volume_tree(&segments), &mut scratch)?;
        let text = readme(folder, self.layout.size);
        let id = Id::of(text.as_bytes());
        self.store_blob(BlobKind::Data, id, text.as_bytes(), &mut scratch)?;
        let root = root_tree(folder, volume, (id, text.len() as u64));
        let root = self.store_tree(&root, &mut scratch)?;
        for pack in self.packers.flush(self.repository.key()) {
            self.send(pack)?;
        }
        Ok(root)
    }
}
