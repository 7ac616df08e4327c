//! Plan of what stays, what is copied, what goes. Nothing is touched here.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{PruneOptions, PruneSummary, missing};
use crate::{
    Id, Result,
    backend::Listed,
    format::{BlobKind, IndexBlob, IndexFile, IndexPack},
    index::IdSet,
};

/// A pack of which some blobs are needed.
#[derive(Debug)]
pub(super) struct Partly {
    pub(super) pack: Id,
    /// All there is in it.
    blobs: Vec<IndexBlob>,
    /// Blobs of it that are needed.
    pub(super) needed: Vec<IndexBlob>,
    unused: u64,
}

/// Plan of a prune.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) keep: Vec<IndexPack>,
    pub(super) repack: Vec<Partly>,
    /// Marked, to go later.
    pub(super) doomed: Vec<IndexPack>,
    /// Packs that go, and their sizes.
    pub(super) remove: BTreeMap<Id, u64>,
    /// Those of them that were marked before, and are in no snapshot and no list of packs.
    pub(super) expired: Vec<Id>,
    /// Number of packs that were to be copied and stay, for there was no room.
    not_copied: usize,
    unused_bytes: u64,
    /// True if the indexes are not as they should be.
    changed: bool,
}

/// A pack in a repository, as far as it is known.
struct Candidate {
    blobs: Vec<IndexBlob>,
    /// Since when it is marked.
    doomed: Option<Timestamp>,
}

impl Plan {
    pub(super) fn make(
        files: Vec<(Id, IndexFile)>,
        listed: &[Listed],
        data: IdSet,
        trees: IdSet,
        options: &PruneOptions,
        now: Timestamp,
    ) -> Result<Self> {
        let mut plan = Self::default();
        let sizes: BTreeMap<Id, u64> = listed.iter().map(|file| (file.id, file.size)).collect();
        let mut candidates = candidates(files, &sizes, now, &mut plan.changed);
        let mut needed = Needed { data, trees };
        let mut partly = Vec::new();
        let mut unneeded = Vec::new();
        for (pack, candidate) in order(&mut candidates, &needed) {
            let blobs = &candidate.blobs;
            let mine: Vec<IndexBlob> =
                blobs.iter().copied().filter(|blob| needed.take(blob)).collect();
            if mine.is_empty() {
                unneeded.push((pack, candidate));
            } else {
                plan.changed |= candidate.doomed.is_some();
                let unused = length(blobs) - length(&mine);
                partly.push(Partly { pack, blobs: candidate.blobs, needed: mine, unused });
            }
        }
        needed.check()?;
        plan.divide(partly, options.max_unused_percent);
        let gone = plan.repack.iter().map(|partly| (partly.pack, partly.blobs.clone(), None));
        let unneeded = unneeded.into_iter().map(|(id, pack)| (id, pack.blobs, pack.doomed));
        let going: Vec<_> = unneeded.chain(gone).collect();
        plan.doom(going, &sizes, options, now);
        plan.orphans(&sizes, options, now);
        Ok(plan)
    }

    /// Copies packs, the emptiest first, until little enough is wasted.
    fn divide(&mut self, mut partly: Vec<Partly>, max_unused_percent: u8) {
        partly
            .sort_by_key(|pack| std::cmp::Reverse(pack.unused * 1000 / length(&pack.blobs).max(1)));
        let total: u64 = partly.iter().map(|pack| length(&pack.blobs)).sum();
        let mut unused: u64 = partly.iter().map(|pack| pack.unused).sum();
        let allowed = total / 100 * u64::from(max_unused_percent);
        for pack in partly {
            if unused > allowed && pack.unused > 0 {
                unused -= pack.unused;
                self.repack.push(pack);
            } else {
                self.keep.push(IndexPack { id: pack.pack, blobs: pack.blobs, time: None });
            }
        }
        self.unused_bytes = unused;
    }

    /// Marks what is not needed, or removes it if it was marked long enough.
    fn doom(
        &mut self,
        going: Vec<(Id, Vec<IndexBlob>, Option<Timestamp>)>,
        sizes: &BTreeMap<Id, u64>,
        options: &PruneOptions,
        now: Timestamp,
    ) {
        for (id, blobs, since) in going {
            let ripe = is_ripe(since.unwrap_or(now), options, now);
            self.changed |= ripe || since.is_none();
            if ripe {
                self.remove.insert(id, sizes.get(&id).copied().unwrap_or(0));
                self.expired.extend(since.map(|_| id));
            } else {
                let time = Some(since.unwrap_or(now).to_string());
                self.doomed.push(IndexPack { id, blobs, time });
            }
        }
    }

