//! Logs that are files: the last lines, and what is written from now on.
//!
//! A log may be cut short, be replaced by a new file of the same name, or have
//! its beginning punched out while it is read; following goes on in the first
//! two cases and ends when the file is removed and no other comes in its place.

pub mod times;

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::{SeekFrom, inotify};
use tokio::{net::unix::pipe, sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use self::times::Stamper;
use crate::{Error, LogOptions, LogStream, Result};

const PIECE: usize = 16 << 10;

/// Interval of looking again where nothing tells of changes (no more watches, a
/// file system of another machine).
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Whoever gives a log another name makes a new one by the old name so soon.
const REPLACING: Duration = Duration::from_secs(2);

/// The log in a file.
pub async fn follow_file(path: PathBuf, options: LogOptions) -> Result<LogStream> {
    follow(path, options, REPLACING).await
}

async fn follow(path: PathBuf, options: LogOptions, replacing: Duration) -> Result<LogStream> {
    let watch = options.follow.then(|| Watch::new(&path));
    let opened = path.clone();
    let (file, position, end, stamper) = blocking(move || {
        let file = File::open(&opened)?;
        let end = file.metadata()?.len();
        let start = start(&file, end, options.tail)?;
        let stamper = options.timestamps.then(|| Stamper::new(&opened, start, end));
        Ok((file, start, end, stamper))
    })
    .await
    .map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoLog,
        _ => Error::Io { doing: "opening the log", error },
    })?;
    let (sender, receiver) = mpsc::channel(16);
    let end = if options.follow { u64::MAX } else { end };
    let reading =
        Reading { path, file, position, end, watch, replacing, missing: None, stamper, sender };
    tokio::spawn(reading.run());
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

struct Reading {
    path: PathBuf,
    file: File,
    position: u64,
    /// A reader that does not follow gets what was there when it asked: a writer that
    /// is faster would have it read for ever.
    end: u64,
    watch: Option<Watch>,
    /// Time for which nothing may have the log's name,
    replacing: Duration,
    /// and since when nothing has.
    missing: Option<Instant>,
    /// Puts times in front of lines, if that is wanted.
    stamper: Option<Stamper>,
    sender: mpsc::Sender<Result<Bytes>>,
}

