//! Which blocks of a thin volume are mapped, and which differ between two.
//!
//! The pool shows a frozen view of its metadata on request; the tools of the
//! device mapper read it.

use std::ops::Range;

use super::command::Runner;
use crate::{
    Error, Result,
    backend::{Ranges, push_range},
};

const SECTOR: u64 = 512;

/// A frozen view of a pool's metadata, let go when dropped.
pub(super) struct View<'a> {
    runner: &'a Runner,
    pool: String,
    metadata: String,
}

/// A name as the mapper writes it: its own dashes are doubled.
fn mapped(name: &str) -> String {
    name.replace('-', "--")
}

/// Returns the mapper's name of a pool.
pub(super) fn mapped_pool(group: &str, pool: &str) -> String {
    format!("{}-{}", mapped(group), mapped(pool))
}

impl<'a> View<'a> {
    pub(super) fn open(runner: &'a Runner, group: &str, pool: &str) -> Result<Self> {
        let stem = mapped_pool(group, pool);
        let this = Self {
            runner,
            pool: format!("{stem}-tpool"),
            metadata: format!("/dev/mapper/{stem}_tmeta"),
        };
        // One that a process before us left would be of another time.
        let _ = this.message("release_metadata_snap");
        this.message("reserve_metadata_snap")?;
        Ok(this)
    }

    fn message(&self, message: &str) -> Result<()> {
        self.runner.tool("dmsetup", &["message", &self.pool, "0", message]).map(|_| ())
    }

    /// The parts of a volume that are mapped.
    pub(super) fn mapped(&self, number: u64, size: u64) -> Result<Ranges> {
        let number = number.to_string();
        let arguments = ["--metadata-snap", "--dev-id", &number, &self.metadata];
        parse(&self.runner.tool("thin_dump", &arguments)?, size, mapped_element)
    }

    /// The parts that differ between two volumes.
    pub(super) fn changed(&self, before: u64, after: u64, size: u64) -> Result<Ranges> {
        let (before, after) = (before.to_string(), after.to_string());
        let arguments = ["--metadata-snap", "--snap1", &before, "--snap2", &after, &self.metadata];
        parse(&self.runner.tool("thin_delta", &arguments)?, size, changed_element)
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.message("release_metadata_snap") {
            tracing::warn!(pool = %self.pool, %error, "a view of metadata was not let go");
        }
    }
}

/// The attribute of an element on one line.
fn attribute(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"')?.0.parse().ok()
}

fn mapped_element(line: &str) -> Option<Range<u64>> {
    let (begin, length) = if line.starts_with("<single_mapping") {
        (attribute(line, "origin_block")?, 1)
    } else if line.starts_with("<range_mapping") {
        (attribute(line, "origin_begin")?, attribute(line, "length")?)
    } else {
        return None;
    };
    Some(begin..begin.checked_add(length)?)
}

fn changed_element(line: &str) -> Option<Range<u64>> {
    let differs = ["<different", "<left_only", "<right_only"];
    if !differs.iter().any(|element| line.starts_with(element)) {
        return None;
    }
    let begin = attribute(line, "begin")?;
    Some(begin..begin.checked_add(attribute(line, "length")?)?)
}

/// Block ranges of the elements, in bytes, cut to the size of the volume.
fn parse(xml: &str, size: u64, element: fn(&str) -> Option<Range<u64>>) -> Result<Ranges> {
    let mut block = None;
    let mut ranges = Ranges::new();
    for line in xml.lines().map(str::trim) {
        if line.starts_with("<superblock") {
            block = attribute(line, "data_block_size").map(|sectors| sectors * SECTOR);
        }
        if let (Some(block), Some(range)) = (block, element(line)) {
            let start = range.start.saturating_mul(block).min(size);
            push_range(&mut ranges, start..range.end.saturating_mul(block).min(size));
        }
    }
    match block {
        Some(_) => Ok(ranges),
        None => Err(Error::Refused("the map of a thin pool has no superblock".into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;

    const BLOCK: u64 = 65536;

    #[test]
    fn maps_are_read() {
        let xml = "<superblock uuid=\"\" data_block_size=\"128\" nr_data_blocks=\"3200\">\n  <device dev_id=\"1\">\n    <range_mapping origin_begin=\"0\" data_begin=\"0\" length=\"16\" time=\"0\"/>\n    <single_mapping origin_block=\"16\" data_block=\"99\" time=\"0\"/>\n    <single_mapping origin_block=\"40\" data_block=\"17\" time=\"0\"/>\n  </device>\n</superblock>";
        let ranges = parse(xml, 1 << 30, mapped_element).unwrap();
        assert_eq!(ranges, [0..17 * BLOCK, 40 * BLOCK..41 * BLOCK]);
    }

    #[test]
    fn differences_are_read_and_cut_to_the_volume() {
        let xml = "<superblock uuid=\"\" data_block_size=\"128\">\n  <diff left=\"1\" right=\"2\">\n    <same begin=\"0\" length=\"10\"/>\n    <different begin=\"10\" length=\"2\"/>\n    <right_only begin=\"12\" length=\"1\"/>\n    <left_only begin=\"15\" length=\"9\"/>\n  </diff>\n</superblock>";
        let ranges = parse(xml, 16 * BLOCK, changed_element).unwrap();
        assert_eq!(ranges, [10 * BLOCK..13 * BLOCK, 15 * BLOCK..16 * BLOCK]);
        parse("nothing", 1, changed_element).unwrap_err();
    }
}
