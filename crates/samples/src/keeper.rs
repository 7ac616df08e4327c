//! The samples on disk, so that a restart does not lose them: a folder of
//! files, each whole and of some thousands of samples. Only the youngest is
//! ever written again; a file goes when all in it have gone from memory, so
//! that there is never more here than there.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use jiff::Timestamp;
use prost::Message;
use selvage_api::edgeproto as wire;
use selvage_files::UNFINISHED;

use crate::Samples;

/// Size at which a file is full.
const FILE_LIMIT: usize = 1 << 20;
/// First bytes of a file.
const HEAD: &[u8] = b"selvage samples 1\n";
/// Size of the checksum at the end of a file.
const CHECKSUM_BYTES: usize = 8;
const ENDING: &str = "samples";
const DAMAGED: &str = "damaged";

/// Keeps a folder like the memory.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: PathBuf,
    /// Files that are not written again, with the number after their last
    /// sample.
    full: VecDeque<(PathBuf, u64)>,
    /// The number of the youngest file, of its first sample, and of the one
    /// after its last.
    youngest: u64,
    from: u64,
    to: u64,
}

impl Keeper {
    /// Reads what an earlier run left.
    pub(crate) fn open(folder: &Path, samples: &Samples, now: Timestamp) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            match (ending, number) {
                (Some(ENDING), Some(number)) => found.push((number, path)),
                (Some(UNFINISHED), _) => fs::remove_file(&path)?,
                _ => {}
            }
        }
        found.sort_unstable();
        let mut full = VecDeque::new();
        let youngest = found.last().map_or(0, |(number, _)| number.saturating_add(1));
        for (_, path) in found {
            match read(&path) {
                Ok(kept) => {
                    for sample in kept {
                        samples.add(sample, now);
                    }
                    full.push_back((path, samples.span().1));
                }
                Err(error) => put_aside(&path, &error)?,
            }
        }
        let (_, to) = samples.span();
        Ok(Self { folder: folder.to_owned(), full, youngest, from: to, to })
    }

    /// Writes what came since the last time, and removes what has gone.
    pub(crate) fn write(&mut self, samples: &Samples) -> io::Result<()> {
        let (gone, to) = samples.span();
        while let Some((path, end)) = self.full.front()
            && *end <= gone
        {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.full.pop_front(),
            };
        }
        if to == self.to {
            return Ok(());
        }
        let content = content(&samples.encoded(self.from, to));
        let path = self.folder.join(format!("{:012}.{ENDING}", self.youngest));
        selvage_files::replace(&path, &content, 0o600)?;
        self.to = to;
        if content.len() >= FILE_LIMIT {
            self.full.push_back((path, to));
            self.youngest += 1;
            self.from = to;
        }
        Ok(())
    }
}

fn content(samples: &[Bytes]) -> Vec<u8> {
    let size: usize = samples.iter().map(|sample| sample.len() + 3).sum();
    let mut content = Vec::with_capacity(HEAD.len() + size + CHECKSUM_BYTES);
    content.extend_from_slice(HEAD);
    for sample in samples {
        prost::encoding::encode_varint(sample.len() as u64, &mut content);
        content.extend_from_slice(sample);
    }
    let sum = checksum(&content);
    content.extend_from_slice(&sum);
    content
}

/// FNV-1a: tells a torn or rotten file, not a forged one.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    sum.to_le_bytes()
}

fn read(path: &Path) -> io::Result<Vec<wire::Metric>> {
    let damaged = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    let content = fs::read(path)?;
    let body = content.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= HEAD.len());
    let (body, sum) = content.split_at(body.ok_or_else(|| damaged("too short"))?);
    if checksum(body) != *sum {
        return Err(damaged("its checksum is wrong"));
    }
    let samples = body.strip_prefix(HEAD).ok_or_else(|| damaged("not a file of samples"))?;
    let mut rest = Bytes::copy_from_slice(samples);
    let mut found = Vec::new();
    while rest.has_remaining() {
        let sample = wire::Metric::decode_length_delimited(&mut rest);
        found.push(sample.map_err(|_| damaged("a sample cannot be read"))?);
    }
    Ok(found)
}

fn put_aside(path: &Path, error: &io::Error) -> io::Result<()> {
    tracing::warn!(path = %path.display(), %error, "samples of earlier are lost, the file is put aside");
    fs::rename(path, path.with_extension(DAMAGED))
}

#[cfg(test)]
mod tests;
