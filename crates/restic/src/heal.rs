//! Storing of what was lost in a bad pack anew, from the pack itself as far as
//! it can be read, and from the volume that lives on.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    BlockSource, Id, Job, Repository, Result, VerifyReport,
    backend::{File, Kind},
    backup::{IndexWriter, Pack, Packers, find_allocated, store_volume},
    format::IndexBlob,
    job::Phase,
    lock::Lock,
    volume::{Layout, chunk_for},
    walk,
};

/// Result of healing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealSummary {
    /// Number of bad packs that were taken out.
    pub packs: usize,
    /// Number of blobs in them.
    pub blobs: usize,
    /// Number of these that could still be read there.
    pub salvaged: usize,
    /// Blobs that are lost still. Not all of them may be needed: verify again.
    pub lost: Vec<Id>,
}

impl Repository {
    /// Takes the bad packs of a report out of the repository and brings back
    /// what was in them: what can still be read in them is copied, the rest
    /// is looked for in the volume as it is now. `volume` and `chunk` are
    /// those of the backups that are to be healed; without a chunk, the one
    /// that goes with the volume's size.
    pub async fn heal(
        &self,
        report: &VerifyReport,
        source: Arc<dyn BlockSource>,
        volume: &str,
        chunk: Option<u32>,
        job: &Job,
    ) -> Result<HealSummary> {
        let bad = report.bad_packs();
        if bad.is_empty() {
            return Ok(HealSummary::default());
        }
        job.enter(Phase::Opening);
        let lock = Lock::take(self, true, job).await?;
        let outcome = Box::pin(self.heal_locked(&bad, source, volume, chunk, job)).await;
        if outcome.is_ok() {
            job.enter(Phase::Done);
        }
        lock.finish(outcome).await
    }

    async fn heal_locked(
        &self,
        bad: &BTreeSet<Id>,
        source: Arc<dyn BlockSource>,
        volume: &str,
        chunk: Option<u32>,
        job: &Job,
    ) -> Result<HealSummary> {
        let chunk = chunk.unwrap_or_else(|| chunk_for(source.size()));
        let layout = Layout::new(source.size(), chunk)?;
        let lost = self.take_out(bad).await?;
        let mut summary =
            HealSummary { packs: bad.len(), blobs: lost.len(), ..HealSummary::default() };
        summary.salvaged = job.or_cancelled(self.salvage(&lost)).await?;
        job.enter(Phase::Copying);
        // What is in the index is passed over, so only what was lost is
        // stored; and what changed since, which the next backup is glad of.
        let allocated = find_allocated(&source);
        store_volume(self, source, allocated, layout, volume, None, job).await?;
        job.enter(Phase::Finishing);
        for pack in bad {
            self.backend().remove(File::Named(Kind::Pack, *pack)).await?;
        }
        let index = self.index().read();
        let gone = lost.iter().filter(|(_, blob)| !index.has(blob.kind, &blob.id));
        summary.lost = gone.map(|(_, blob)| blob.id).collect();
        Ok(summary)
    }

    /// Makes the indexes forget the bad packs, and says what was in them.
    async fn take_out(&self, bad: &BTreeSet<Id>) -> Result<Vec<(Id, IndexBlob)>> {
        let mut lost = Vec::new();
        let mut seen = BTreeSet::new();
        for (id, mut file) in walk::index_files(self).await? {
            if !file.packs.iter().any(|pack| bad.contains(&pack.id)) {
                continue;
            }
            for pack in file.packs.extract_if(.., |pack| bad.contains(&pack.id)) {
                if seen.insert(pack.id) {
                    lost.extend(pack.blobs.into_iter().map(|blob| (pack.id, blob)));
                }
            }
            if !file.packs.is_empty() || !file.packs_to_delete.is_empty() {
                self.save_document(Kind::Index, &file).await?;
            }
            self.backend().remove(File::Named(Kind::Index, id)).await?;
        }
        self.reload_index().await?;
        Ok(lost)
    }

    /// Copies what can still be read of the bad packs.
    async fn salvage(&self, lost: &[(Id, IndexBlob)]) -> Result<usize> {
        let packers = Packers::new(self.options());
        let mut index = IndexWriter::new(self);
        let mut salvaged = 0;
        for (pack, blob) in lost {
            if self.index().read().has(blob.kind, &blob.id) {
                continue;
            }
            let Some(sealed) = self.read_salvage(*pack, blob).await else { continue };
            let (kind, length) = (blob.kind, blob.uncompressed_length);
            salvaged += 1;
            if let Some(full) = packers.add(self.key(), kind, blob.id, &sealed, length) {
                self.store_pack(full, &mut index).await?;
            }
        }
        for pack in packers.flush(self.key()) {
            self.store_pack(pack, &mut index).await?;
        }
        index.write().await?;
        Ok(salvaged)
    }

    async fn read_salvage(&self, pack: Id, blob: &IndexBlob) -> Option<bytes::Bytes> {
        let file = File::Named(Kind::Pack, pack);
        let (offset, length) = (blob.offset.into(), blob.length.into());
        let sealed = self.backend().read_range(file, offset, length).await.ok()?;
        self.open_blob(&(*blob).into(), &sealed).ok().map(|_| sealed)
    }

    async fn store_pack(&self, pack: Pack, index: &mut IndexWriter) -> Result<()> {
        let noted = pack.to_index();
        self.backend().write(File::Named(Kind::Pack, pack.id), pack.content).await?;
        index.add(noted).await
    }
}
