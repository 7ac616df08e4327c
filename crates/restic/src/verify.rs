//! Is everything there, and as it was?

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, stream};

use crate::{
    Error, Id, Job, Repository, Result,
    backend::{File, Kind},
    crypto::OVERHEAD,
    format::{BlobKind, IndexBlob, PackedBlob},
    job::{Phase, add},
    lock::Lock,
    repository::internal,
    walk,
};

/// Options of a verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyOptions {
    /// Percentage of packs to fetch and to check byte by byte; which
    /// ones is left to chance. 0 checks only that they are there.
    pub read_percent: u8,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// A pack is in an index and not in the repository.
    MissingPack(Id),
    /// A pack does not hold what it should.
    DamagedPack {
        /// Which.
        pack: Id,
        /// In what way.
        reason: String,
    },
    /// A snapshot needs a blob that cannot be had.
    LostBlob {
        /// Which.
        blob: Id,
        /// Why not.
        reason: String,
    },
}

/// Result of a verify.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Damages that were found. None, if all is well.
    pub damages: Vec<Damage>,
    /// Number of snapshots that were looked at.
    pub snapshots: usize,
    /// Number of packs.
    pub packs: usize,
    /// Number of packs that were read.
    pub packs_read: usize,
}

impl VerifyReport {
    /// The packs that are missing or damaged.
    pub fn bad_packs(&self) -> BTreeSet<Id> {
        let pack = |damage: &Damage| match damage {
            Damage::MissingPack(pack) | Damage::DamagedPack { pack, .. } => Some(*pack),
            Damage::LostBlob { .. } => None,
        };
        self.damages.iter().filter_map(pack).collect()
    }
}

/// Packs and what the indexes say is in them.
pub(crate) type Table = BTreeMap<Id, Vec<IndexBlob>>;

impl Repository {
    /// Checks that every snapshot can be restored.
    pub async fn verify(&self, options: VerifyOptions, job: &Job) -> Result<VerifyReport> {
        job.enter(Phase::Opening);
        let lock = Lock::take(self, false, job).await?;
        let outcome = job.or_cancelled(Box::pin(self.verify_locked(options, job))).await;
        if outcome.is_ok() {
            job.enter(Phase::Done);
        }
        lock.finish(outcome).await
    }

    pub(crate) async fn verify_locked(
        &self,
        options: VerifyOptions,
        job: &Job,
    ) -> Result<VerifyReport> {
        self.reload_index().await?;
        let table = self.pack_table().await?;
        let mut report = VerifyReport { packs: table.len(), ..VerifyReport::default() };
        self.check_sizes(&table, &mut report).await?;
        job.enter(Phase::Copying);
        let snapshots = self.snapshots().await?;
        report.snapshots = snapshots.len();
        let used = walk::walk(self, &snapshots, job).await?;
        for (blob, error) in &used.lost {
            report.damages.push(Damage::LostBlob { blob: *blob, reason: error.to_string() });
        }
        for blob in &used.data {
            if !self.index().read().has(BlobKind::Data, blob) {
                let reason = "it is in no index".to_owned();
                report.damages.push(Damage::LostBlob { blob: *blob, reason });
            }
        }
        let bad = report.bad_packs();
        let chosen: Table = table
            .into_iter()
            .filter(|(pack, _)| !bad.contains(pack))
            .filter(|_| rand::random_range(0..100) < options.read_percent)
            .collect();
        self.read_packs(chosen, &mut report, job).await?;
        Ok(report)
    }

    pub(crate) async fn pack_table(&self) -> Result<Table> {
        let mut table = Table::new();
        for (_, file) in walk::index_files(self).await? {
            for pack in file.packs {
                table.entry(pack.id).or_insert(pack.blobs);
            }
        }
        Ok(table)
    }

    async fn check_sizes(&self, table: &Table, report: &mut VerifyReport) -> Result<()> {
        let listed = self.backend().list(Kind::Pack).await?;
        let sizes: BTreeMap<Id, u64> = listed.iter().map(|file| (file.id, file.size)).collect();
        for (pack, blobs) in table {
            match sizes.get(pack) {
                None => report.damages.push(Damage::MissingPack(*pack)),
                Some(size) if *size != expected_size(blobs) => {
                    let reason = format!("it has {size} bytes and not {}", expected_size(blobs));
                    report.damages.push(Damage::DamagedPack { pack: *pack, reason });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn read_packs(&self, table: Table, report: &mut VerifyReport, job: &Job) -> Result<()> {
        let total = table.values().map(|blobs| expected_size(blobs)).sum();
        job.counters().total.store(total, std::sync::atomic::Ordering::Relaxed);
        let mut checks = stream::iter(table)
            .map(async |(pack, blobs)| {
                let checked = self.check_pack(pack, &blobs).await;
                add(&job.counters().done, expected_size(&blobs));
                (pack, checked)
            })
            .buffer_unordered(self.options().connections.max(1));
        while let Some((pack, checked)) = checks.next().await {
            job.check()?;
            report.packs_read += 1;
            match checked {
                Ok(()) => {}
                Err(error) if error.code() == selvage_api::Code::DataLoss => {
                    let reason = error.to_string();
                    report.damages.push(Damage::DamagedPack { pack, reason });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fetches a pack and looks at every byte of it.
    async fn check_pack(&self, pack: Id, blobs: &[IndexBlob]) -> Result<()> {
        let file = File::Named(Kind::Pack, pack);
        let content = self.fetch_named(Kind::Pack, pack).await?;
        let header = self.read_header(pack, content.len() as u64).await?;
        let same = header.len() == blobs.len()
            && header.iter().all(|blob| blobs.contains(&IndexBlob::from(*blob)));
        if !same {
            return Err(Error::damaged(file, "its header differs from the index"));
        }
        let repository = self.clone();
        let checking =
            tokio::task::spawn_blocking(move || open_all(&repository, &header, &content));
        checking.await.map_err(internal)?
    }
}

fn open_all(repository: &Repository, blobs: &[PackedBlob], content: &Bytes) -> Result<()> {
    for blob in blobs {
        let start = blob.offset as usize;
        repository.open_blob(blob, &content[start..start + blob.length as usize])?;
    }
    Ok(())
}

/// Returns the size of a pack with these blobs.
pub(crate) fn expected_size(blobs: &[IndexBlob]) -> u64 {
    let content: u64 = blobs.iter().map(|blob| u64::from(blob.length)).sum();
    let entry = |blob: &IndexBlob| if blob.uncompressed_length.is_some() { 41 } else { 37 };
    let header: u64 = blobs.iter().map(entry).sum();
    content + header + OVERHEAD as u64 + 4
}