impl Reading {
    async fn run(mut self) {
        loop {
            match self.piece().await {
                Ok(piece) if piece.is_empty() => {
                    let Some(watch) = &mut self.watch else { return self.send_rest().await };
                    let again = tokio::select! {
                        () = self.sender.closed() => return,
                        () = watch.changed() => true,
                    };
                    if !again || !self.still_there().await {
                        return self.send_rest().await;
                    }
                }
                Ok(piece) => {
                    self.position += piece.len() as u64;
                    let written = self.written();
                    let piece = match &mut self.stamper {
                        Some(stamper) => stamper.stamp(&piece, written).into(),
                        None => piece,
                    };
                    if !piece.is_empty() && self.sender.send(Ok(piece)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let error = Error::Io { doing: "reading the log", error };
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    /// Time at which the log was last written to, in milliseconds since 1970.
    fn written(&self) -> i64 {
        self.file.metadata().map_or(0, |metadata| times::milliseconds(&metadata))
    }

    /// Sends what was held back of a line that has no end.
    async fn send_rest(&mut self) {
        let written = self.written();
        let rest = self.stamper.as_mut().map(|stamper| stamper.rest(written)).unwrap_or_default();
        if !rest.is_empty() {
            let _ = self.sender.send(Ok(rest.into())).await;
        }
    }

    /// Goes on at the beginning of the file.
    async fn restart(&mut self) {
        self.send_rest().await;
        self.position = 0;
        if let Some(stamper) = &mut self.stamper {
            stamper.restart();
        }
    }

    async fn piece(&self) -> io::Result<Bytes> {
        let (file, position) = (self.file.try_clone()?, self.position);
        let left = usize::try_from(self.end.saturating_sub(position)).unwrap_or(PIECE);
        blocking(move || {
            let mut piece = vec![0; left.min(PIECE)];
            let length = file.read_at(&mut piece, position)?;
            piece.truncate(length);
            Ok(Bytes::from(piece))
        })
        .await
    }

    /// Finds out, at the end of the file, whether it was cut, replaced, or
    /// removed for good.
    async fn still_there(&mut self) -> bool {
        let Ok(ours) = self.file.metadata() else { return false };
        if ours.len() > self.position {
            return true;
        }
        let path = self.path.clone();
        let opened = blocking(move || {
            let file = File::open(&path)?;
            Ok((file.metadata()?, file))
        });
        let Ok((named, file)) = opened.await else { return self.may_come_back() };
        self.missing = None;
        if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) {
            if ours.len() < self.position {
                self.restart().await;
            }
            return true;
        }
        // Until something is in the new one the old one may be written to.
        let written = self.file.metadata().is_ok_and(|ours| ours.len() > self.position);
        if named.len() > 0 && !written {
            self.restart().await;
            self.file = file;
        }
        true
    }

    /// Returns whether a log that is not there may be about to be replaced.
    fn may_come_back(&mut self) -> bool {
        let since = *self.missing.get_or_insert_with(Instant::now);
        let has_home = self.path.parent().is_some_and(Path::exists);
        has_home && since.elapsed() < self.replacing
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Offset at which the last `tail` lines before `end` begin. What was punched
/// out of the file is not read, and the line that is only half there is left
/// out.
fn start(file: &File, end: u64, tail: Option<u64>) -> io::Result<u64> {
    let first = match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(0) => 0,
        Ok(first) => after_newline(file, first, end)?,
        // Nothing but holes, or a file system that knows none.
        Err(rustix::io::Errno::NXIO) => end,
        Err(_) => 0,
    };
    let Some(tail) = tail else { return Ok(first) };
    let mut missing = tail;
    let mut position = end;
    let mut piece = vec![0; PIECE];
    if tail == 0 {
        return Ok(end);
    }
    while position > first {
        let length = (position - first).min(PIECE as u64);
        let from = position - length;
        let length = usize::try_from(length).unwrap_or(PIECE);
        file.read_exact_at(&mut piece[..length], from)?;
        for at in (0..length).rev() {
            let offset = from + at as u64;
            // The newline at the very end closes the last line.
            if piece[at] == b'\n' && offset + 1 != end {
                missing -= 1;
                if missing == 0 {
                    return Ok(offset + 1);
                }
            }
        }
        position = from;
    }
    Ok(first)
}

fn after_newline(file: &File, mut from: u64, end: u64) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    while from < end {
        let length = file.read_at(&mut piece, from)?;
        if length == 0 {
            break;
        }
        if let Some(at) = piece[..length].iter().position(|byte| *byte == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        from += length as u64;
    }
    Ok(end)
}

/// Tells when something happens in the directory of a file.
struct Watch {
    inotify: Option<pipe::Receiver>,
}

impl Watch {
    fn new(path: &Path) -> Self {
        Self { inotify: Self::open(path).ok() }
    }

    fn open(path: &Path) -> io::Result<pipe::Receiver> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let inotify =
            inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let what = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&inotify, directory, what)?;
        crate::pollable(inotify)
    }

    async fn changed(&mut self) {
        let Some(inotify) = &self.inotify else { return tokio::time::sleep(POLL_INTERVAL).await };
        let ready = tokio::time::timeout(POLL_INTERVAL, inotify.readable()).await;
        if ready.is_ok() {
            let mut buffer = [0u8; 4096];
            while inotify.try_read(&mut buffer).is_ok_and(|length| length > 0) {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::{fs, io::Write};

    use futures::StreamExt;
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    async fn all(path: &Path, options: LogOptions) -> String {
        let pieces: Vec<_> = follow_file(path.into(), options).await.unwrap().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap()).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn tail(lines: u64) -> LogOptions {
        LogOptions { tail: Some(lines), ..LogOptions::default() }
    }

    #[tokio::test]
    async fn the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(all(&path, LogOptions::default()).await, "one\ntwo\nthree\n");
        for (lines, expected) in [
            (0, ""),
            (1, "three\n"),
            (2, "two\nthree\n"),
            (3, "one\ntwo\nthree\n"),
            (99, "one\ntwo\nthree\n"),
        ] {
            assert_eq!(all(&path, tail(lines)).await, expected, "{lines}");
        }
        fs::write(&path, "one\nunfinished").unwrap();
        assert_eq!(all(&path, tail(1)).await, "unfinished");
        fs::write(&path, "").unwrap();
        assert_eq!(all(&path, tail(5)).await, "");
        let long = "x".repeat(PIECE * 2) + "\n";
        fs::write(&path, format!("{long}{long}end\n")).unwrap();
        assert_eq!(all(&path, tail(2)).await, format!("{long}end\n"));
    }

    #[tokio::test]
    async fn what_is_written_later_is_for_those_who_follow() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // More than waits for a reader.
        let line = "x".repeat(PIECE * 40) + "\n";
        for (options, lines) in [(LogOptions::default(), 3), (tail(2), 2)] {
            fs::write(&path, line.repeat(3)).unwrap();
            let stream = follow_file(path.clone(), options).await.unwrap();
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(line.as_bytes()).unwrap();
            let pieces: Vec<_> = stream.collect().await;
            let length: usize = pieces.iter().map(|piece| piece.as_ref().unwrap().len()).sum();
            assert_eq!(length, line.len() * lines, "{options:?}");
        }
    }

    #[tokio::test]
    async fn what_was_punched_out_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let line = |number: usize| format!("line {number:04}\n");
        fs::write(&path, (0..2000).map(line).collect::<String>()).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
        let text = all(&path, LogOptions::default()).await;
        let first = text.lines().next().unwrap().to_owned();
        assert!(first.starts_with("line 08"), "{first}");
        assert!(text.ends_with("line 1999\n"));
        assert!(!text.contains('\0'));
    }

    #[tokio::test]
    async fn following_goes_on_over_cuts_and_new_files_and_ends_with_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "one\n").unwrap();
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut stream = follow_file(path.clone(), options).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "one\n");
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"two\n").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "two\n");
        file.set_len(0).unwrap();
        file.write_all(b"3\n").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "3\n");
        fs::write(directory.path().join("new"), "four\n").unwrap();
        fs::rename(directory.path().join("new"), &path).unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "four\n");
        fs::remove_file(&path).unwrap();
        assert!(stream.next().await.is_none());
    }

    /// As those do who turn logs over: the old one gets another name, and is
    /// written to until the new one is there.
    #[tokio::test]
    async fn following_goes_on_while_nothing_has_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut old = File::create(&path).unwrap();
        old.write_all(b"one\n").unwrap();
        let ever = Duration::from_secs(600);
        let mut stream = follow(path.clone(), options, ever).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "one\n");
        fs::rename(&path, directory.path().join("log.1")).unwrap();
        let looks = tokio::time::timeout(POLL_INTERVAL * 2, stream.next()).await;
        assert!(looks.is_err(), "it ended, or has something to say");
        old.write_all(b"two\n").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "two\n");
        let mut new = File::create(&path).unwrap();
        old.write_all(b"three\n").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "three\n");
        new.write_all(b"four\n").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "four\n");
        drop(directory);
        assert!(stream.next().await.is_none(), "nothing comes back to a folder that is gone");
    }

    #[tokio::test]
    async fn no_file_is_no_log() {
        let error = follow_file("/nonexistent/log".into(), LogOptions::default()).await;
        assert_eq!(error.err().unwrap().to_string(), "no log available");
    }
}
