//! Differences of two images that share blocks, told by where their blocks lie.
//!
//! On a file system that writes shared blocks to a new place, a block that two images
//! have at the same offset was never written to since one became a copy of the other:
//! each keeps it from being used for anything else, and neither is written to. So it
//! holds the same for both, without being read. Whatever is not certain by this counts
//! as different: a block too many is read, none too few.

use std::{fs::File, os::unix::fs::MetadataExt, path::Path};

use selvage_memory::{Extent, extents};

use crate::{
    Error, Result,
    backend::{Ranges, push_range},
};

/// Numbers by which file systems are known that write shared blocks to a new place and
/// tell where blocks lie.
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

/// Returns where two images of one size may differ that nobody writes to; none where
/// the file system does not let us know.
pub(super) fn changed(older: &Path, newer: &Path, size: u64) -> Result<Option<Ranges>> {
    let open = |path: &Path| File::open(path).map_err(Error::file(path));
    let (old, new) = (open(older)?, open(newer)?);
    let on = |file: &File, path: &Path| file.metadata().map_err(Error::file(path));
    let (about_old, about_new) = (on(&old, older)?, on(&new, newer)?);
    let same_disk = about_old.dev() == about_new.dev();
    if !same_disk || about_old.len() != size || about_new.len() != size || !is_known(&old) {
        return Ok(None);
    }
    let map = |file: &File, path: &Path| extents(file).map_err(Error::file(path));
    let before = map(&old, older)?;
    let after = map(&new, newer)?;
    // A block that moved meanwhile may be somewhere else now and another in its place.
    if map(&old, older)? != before {
        return Ok(None);
    }
    Ok(Some(differences(&before, &after, size)))
}

fn is_known(file: &File) -> bool {
    let about = rustix::fs::fstatfs(file);
    about.is_ok_and(|about| [XFS, BTRFS].contains(&(about.f_type as u64)))
}

/// Bytes of an image that no other has.
pub(super) fn alone(path: &Path) -> Option<u64> {
    let found = extents(&File::open(path).ok()?).ok()?;
    Some(found.iter().filter(|extent| !extent.is_shared()).map(|extent| extent.length).sum())
}

/// Returns where two maps do not say that bytes are the same.
fn differences(before: &[Extent], after: &[Extent], size: u64) -> Ranges {
    let mut found = Ranges::new();
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    let mut at = 0;
    while at < size {
        while old.next_if(|extent| extent.end() <= at).is_some() {}
        while new.next_if(|extent| extent.end() <= at).is_some() {}
        let (one, other) = (Piece::at(old.peek(), at), Piece::at(new.peek(), at));
        let end = one.end.min(other.end).min(size);
        if !one.is_same(&other) {
            push_range(&mut found, at..end);
        }
        at = end;
    }
    found
}

/// Content of an image from an offset on.
struct Piece {
    content: Content,
    end: u64,
}

#[derive(PartialEq)]
enum Content {
    Zeros,
    /// Lies there on the disk.
    At(u64),
    Unknown,
}

impl Piece {
    /// The piece at an offset, of the first extent that ends behind it.
    fn at(extent: Option<&&Extent>, at: u64) -> Self {
        match extent {
            None => Self { content: Content::Zeros, end: u64::MAX },
            Some(extent) if extent.logical > at => {
                Self { content: Content::Zeros, end: extent.logical }
            }
            Some(extent) => {
                let content = match () {
                    () if !extent.is_plain() => Content::Unknown,
                    () if extent.is_unwritten() => Content::Zeros,
                    () => Content::At(extent.physical + (at - extent.logical)),
                };
                Self { content, end: extent.end() }
            }
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.content != Content::Unknown && self.content == other.content
    }
}
