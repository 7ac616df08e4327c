//! Files with holes: written with them, whether an archive speaks of holes or
//! spells out the zeros.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use tar::Entry;

/// Prefix of the extended headers of such a file.
const PREFIX: &str = "GNU.sparse.";
const BLOCK: usize = 4096;
const PIECE: usize = 16 * BLOCK;
/// Of an archive; its numbers fill whole ones.
const RECORD: usize = 512;
/// More pieces than a file has that somebody needs.
const MOST_PIECES: u64 = 1 << 20;

/// A file with holes as the extended headers of an archive describe it, in the
/// three ways that there are (0.0, 0.1 and 1.0).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    /// Name of the file; the archive has a name made up.
    pub(super) name: Option<PathBuf>,
    /// With all holes.
    pub(super) size: u64,
    /// Offsets and lengths one after the other, where the headers have them.
    numbers: Vec<u64>,
    /// True where the numbers come before the data.
    ahead: bool,
}

fn wrong(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| wrong("a sparse file whose map is not of numbers"))
}

impl Sparse {
    /// None if the file is described as any other.
    pub(super) fn of<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Option<Self>> {
        let Some(extensions) = entry.pax_extensions()? else { return Ok(None) };
        let mut pairs = Vec::new();
        for extension in extensions {
            let extension = extension?;
            let key = extension.key().unwrap_or_default();
            if let Some(key) = key.strip_prefix(PREFIX) {
                let value = extension.value().map_err(|_| wrong("a sparse file of no text"))?;
                pairs.push((key.to_owned(), value.to_owned()));
            }
        }
        if pairs.is_empty() { Ok(None) } else { Self::parse(&pairs).map(Some) }
    }

    fn parse(pairs: &[(String, String)]) -> io::Result<Self> {
        let (mut sparse, mut size, mut version) = (Self::default(), None, ("0", "0"));
        let mut mapped = false;
        for (key, value) in pairs {
            match key.as_str() {
                "major" => version.0 = value,
                "minor" => version.1 = value,
                "name" => sparse.name = Some(value.into()),
                "size" | "realsize" => size = Some(number(value)?),
                "offset" | "numbytes" => sparse.numbers.push(number(value)?),
                "numblocks" => mapped = true,
                "map" => {
                    let numbers = value.split(',').filter(|text| !text.is_empty()).map(number);
                    sparse.numbers = numbers.collect::<io::Result<_>>()?;
                    mapped = true;
                }
                other => return Err(wrong(format!("a sparse file with {other:?}"))),
            }
        }
        sparse.ahead = match version {
            ("1", "0") => true,
            ("0", _) if mapped => false,
            (major, minor) => {
                return Err(wrong(format!("a sparse file of the unknown form {major}.{minor}")));
            }
        };
        sparse.size = size.ok_or_else(|| wrong("a sparse file without a size"))?;
        Ok(sparse)
    }

    /// Writes the file, to its very size.
    pub(super) fn write(&self, file: &File, from: &mut impl Read) -> io::Result<()> {
        let numbers = if self.ahead { numbers_ahead(from)? } else { self.numbers.clone() };
        if numbers.len() % 2 != 0 {
            return Err(wrong("a sparse file whose map has a piece without a length"));
        }
        let mut end = 0;
        for piece in numbers.chunks_exact(2) {
            let (offset, length) = (piece[0], piece[1]);
            let after = offset.checked_add(length).filter(|after| *after <= self.size);
            let Some(after) = after.filter(|_| offset >= end) else {
                return Err(wrong("a sparse file whose pieces do not fit into it"));
            };
            if with_holes(file, &mut from.by_ref().take(length), offset)? != length {
                return Err(wrong("a sparse file with less data than its map says"));
            }
            end = after;
        }
        if io::copy(from, &mut io::sink())? != 0 {
            return Err(wrong("a sparse file with more data than its map says"));
        }
        file.set_len(self.size)
    }
}

/// Reads how many pieces there are, and for each where it is and how long: a
/// number a line, filled up to whole records.
fn numbers_ahead(from: &mut impl Read) -> io::Result<Vec<u64>> {
    let (mut numbers, mut digits, mut missing) = (Vec::new(), String::new(), None);
    let mut record = [0; RECORD];
    while missing != Some(0) {
        from.read_exact(&mut record)?;
        for byte in record {
            if byte != b'\n' {
                digits.push(char::from(byte));
                if digits.len() > 20 {
                    return Err(wrong("a sparse file whose map is not of numbers"));
                }
                continue;
            }
            let read = number(&digits)?;
            digits.clear();
            match &mut missing {
                None if read > MOST_PIECES => return Err(wrong("a sparse file of many pieces")),
                None => missing = Some(read * 2),
                Some(missing) => {
                    numbers.push(read);
                    *missing -= 1;
                }
            }
            if missing == Some(0) {
                break;
            }
        }
    }
    Ok(numbers)
}

/// Writes everything that is not zeros; how much there was. The file is not
/// made longer by zeros at the end.
pub(super) fn with_holes(file: &File, from: &mut impl Read, offset: u64) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    loop {
        let mut length = 0;
        while length < PIECE {
            match from.read(&mut piece[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if length == 0 {
            return Ok(total);
        }
        write_blocks(file, &piece[..length], offset + total)?;
        total += length as u64;
    }
}

fn write_blocks(file: &File, piece: &[u8], offset: u64) -> io::Result<()> {
    let blocks: Vec<&[u8]> = piece.chunks(BLOCK).collect();
    let is_hole = |block: &[u8]| block == &[0; BLOCK][..block.len()];
    let mut at = 0;
    // Neighbours that are holes, or are not, at once.
    for run in blocks.chunk_by(|one, next| is_hole(one) == is_hole(next)) {
        let length: usize = run.iter().map(|block| block.len()).sum();
        if !is_hole(run[0]) {
            file.write_all_at(&piece[at..at + length], offset + at as u64)?;
        }
        at += length;
    }
    Ok(())
}
