//! Which chunks have to be read.

use std::ops::Range;

use crate::{
    Id, Repository, Result,
    format::BlobKind,
    volume::{Layout, StoredVolume},
};

/// Number of bytes that a thread reads at a time, if chunks are smaller.
const RUN: u64 = 1 << 20;

/// An earlier backup, and what changed since.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) volume: StoredVolume,
    pub(crate) changed: Vec<Range<u64>>,
}

/// Plan of a segment.
#[derive(Debug)]
pub(crate) enum Segment {
    /// Its tree is in the repository.
    Stored(Id),
    /// It is made of these chunks, as far as they are known.
    Chunks(Vec<Option<Id>>),
}

/// Ranges in order, without overlaps.
pub(crate) fn tidy(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut tidy: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match tidy.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => tidy.push(range),
        }
    }
    tidy
}

/// Returns whether any of the tidy ranges has to do with this part.
pub(crate) fn touches(ranges: &[Range<u64>], part: &Range<u64>) -> bool {
    let first = ranges.partition_point(|range| range.end <= part.start);
    ranges.get(first).is_some_and(|range| range.start < part.end)
}

/// Looks at one segment.
pub(crate) async fn plan_segment(
    repository: &Repository,
    layout: Layout,
    number: usize,
    base: Option<&Base>,
    allocated: Option<&[Range<u64>]>,
) -> Result<Segment> {
    let range = layout.segment(number);
    let base = base.filter(|base| number < base.volume.segments.len());
    if let Some(base) = base {
        let tree = base.volume.segments[number];
        let same = base.volume.layout.segment(number) == range
            && !touches(&base.changed, &range)
            && repository.index().read().has(BlobKind::Tree, &tree);
        if same {
            return Ok(Segment::Stored(tree));
        }
    }
    let before = match base {
        Some(base) => before(repository, base, number).await?,
        None => Vec::new(),
    };
    let index = repository.index().read();
    let chunk = |chunk: usize| {
        let part = layout.chunk(number, chunk);
        if let (Some(base), Some(id)) = (base, before.get(chunk)) {
            let same = base.volume.layout.chunk(number, chunk) == part
                && !touches(&base.changed, &part)
                && index.has(BlobKind::Data, id);
            if same {
                return Some(*id);
            }
        }
        let empty = allocated.is_some_and(|allocated| !touches(allocated, &part));
        empty.then(|| repository.zeros().of((part.end - part.start) as usize))
    };
    Ok(Segment::Chunks((0..layout.chunks(number)).map(chunk).collect()))
}

/// The chunks the segment had; none if they cannot be had any more, so that
/// all of it is read.
async fn before(repository: &Repository, base: &Base, number: usize) -> Result<Vec<Id>> {
    use crate::Error::{DamagedBlob, DamagedFile, MissingBlob, MissingFile};
    match base.volume.chunks(repository, number).await {
        Err(
            error @ (MissingBlob(_) | DamagedBlob { .. } | MissingFile(_) | DamagedFile { .. }),
        ) => {
            tracing::warn!(%error, segment = number, "a part of the parent is lost: reading it anew");
            Ok(Vec::new())
        }
        result => result,
    }
}

/// Runs of chunks that have to be read, each short enough for one read.
pub(crate) fn runs(chunks: &[Option<Id>], chunk: u32) -> Vec<Range<usize>> {
    let longest = (RUN / u64::from(chunk)).max(1) as usize;
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, _) in chunks.iter().enumerate().filter(|(_, id)| id.is_none()) {
        match runs.last_mut() {
            Some(run) if run.end == number && run.len() < longest => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_tidied() {
        let ranges = vec![30..40, 5..5, 0..10, 10..12, 35..36, 39..50];
        assert_eq!(tidy(ranges), vec![0..12, 30..50]);
    }

    #[test]
    fn a_range_touches_what_it_shares_a_byte_with() {
        let ranges = [10..20, 30..40];
        for (part, expected) in
            [(0..10, false), (0..11, true), (19..20, true), (20..30, false), (0..99, true)]
        {
            assert_eq!(touches(&ranges, &part), expected, "{part:?}");
        }
    }

    #[test]
    fn runs_stop_at_known_chunks_and_at_a_megabyte() {
        let known = Some(Id::of(b""));
        let mut chunks = vec![None; 40];
        chunks[3] = known;
        assert_eq!(runs(&chunks, 64 << 10), vec![0..3, 4..20, 20..36, 36..40]);
        assert_eq!(runs(&[None, None], 4 << 20), vec![0..1, 1..2]);
        assert!(runs(&[known], 4096).is_empty());
    }
}
