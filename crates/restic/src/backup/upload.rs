//! Packs go to the repository, a few at a time, and then into an index.

use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use super::Pack;
use crate::{
    Error, Job, Repository, Result,
    backend::{File, Kind},
    format::{IndexFile, IndexPack},
    job::add,
};

/// When an index file is full.
const MOST_BLOBS: usize = 40_000;

/// When one is written though it is not full, so that little is lost with us.
const MOST_PACKS: usize = 128;

/// Collects what is in packs that are in the repository, and writes it down.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    repository: Repository,
    file: IndexFile,
    blobs: usize,
}

impl IndexWriter {
    pub(crate) fn new(repository: &Repository) -> Self {
        Self { repository: repository.clone(), file: IndexFile::default(), blobs: 0 }
    }

    /// Takes note of a pack that is in the repository.
    pub(crate) async fn add(&mut self, pack: IndexPack) -> Result<()> {
        self.repository.index().write().add_pack(&pack);
        self.blobs += pack.blobs.len();
        self.file.packs.push(pack);
        if self.blobs >= MOST_BLOBS || self.file.packs.len() >= MOST_PACKS {
            self.write().await?;
        }
        Ok(())
    }

    /// Writes what is noted.
    pub(crate) async fn write(&mut self) -> Result<()> {
        if self.file.packs.is_empty() {
            return Ok(());
        }
        let id = self.repository.save_document(Kind::Index, &self.file).await?;
        self.repository.index_written(id).await;
        self.file.packs.clear();
        self.blobs = 0;
        Ok(())
    }
}

/// Uploads packs until no more come. What arrived is written to an index also
/// if it ends badly: the next run need not upload it again.
pub(crate) async fn upload_all(
    repository: &Repository,
    packs: mpsc::Receiver<Pack>,
    job: &Job,
) -> Result<()> {
    let mut index = IndexWriter::new(repository);
    let outcome = upload(repository, packs, job, &mut index).await;
    let written = index.write().await;
    outcome.and(written)
}

async fn upload(
    repository: &Repository,
    packs: mpsc::Receiver<Pack>,
    job: &Job,
    index: &mut IndexWriter,
) -> Result<()> {
    let queue = stream::unfold(packs, async |mut packs| packs.recv().await.map(|p| (p, packs)));
    let uploads = queue
        .map(async |pack| {
            let noted = pack.to_index();
            let size = pack.content.len() as u64;
            let file = File::Named(Kind::Pack, pack.id);
            job.or_cancelled(repository.backend().write(file, pack.content)).await?;
            add(&job.counters().uploaded, size);
            Ok::<_, Error>(noted)
        })
        .buffer_unordered(repository.options().connections.max(1));
    let mut uploads = std::pin::pin!(uploads);
    while let Some(uploaded) = uploads.next().await {
        index.add(uploaded?).await?;
    }
    Ok(())
}
