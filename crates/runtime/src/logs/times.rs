//! Times of the lines of a log.
//!
//! Containers write into the file itself, and nobody is in between who could note
//! when. So a file beside the log says how long it was when it was written to the
//! last time, again and again: a line was written by the first time at which the
//! log was long enough to hold it.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;

/// Bytes of a record: the length of the log, and milliseconds since 1970.
const RECORD: usize = 16;
/// Largest size of the file of records; every second one goes then.
const MAX_BYTES: u64 = 256 << 10;
/// Bytes of a line that are held back until its end is there.
const MAX_LINE: usize = 64 << 10;
/// Time of what was in a log before anybody noted times.
const UNKNOWN: i64 = 0;

/// Path of the file of records beside a log.
pub(crate) fn path(log: &Path) -> PathBuf {
    let mut name = OsString::from(log);
    name.push(".times");
    name.into()
}

/// Begins to note the times of a log, unless somebody has. Nobody knows when that
/// was written which is in it already.
pub fn begin(log: &Path) -> io::Result<()> {
    let length = match fs::metadata(log) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path(log)) {
        Ok(mut file) => file.write_all(&encode(length, UNKNOWN)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Notes how long a log is, if its times are noted at all. It makes no file: the
/// log may be about to go with its folder.
pub fn note(log: &Path) -> io::Result<()> {
    match note_length(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        noted => noted,
    }
}

fn note_length(log: &Path) -> io::Result<()> {
    let metadata = fs::metadata(log)?;
    let (length, written) = (metadata.len(), milliseconds(&metadata));
    let records = path(log);
    let mut file = OpenOptions::new().read(true).append(true).open(&records)?;
    // A power cut may have left half a record.
    let size = file.metadata()?.len() / RECORD as u64 * RECORD as u64;
    file.set_len(size)?;
    if let Some(at) = size.checked_sub(RECORD as u64) {
        let mut last = [0; RECORD];
        file.read_exact_at(&mut last, at)?;
        match decode(&last).0 {
            before if before == length => return Ok(()),
            before if before > length => file.set_len(0)?,
            _ => {}
        }
    }
    file.write_all(&encode(length, written))?;
    if size > MAX_BYTES { thin_out(&records) } else { Ok(()) }
}

pub(super) fn milliseconds(metadata: &fs::Metadata) -> i64 {
    metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000
}

fn encode(length: u64, time: i64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&length.to_le_bytes());
    record[8..].copy_from_slice(&time.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD]) -> (u64, i64) {
    let half = |at: usize| record[at..].first_chunk().copied().unwrap_or_default();
    (u64::from_le_bytes(half(0)), i64::from_le_bytes(half(8)))
}

/// Leaves every second record out, never the last.
fn thin_out(records: &Path) -> io::Result<()> {
    let all = fs::read(records)?;
    let (kept, _) = all.as_chunks::<RECORD>();
    let kept: Vec<u8> =
        kept.rchunks(2).rev().filter_map(|pair| pair.last()).flatten().copied().collect();
    let new = records.with_extension("new");
    fs::write(&new, kept)?;
    fs::rename(new, records)
}

/// Puts the time in front of each line of a log that is read from a file.
pub(super) struct Stamper {
    log: PathBuf,
    records: Vec<(u64, i64)>,
    /// Offset of `line` in the log.
    position: u64,
    line: Vec<u8>,
    /// Lines too long to hold back are passed on in pieces.
    is_continued: bool,
    /// Length of the log when reading began. What comes after it is read as it is
    /// written.
    live_from: u64,
}

impl Stamper {
    pub(super) fn new(log: &Path, position: u64, live_from: u64) -> Self {
        let records = read(log);
        let log = log.to_owned();
        Self { log, records, position, line: Vec::new(), is_continued: false, live_from }
    }

    /// Goes on at the beginning of a log that was cut or replaced.
    pub(super) fn restart(&mut self) {
        *self = Self::new(&self.log, 0, 0);
    }

    /// Returns the lines that end in a piece, with their times. `written` is when
    /// the log was last written to.
    pub(super) fn stamp(&mut self, piece: &[u8], written: i64) -> Vec<u8> {
        let mut out = Vec::with_capacity(piece.len() * 2);
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= MAX_LINE {
                self.pass(written, &mut out);
            }
        }
        out
    }

    /// Returns a last line that has no end.
    pub(super) fn rest(&mut self, written: i64) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.line.is_empty() {
            self.pass(written, &mut out);
        }
        out
    }

    fn pass(&mut self, written: i64, out: &mut Vec<u8>) {
        self.position += self.line.len() as u64;
        if !self.is_continued {
            out.extend_from_slice(text(self.time(written)).as_bytes());
        }
        self.is_continued = !self.line.ends_with(b"\n");
        out.append(&mut self.line);
    }

    /// Time by which all up to the position was written.
    fn time(&self, written: i64) -> i64 {
        if self.position > self.live_from {
            return written;
        }
        let at = self.records.partition_point(|(length, _)| *length < self.position);
        self.records.get(at).map_or(UNKNOWN, |(_, time)| *time)
    }
}

