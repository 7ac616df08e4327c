//! The header of a qcow2 image, read before any tool sees the file.
//!
//! An image may name other files: one that it builds on, or one that holds its
//! data. Tools of QEMU follow such a name on this machine, with our rights. So
//! they get an image only if its header names none.

use std::{fs::File, io::Read, path::Path};

const MAGIC: [u8; 4] = *b"QFI\xfb";
const HEADER_2: usize = 72;
const HEADER_3: usize = 104;
/// The first cluster of the smallest kind has the header and its extensions.
const MAX_HEADER: usize = 64 << 10;
/// Bits of features that change where data is: a file outside, and extended
/// L2 entries are read by QEMU alone.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Bits that we know: dirty, corrupt, external data, compression type,
/// extended L2 entries.
const KNOWN_FEATURES: u64 = 0b1_1111;
const CORRUPT: u64 = 1 << 1;
/// Kinds of header extensions that name a file.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
const DATA_FILE: u32 = 0x4441_5441;
const END: u32 = 0;
/// No disk of a machine is larger.
const MAX_SIZE: u64 = 1 << 46;

/// Returns the size of the disk in an image that needs no other file; the
/// reason otherwise.
pub(super) fn check(path: &Path) -> std::io::Result<Result<u64, &'static str>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_HEADER as u64).read_to_end(&mut bytes)?;
    Ok(read(&bytes))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

fn read(bytes: &[u8]) -> Result<u64, &'static str> {
    const NONE: &str = "the image is no qcow2";
    if !bytes.starts_with(&MAGIC) {
        return Err(NONE);
    }
    let version = number(bytes, 4).ok_or(NONE)?;
    let backing = (long(bytes, 8).ok_or(NONE)?, number(bytes, 16).ok_or(NONE)?);
    if backing != (0, 0) {
        return Err("the image builds on a file outside of it");
    }
    if number(bytes, 32).ok_or(NONE)? != 0 {
        return Err("the image is encrypted");
    }
    let extensions = match version {
        2 => HEADER_2,
        3 => check_features(bytes).ok_or(NONE)??,
        _ => return Err("the image is of a version of qcow2 that is not known"),
    };
    check_extensions(bytes, extensions)?;
    match long(bytes, 24).ok_or(NONE)? {
        0 => Err("the image is of an empty disk"),
        size if size > MAX_SIZE => Err("the image is of a disk that is too large"),
        size => Ok(size),
    }
}

/// Returns where the extensions of a header begin.
fn check_features(bytes: &[u8]) -> Option<Result<usize, &'static str>> {
    let features = long(bytes, 72)?;
    let length = usize::try_from(number(bytes, 100)?).ok()?;
    if features & EXTERNAL_DATA != 0 {
        return Some(Err("the image builds on a file outside of it"));
    }
    if features & !KNOWN_FEATURES != 0 {
        return Some(Err("the image has features that are not known"));
    }
    if features & CORRUPT != 0 {
        return Some(Err("the image is marked as corrupt"));
    }
    (length >= HEADER_3 && length.is_multiple_of(8)).then_some(Ok(length))
}

fn check_extensions(bytes: &[u8], mut at: usize) -> Result<(), &'static str> {
    loop {
        // A header that fills its cluster has no end.
        let (Some(kind), Some(length)) = (number(bytes, at), number(bytes, at + 4)) else {
            return Ok(());
        };
        match kind {
            END => return Ok(()),
            BACKING_FORMAT | DATA_FILE => return Err("the image builds on a file outside of it"),
            _ => at = at.saturating_add(8 + (length as usize).next_multiple_of(8)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn header(version: u32) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&version.to_be_bytes());
        bytes[20..24].copy_from_slice(&16u32.to_be_bytes());
        bytes[24..32].copy_from_slice(&(1u64 << 30).to_be_bytes());
        bytes[100..104].copy_from_slice(&104u32.to_be_bytes());
        bytes
    }

    fn with(version: u32, changes: &[(usize, &[u8])]) -> Result<u64, &'static str> {
        let mut bytes = header(version);
        for (at, change) in changes {
            bytes[*at..at + change.len()].copy_from_slice(change);
        }
        read(&bytes)
    }

    #[test]
    fn an_image_that_is_whole_has_its_size() {
        assert_eq!(with(2, &[]), Ok(1 << 30));
        assert_eq!(with(3, &[]), Ok(1 << 30));
        // Names of features and of nothing else follow.
        let names = [&0x6803_f857u32.to_be_bytes()[..], &5u32.to_be_bytes(), b"abcde"].concat();
        assert_eq!(with(3, &[(104, &names)]), Ok(1 << 30));
    }

    #[test]
    fn an_image_that_names_a_file_is_refused_wherever_it_does() {
        let outside = Err("the image builds on a file outside of it");
        for version in [2, 3] {
            assert_eq!(
                with(version, &[(8, &200u64.to_be_bytes()), (16, &11u32.to_be_bytes())]),
                outside
            );
            assert_eq!(with(version, &[(8, &200u64.to_be_bytes())]), outside);
            let start = if version == 2 { HEADER_2 } else { HEADER_3 };
            for kind in [BACKING_FORMAT, DATA_FILE] {
                let extension = [&kind.to_be_bytes()[..], &4u32.to_be_bytes(), b"abcd"].concat();
                assert_eq!(with(version, &[(start, &extension)]), outside);
                let other =
                    [&1u32.to_be_bytes()[..], &3u32.to_be_bytes(), b"abc\0\0\0\0\0"].concat();
                let hidden = [other, extension].concat();
                assert_eq!(with(version, &[(start, &hidden)]), outside);
            }
        }
        assert_eq!(with(3, &[(72, &EXTERNAL_DATA.to_be_bytes())]), outside);
    }

    #[test]
    fn what_is_strange_is_refused_and_never_panics() {
        assert!(with(4, &[]).is_err());
        assert!(with(3, &[(72, &(1u64 << 40).to_be_bytes())]).is_err());
        assert!(with(3, &[(72, &CORRUPT.to_be_bytes())]).is_err());
        assert!(with(3, &[(32, &1u32.to_be_bytes())]).is_err());
        assert!(with(3, &[(24, &0u64.to_be_bytes())]).is_err());
        assert!(with(3, &[(24, &u64::MAX.to_be_bytes())]).is_err());
        assert!(with(3, &[(100, &4u32.to_be_bytes())]).is_err());
        assert!(read(b"raw disk").is_err());
        let endless = [&1u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
        assert!(with(3, &[(104, &endless)]).is_ok());
        let whole = header(3);
        for length in 0..whole.len() {
            let _ = read(&whole[..length]);
        }
    }
}
