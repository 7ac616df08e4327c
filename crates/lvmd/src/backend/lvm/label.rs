//! Reads the metadata of a volume group from the head of a physical volume,
//! without running anything.
//!
//! A label in one of the first four sectors leads to the volume's header,
//! that to metadata areas, and the head of an area to the committed text in
//! it, which may wrap round the area's end.

use std::{fs::File, io, os::unix::fs::FileExt};

const SECTOR: usize = 512;
const LABEL_SECTORS: usize = 4;
const LABEL: &[u8] = b"LABELONE";
const LABEL_TYPE: &[u8] = b"LVM2 001";
const AREA_MAGIC: &[u8] = b" LVM2 x[5A%r0N*>";
/// The head of an area; its text begins behind it.
const AREA_HEAD: usize = 512;
const IGNORED: u32 = 1;
/// Larger texts are taken for damage.
const LARGEST_TEXT: u64 = 256 << 20;
/// Start value of LVM's checksums.
const CHECKSUM_START: u32 = 0xf597_a6cf;

/// The head of a physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Its id, without dashes.
    pub(super) id: String,
    /// Offsets and lengths of its metadata areas.
    pub(super) areas: Vec<(u64, u64)>,
}

/// Position of the committed text of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TextLocation {
    area: u64,
    area_size: u64,
    offset: u64,
    size: u64,
    checksum: u32,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let found = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    found.map(u32::from_le_bytes).ok_or_else(|| wrong("a header is cut off"))
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let found = bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok());
    found.map(u64::from_le_bytes).ok_or_else(|| wrong("a header is cut off"))
}

/// The head of a device, if it is a physical volume.
pub(super) fn head(device: &File) -> io::Result<Option<Head>> {
    let mut start = [0; SECTOR * LABEL_SECTORS];
    device.read_exact_at(&mut start, 0)?;
    for sector in start.chunks(SECTOR) {
        if sector.starts_with(LABEL) && sector.get(24..32) == Some(LABEL_TYPE) {
            return parse_head(sector).map(Some);
        }
    }
    Ok(None)
}

fn parse_head(sector: &[u8]) -> io::Result<Head> {
    let header = u32_at(sector, 20)? as usize;
    let id = sector.get(header..header + 32).ok_or_else(|| wrong("a header is cut off"))?;
    let id = String::from_utf8(id.to_vec()).map_err(|_| wrong("an id is not text"))?;
    let mut at = header + 40;
    let mut lists = Vec::new();
    // Data areas come first, then those of metadata; a zero ends each list.
    for _ in 0..2 {
        let mut list = Vec::new();
        loop {
            let area = (u64_at(sector, at)?, u64_at(sector, at + 8)?);
            at += 16;
            if area.0 == 0 {
                break;
            }
            list.push(area);
        }
        lists.push(list);
    }
    Ok(Head { id, areas: lists.pop().unwrap_or_default() })
}

/// Returns the position of the text of an area; none if the area holds none.
pub(super) fn locate_text(device: &File, area: (u64, u64)) -> io::Result<Option<TextLocation>> {
    let mut head = [0; AREA_HEAD];
    device.read_exact_at(&mut head, area.0)?;
    if head.get(4..20) != Some(AREA_MAGIC) {
        return Err(wrong("a metadata area has no head"));
    }
    if checksum(&head[4..]) != u32_at(&head, 0)? {
        return Err(wrong("the head of a metadata area is damaged"));
    }
    let (offset, size) = (u64_at(&head, 40)?, u64_at(&head, 48)?);
    let (sum, flags) = (u32_at(&head, 56)?, u32_at(&head, 60)?);
    if offset == 0 || size == 0 || flags & IGNORED != 0 {
        return Ok(None);
    }
    if size > LARGEST_TEXT || size > area.1 || offset > area.1 {
        return Err(wrong("a metadata area holds more than fits into it"));
    }
    // A tenant's disk can say what it likes of itself.
    if area.0.checked_add(area.1).is_none() {
        return Err(wrong("a metadata area has no end"));
    }
    Ok(Some(TextLocation { area: area.0, area_size: area.1, offset, size, checksum: sum }))
}