/// Records of a log, the shortest length first.
fn read(log: &Path) -> Vec<(u64, i64)> {
    let bytes = fs::read(path(log)).unwrap_or_default();
    let (records, _) = bytes.as_chunks::<RECORD>();
    let mut records: Vec<_> = records.iter().map(decode).collect();
    records.sort_unstable();
    records
}

fn text(time: i64) -> String {
    match Timestamp::from_millisecond(time) {
        Ok(time) if time.as_millisecond() != UNKNOWN => {
            time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ ").to_string()
        }
        _ => "- ".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// Writes to a log as if at this second.
    fn write(log: &Path, text: &str, second: u64) {
        let mut file = OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    }

    fn stamped(log: &Path, from: u64) -> String {
        let bytes = fs::read(log).unwrap();
        let mut stamper = Stamper::new(log, from, bytes.len() as u64);
        let mut out = Vec::new();
        // However it is cut.
        for piece in bytes[usize::try_from(from).unwrap()..].chunks(3) {
            out.extend(stamper.stamp(piece, 99_000));
        }
        out.extend(stamper.rest(99_000));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_line_has_the_time_by_which_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        begin(&log).unwrap();
        begin(&log).unwrap();
        write(&log, "one\ntw", 10);
        note(&log).unwrap();
        write(&log, "o\n", 20);
        write(&log, "three\n", 30);
        note(&log).unwrap();
        note(&log).unwrap();
        let all = "1970-01-01T00:00:10.000Z one\n1970-01-01T00:00:30.000Z two\n\
                   1970-01-01T00:00:30.000Z three\n";
        assert_eq!(stamped(&log, 0), all);
        assert_eq!(stamped(&log, 8), "1970-01-01T00:00:30.000Z three\n");
        assert_eq!(fs::metadata(path(&log)).unwrap().len(), 3 * RECORD as u64);

        // Half a record is forgotten, and what a cut log held too.
        let records = path(&log);
        OpenOptions::new().append(true).open(&records).unwrap().write_all(b"half").unwrap();
        write(&log, "four", 40);
        note(&log).unwrap();
        assert!(stamped(&log, 14).ends_with("1970-01-01T00:00:40.000Z four"));
        fs::write(&log, "").unwrap();
        write(&log, "new\n", 50);
        note(&log).unwrap();
        assert_eq!(stamped(&log, 0), "1970-01-01T00:00:50.000Z new\n");
    }

    #[test]
    fn nothing_is_said_of_lines_from_before() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        write(&log, "old\n", 10);
        note(&log).unwrap();
        assert!(!path(&log).exists());
        assert_eq!(stamped(&log, 0), "- old\n");
        begin(&log).unwrap();
        write(&log, "new\n", 20);
        note(&log).unwrap();
        assert_eq!(stamped(&log, 0), "- old\n1970-01-01T00:00:20.000Z new\n");
        // What comes while one reads is as old as the log's last change.
        let mut stamper = Stamper::new(&log, 8, 8);
        assert_eq!(stamper.stamp(b"now\n", 30_000), b"1970-01-01T00:00:30.000Z now\n");
    }

    #[test]
    fn records_are_bounded_and_long_lines_have_one_time() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        begin(&log).unwrap();
        let lines = MAX_BYTES / RECORD as u64 + 10;
        for second in 1..=lines {
            write(&log, "x\n", second);
            note(&log).unwrap();
        }
        assert!(fs::metadata(path(&log)).unwrap().len() < MAX_BYTES);
        let last = Timestamp::from_second(lines.cast_signed()).unwrap();
        assert_eq!(stamped(&log, lines * 2 - 2), format!("{}.000Z x\n", last.strftime("%FT%T")));

        let mut stamper = Stamper::new(&log, 0, 0);
        let mut out = stamper.stamp(&vec![b'y'; MAX_LINE + 1], 1000);
        out.extend(stamper.stamp(b"z\n", 2000));
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("1970").count(), 1);
        assert!(out.ends_with("yz\n"));
    }
}
