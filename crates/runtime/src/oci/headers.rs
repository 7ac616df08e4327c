//! A tar whose extension headers are of a sane size.
//!
//! The reader of tars keeps long names and extended attributes in memory, as
//! long as their header says they are. This stands in front of it and ends a
//! tar in which one is longer than any name or attribute can be.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// Longest name on Linux, and all attributes of a file, with room.
const MAX_EXTENSION: u64 = 1 << 20;

/// Kind of the next bytes.
enum State {
    Header,
    /// More of the map of a sparse file of GNU's older form, then its content.
    SparseMap {
        content: u64,
    },
    Content(u64),
    /// Attributes of the next entry, which may say its size.
    Attributes {
        left: u64,
        text: Vec<u8>,
        length: usize,
    },
}

pub(super) struct Headers<R> {
    inner: R,
    state: State,
    block: Vec<u8>,
    /// Size of the next entry, where attributes gave one.
    size: Option<u64>,
}

impl<R: Read> Headers<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, state: State::Header, block: Vec::with_capacity(BLOCK), size: None }
    }

    /// Takes note of bytes; returns how many it could use.
    fn note(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Content(left) => {
                let used = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= used as u64;
                if *left == 0 {
                    self.state = State::Header;
                }
                Ok(used)
            }
            State::Attributes { left, text, length } => {
                let used = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                text.extend_from_slice(&bytes[..used]);
                *left -= used as u64;
                if *left == 0 {
                    text.truncate(*length);
                    self.size = size_in(text).or(self.size);
                    self.state = State::Header;
                }
                Ok(used)
            }
            State::Header | State::SparseMap { .. } => {
                let used = bytes.len().min(BLOCK - self.block.len());
                self.block.extend_from_slice(&bytes[..used]);
                if self.block.len() == BLOCK {
                    self.next()?;
                    self.block.clear();
                }
                Ok(used)
            }
        }
    }

    /// Reads a block that is complete.
    fn next(&mut self) -> io::Result<()> {
        if let State::SparseMap { content } = self.state {
            if self.block[504] == 0 {
                self.state = content_of(content);
            }
            return Ok(());
        }
        if self.block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let size = size_of(&self.block[124..136]);
        let kind = self.block[156];
        if matches!(kind, b'L' | b'K' | b'x' | b'g' | b'X') {
            if size > MAX_EXTENSION {
                let text = "a header of the layer is longer than a name or attribute can be";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            self.state = match (kind, usize::try_from(size)) {
                (b'x' | b'X', Ok(length)) if length > 0 => {
                    let left = size.next_multiple_of(BLOCK as u64);
                    State::Attributes { left, text: Vec::new(), length }
                }
                _ => content_of(size),
            };
            return Ok(());
        }
        let size = self.size.take().unwrap_or(size);
        let sparse = kind == b'S' && self.block[482] != 0;
        self.state = if sparse { State::SparseMap { content: size } } else { content_of(size) };
        Ok(())
    }
}

fn content_of(size: u64) -> State {
    match size.checked_next_multiple_of(BLOCK as u64) {
        Some(0) => State::Header,
        Some(padded) => State::Content(padded),
        None => State::Content(u64::MAX),
    }
}

/// Size in a header: octal digits, or a number of 95 bits.
fn size_of(field: &[u8]) -> u64 {
    if field[0] & 0x80 != 0 {
        let bytes: [u8; 8] = field[4..12].try_into().unwrap_or_default();
        return u64::from_be_bytes(bytes);
    }
    let digits = field.iter().skip_while(|byte| **byte == b' ');
    let digits = digits.take_while(|byte| (b'0'..=b'7').contains(*byte));
    digits.fold(0, |sum: u64, byte| sum.saturating_mul(8).saturating_add(u64::from(byte - b'0')))
}

/// `size=` in attributes, which are lines of `LENGTH NAME=VALUE`.
fn size_in(text: &[u8]) -> Option<u64> {
    let lines = text.split(|byte| *byte == b'\n');
    let mut value = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        std::str::from_utf8(line[at + 1..].strip_prefix(b"size=")?).ok()?.parse().ok()
    });
    value.next_back()
}

impl<R: Read> Read for Headers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let mut at = 0;
        while at < length {
            at += self.note(&buffer[at..length])?;
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn header(kind: tar::EntryType, size: u64) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_path("a").unwrap();
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    fn padded(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    /// All of it, in pieces of odd sizes.
    fn read(bytes: &[u8]) -> io::Result<usize> {
        let mut headers = Headers::new(bytes);
        let (mut piece, mut all) = ([0; 333], 0);
        loop {
            match headers.read(&mut piece)? {
                0 => return Ok(all),
                length => all += length,
            }
        }
    }

    #[test]
    fn long_names_are_read_and_endless_ones_are_not() {
        use tar::EntryType;
        let name = padded(&[b'n'; 5000]);
        let entry = [header(EntryType::Regular, 3), padded(b"abc")].concat();
        for kind in [
            EntryType::GNULongName,
            EntryType::GNULongLink,
            EntryType::XHeader,
            EntryType::XGlobalHeader,
        ] {
            let good = [header(kind, 5000), name.clone(), entry.clone()].concat();
            assert_eq!(read(&good).unwrap(), good.len());
            for size in [MAX_EXTENSION + 1, 1 << 33, u64::MAX >> 1] {
                let bad = [entry.clone(), header(kind, size), name.clone()].concat();
                assert_eq!(read(&bad).unwrap_err().kind(), io::ErrorKind::InvalidData, "{kind:?}");
            }
        }
    }

    /// Bytes that only look like a header are content, whatever says how long
    /// it is.
    #[test]
    fn content_is_not_taken_for_a_header() {
        use tar::EntryType;
        let trap = header(EntryType::GNULongName, 1 << 40);
        let plain = [header(EntryType::Regular, 512), trap.clone()].concat();
        assert_eq!(read(&plain).unwrap(), plain.len());
        let attribute = b"12 size=512\n";
        let by_attribute = [
            header(EntryType::XHeader, attribute.len() as u64),
            padded(attribute),
            header(EntryType::Regular, 0),
            trap.clone(),
        ]
        .concat();
        assert_eq!(read(&by_attribute).unwrap(), by_attribute.len());
        assert!(read(&[header(EntryType::Regular, 0), trap].concat()).is_err());
    }
}
