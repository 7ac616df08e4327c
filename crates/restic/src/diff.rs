//! Differences between two backups of a volume.

use std::ops::Range;

use crate::{Error, Repository, Result, Snapshot, volume::StoredVolume};

impl Repository {
    /// Returns the parts of a volume in which two of its backups differ, in whole
    /// chunks and in order. Nothing of the content is fetched.
    pub async fn diff(&self, older: &Snapshot, newer: &Snapshot) -> Result<Vec<Range<u64>>> {
        self.load_index().await?;
        let (before, after) = (self.volume_in(older).await?, self.volume_in(newer).await?);
        if before.layout.chunk != after.layout.chunk {
            let reason = format!(
                "{} and {} are cut into chunks of different sizes and cannot be compared",
                older.id.short(),
                newer.id.short()
            );
            return Err(Error::Invalid { field: "older", reason });
        }
        let mut changed = Vec::new();
        for number in 0..before.segments.len().max(after.segments.len()) {
            self.diff_segment(&before, &after, number, &mut changed).await?;
        }
        Ok(changed)
    }

    async fn volume_in(&self, snapshot: &Snapshot) -> Result<StoredVolume> {
        let stored = StoredVolume::load(self, snapshot).await?;
        stored.ok_or_else(|| Error::NotAVolume {
            snapshot: snapshot.id.to_string(),
            reason: "it was not made of a volume".to_owned(),
        })
    }

    async fn diff_segment(
        &self,
        before: &StoredVolume,
        after: &StoredVolume,
        number: usize,
        changed: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        if before.segments.get(number) == after.segments.get(number) {
            return Ok(());
        }
        let (old, new) =
            (self.chunks_of(before, number).await?, self.chunks_of(after, number).await?);
        let larger = if new.len() >= old.len() { after.layout } else { before.layout };
        for chunk in 0..old.len().max(new.len()) {
            if old.get(chunk) != new.get(chunk) {
                push(changed, larger.chunk(number, chunk));
            }
        }
        Ok(())
    }

    async fn chunks_of(&self, volume: &StoredVolume, number: usize) -> Result<Vec<crate::Id>> {
        if number < volume.segments.len() {
            volume.chunks(self, number).await
        } else {
            Ok(Vec::new())
        }
    }
}

/// Two parts that touch become one.
fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