    /// Packs that no index knows: left behind by somebody who was killed.
    fn orphans(&mut self, sizes: &BTreeMap<Id, u64>, options: &PruneOptions, now: Timestamp) {
        let known: BTreeSet<Id> = self
            .keep
            .iter()
            .chain(&self.doomed)
            .map(|pack| pack.id)
            .chain(self.repack.iter().map(|partly| partly.pack))
            .chain(self.remove.keys().copied())
            .collect();
        let orphans: Vec<_> = sizes
            .keys()
            .filter(|id| !known.contains(id))
            .map(|id| (*id, Vec::new(), None))
            .collect();
        self.doom(orphans, sizes, options, now);
    }

    /// Leaves packs as they are that were to be copied.
    pub(super) fn copy_nothing(&mut self) {
        for partly in std::mem::take(&mut self.repack) {
            self.doomed.retain(|pack| pack.id != partly.pack);
            self.remove.remove(&partly.pack);
            self.not_copied += 1;
            self.unused_bytes += partly.unused;
            self.keep.push(IndexPack { id: partly.pack, blobs: partly.blobs, time: None });
        }
    }

    pub(super) fn is_nothing(&self, index_files: usize) -> bool {
        // Many small index files are worth being made one.
        let blobs: usize = self.keep.iter().map(|pack| pack.blobs.len()).sum();
        let scattered = index_files > 8 && index_files > 4 * (blobs / super::INDEX_BLOBS + 1);
        !self.changed && !scattered && self.repack.is_empty()
    }

    pub(super) fn summary(&self) -> PruneSummary {
        PruneSummary {
            kept: self.keep.len(),
            repacked: self.repack.len(),
            not_copied: self.not_copied,
            marked: self.doomed.len(),
            removed: self.remove.len(),
            removed_bytes: self.remove.values().sum(),
            unused_bytes: self.unused_bytes,
        }
    }
}

fn is_ripe(since: Timestamp, options: &PruneOptions, now: Timestamp) -> bool {
    let grace = SignedDuration::try_from(options.grace).unwrap_or(SignedDuration::MAX);
    now.duration_since(since) >= grace
}

fn length(blobs: &[IndexBlob]) -> u64 {
    blobs.iter().map(|blob| u64::from(blob.length)).sum()
}

/// All packs that are in an index and in the repository. A pack that is
/// marked in one index and not in another is not marked.
fn candidates(
    files: Vec<(Id, IndexFile)>,
    sizes: &BTreeMap<Id, u64>,
    now: Timestamp,
    changed: &mut bool,
) -> BTreeMap<Id, Candidate> {
    let mut candidates: BTreeMap<Id, Candidate> = BTreeMap::new();
    for (_, file) in files {
        let live = file.packs.into_iter().map(|pack| (pack, false));
        let doomed = file.packs_to_delete.into_iter().map(|pack| (pack, true));
        for (pack, is_doomed) in live.chain(doomed) {
            if !sizes.contains_key(&pack.id) {
                *changed = true;
                continue;
            }
            let since = pack.time.as_deref().and_then(|time| time.parse().ok()).unwrap_or(now);
            let doomed = is_doomed.then_some(since);
            candidates
                .entry(pack.id)
                .and_modify(|known| {
                    if doomed.is_none() {
                        known.doomed = None;
                    }
                    if known.blobs.is_empty() {
                        known.blobs.clone_from(&pack.blobs);
                    }
                })
                .or_insert(Candidate { blobs: pack.blobs.clone(), doomed });
        }
    }
    candidates
}

/// In which order packs may say what is needed of them: a blob that is in
/// several is best kept where most else is needed, and rather not where it
/// is marked.
fn order(candidates: &mut BTreeMap<Id, Candidate>, needed: &Needed) -> Vec<(Id, Candidate)> {
    let mut packs: Vec<(Id, Candidate)> = std::mem::take(candidates).into_iter().collect();
    packs.sort_by_cached_key(|(id, pack)| {
        let used: Vec<IndexBlob> =
            pack.blobs.iter().copied().filter(|blob| needed.has(blob)).collect();
        let wasted = length(&pack.blobs) - length(&used);
        (pack.doomed.is_some(), wasted, *id)
    });
    packs
}

/// Blobs that nobody has claimed yet.
struct Needed {
    data: IdSet,
    trees: IdSet,
}

impl Needed {
    fn set(&self, blob: &IndexBlob) -> &IdSet {
        if blob.kind == BlobKind::Data { &self.data } else { &self.trees }
    }

    fn has(&self, blob: &IndexBlob) -> bool {
        self.set(blob).contains(&blob.id)
    }

    fn take(&mut self, blob: &IndexBlob) -> bool {
        let set = if blob.kind == BlobKind::Data { &mut self.data } else { &mut self.trees };
        set.remove(&blob.id)
    }

    fn check(&self) -> Result<()> {
        match self.data.iter().chain(&self.trees).next() {
            Some(id) => Err(missing(*id)),
            None => Ok(()),
        }
    }
}