/// The text at a location.
pub(super) fn text(device: &File, location: &TextLocation) -> io::Result<String> {
    let mut bytes = vec![0; location.size as usize];
    let until_end = (location.area_size - location.offset).min(location.size) as usize;
    let (first, wrapped) = bytes.split_at_mut(until_end);
    device.read_exact_at(first, location.area + location.offset)?;
    if !wrapped.is_empty() {
        device.read_exact_at(wrapped, location.area + AREA_HEAD as u64)?;
    }
    if checksum(&bytes) != location.checksum {
        return Err(wrong("metadata is damaged, or was being written"));
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| wrong("metadata is not text"))
}

/// LVM's checksum: the usual polynomial, another start, no inversion.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(CHECKSUM_START, |sum, byte| {
        (sum >> 8) ^ CHECKSUMS[((sum ^ u32::from(*byte)) & 0xff) as usize]
    })
}

/// The checksum's step for every byte.
const CHECKSUMS: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        steps[byte] = sum;
        byte += 1;
    }
    steps
};

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::io::Write;

    use super::*;

    const AREA: (u64, u64) = (4096, 8192);

    /// A physical volume whose text begins so far into its area.
    pub(crate) fn physical_volume(text: &str, offset: u64) -> tempfile::NamedTempFile {
        let mut disk = vec![0u8; 1 << 16];
        disk[512..520].copy_from_slice(LABEL);
        disk[532..536].copy_from_slice(&32u32.to_le_bytes());
        disk[536..544].copy_from_slice(LABEL_TYPE);
        disk[544..576].copy_from_slice(b"zb2Ne9Uys9l9dNrKCNGFxt3L7SqveTYL");
        let mut at = 584;
        for number in [1 << 20, 0, 0, 0, AREA.0, AREA.1, 0, 0] {
            disk[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
            at += 8;
        }
        let bytes = [text.as_bytes(), &[0]].concat();
        for (index, byte) in bytes.iter().enumerate() {
            let mut to = offset + index as u64;
            if to >= AREA.1 {
                to = to - AREA.1 + AREA_HEAD as u64;
            }
            disk[(AREA.0 + to) as usize] = *byte;
        }
        let mut head = vec![0u8; AREA_HEAD];
        head[4..20].copy_from_slice(AREA_MAGIC);
        head[20..24].copy_from_slice(&1u32.to_le_bytes());
        head[24..32].copy_from_slice(&AREA.0.to_le_bytes());
        head[32..40].copy_from_slice(&AREA.1.to_le_bytes());
        head[40..48].copy_from_slice(&offset.to_le_bytes());
        head[48..56].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        head[56..60].copy_from_slice(&checksum(&bytes).to_le_bytes());
        let sum = checksum(&head[4..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        disk[AREA.0 as usize..AREA.0 as usize + AREA_HEAD].copy_from_slice(&head);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&disk).unwrap();
        file
    }

    #[test]
    fn a_text_is_found_even_round_the_end() {
        let text = "vg0 {\n}\n".repeat(100);
        for offset in [512, 4096, 8000, 8191] {
            let disk = physical_volume(&text, offset);
            let found = head(disk.as_file()).unwrap().unwrap();
            assert_eq!(found.id, "zb2Ne9Uys9l9dNrKCNGFxt3L7SqveTYL");
            assert_eq!(found.areas, [AREA]);
            let location = locate_text(disk.as_file(), AREA).unwrap().unwrap();
            assert_eq!(super::text(disk.as_file(), &location).unwrap(), text);
        }
    }

    #[test]
    fn damage_is_seen() {
        let mut disk = physical_volume("vg0 {}", 512);
        let location = locate_text(disk.as_file(), AREA).unwrap().unwrap();
        disk.as_file_mut().write_all_at(b"x", AREA.0 + 512).unwrap();
        text(disk.as_file(), &location).unwrap_err();
        disk.as_file_mut().write_all_at(b"x", AREA.0 + 100).unwrap();
        locate_text(disk.as_file(), AREA).unwrap_err();
        let empty = tempfile::NamedTempFile::new().unwrap();
        empty.as_file().set_len(1 << 20).unwrap();
        assert_eq!(head(empty.as_file()).unwrap(), None);
    }
}
