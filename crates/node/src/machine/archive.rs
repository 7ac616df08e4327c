//! A file or folder as tar.gz, while it is being read.

use std::{
    io::{self, Read, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use rustix::fs::{FileType, Stat};
use selvage_api::common::{Data, Metadata};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    Error,
    confine::{Roots, plain},
    walk::{self, Entry},
};

/// Bytes of one piece.
const PIECE: usize = 32 * 1024;

/// Maximum number of unreadable entries that are reported by name.
const MAX_PROBLEMS: usize = 100;

type Pieces = mpsc::Sender<Result<Data, Status>>;
type Tar = Builder<GzEncoder<Pipe>>;

/// Sends what is at the path; what could not be read is told at the end.
pub(super) fn send(roots: &Roots, path: &str, pieces: &Pieces) -> Result<(), Error> {
    let start = roots.locate(path)?;
    let base = Path::new(path).file_name().map(PathBuf::from).unwrap_or_else(|| ".".into());
    let mut problems = Problems::default();
    let pipe = Pipe { pieces: pieces.clone(), buffer: Vec::with_capacity(PIECE) };
    let mut tar: Tar = Builder::new(GzEncoder::new(pipe, Compression::fast()));
    let walked = walk::walk(&start, None, &mut |entry| {
        let name = match entry.relative == Path::new(".") && entry.link.is_none() {
            true if start.kind() != FileType::Directory => base.clone(),
            _ => entry.relative.to_owned(),
        };
        match add(&mut tar, &name, entry) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Failure::Gone) => ControlFlow::Break(()),
            Err(Failure::Entry(reason)) => {
                problems.note(&name, &reason);
                ControlFlow::Continue(())
            }
        }
    });
    // Whoever is gone needs no end.
    if walked.is_break() || finish(tar).is_err() {
        return Ok(());
    }
    if let Some(error) = problems.text() {
        let metadata = Some(Metadata { hostname: String::new(), error });
        let _ = pieces.blocking_send(Ok(Data { metadata, bytes: Bytes::new() }));
    }
    Ok(())
}

fn finish(tar: Tar) -> io::Result<()> {
    tar.into_inner()?.finish()?.flush()
}

/// Reason why an entry is not in the archive.
enum Failure {
    /// Nobody reads the archive any more.
    Gone,
    Entry(String),
}

fn add(tar: &mut Tar, name: &Path, entry: Entry<'_>) -> Result<(), Failure> {
    let stat = entry.stat.map_err(|error| Failure::Entry(plain(error)))?;
    let mut header = header(&stat);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return add_file(tar, name, &entry, header),
        FileType::Directory => header.set_entry_type(EntryType::Directory),
        FileType::Symlink => {
            header.set_entry_type(EntryType::Symlink);
            let target = entry.link.unwrap_or_default();
            return tar.append_link(&mut header, name, target).map_err(written);
        }
        FileType::CharacterDevice => header.set_entry_type(EntryType::Char),
        FileType::BlockDevice => header.set_entry_type(EntryType::Block),
        FileType::Fifo => header.set_entry_type(EntryType::Fifo),
        _ => return Err(Failure::Entry("sockets cannot be archived".into())),
    }
    if matches!(header.entry_type(), EntryType::Char | EntryType::Block) {
        let set = header
            .set_device_major(rustix::fs::major(stat.st_rdev))
            .and_then(|()| header.set_device_minor(rustix::fs::minor(stat.st_rdev)));
        set.map_err(|error| Failure::Entry(error.to_string()))?;
    }
    tar.append_data(&mut header, name, io::empty()).map_err(written)
}

fn add_file(
    tar: &mut Tar,
    name: &Path,
    entry: &Entry<'_>,
    mut header: Header,
) -> Result<(), Failure> {
    let file = entry.location.open().map_err(Failure::Entry)?;
    // Another thing may have got the name since it was looked at.
    let metadata = file.metadata().map_err(|error| Failure::Entry(error.to_string()))?;
    if !metadata.is_file() {
        return Err(Failure::Entry("is no regular file any more".into()));
    }
    header.set_entry_type(EntryType::Regular);
    header.set_size(metadata.len());
    let mut contents = Contents { file, left: metadata.len(), problem: None };
    tar.append_data(&mut header, name, &mut contents).map_err(written)?;
    contents.problem.map_or(Ok(()), |problem| Err(Failure::Entry(problem)))
}

fn header(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

/// An error of the archive: of the one who reads it, or of the entry's name.
fn written(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Gone,
        _ => Failure::Entry(error.to_string()),
    }
}

/// Exactly as many bytes as the header has promised, whatever happens to the
/// file meanwhile.
struct Contents {
    file: std::fs::File,
    left: u64,
    problem: Option<String>,
}

impl Read for Contents {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..wanted];
        let read = if self.problem.is_some() { Ok(0) } else { self.file.read(buffer) };
        let read = match read {
            Ok(0) => {
                self.problem.get_or_insert_with(|| "became shorter while it was read".into());
                buffer.fill(0);
                wanted
            }
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.problem = Some(error.to_string());
                buffer.fill(0);
                wanted
            }
        };
        self.left -= read as u64;
        Ok(read)
    }
}

/// Entries that could not be read.
#[derive(Default)]
struct Problems {
    reported: Vec<String>,
    more: usize,
}

impl Problems {
    fn note(&mut self, name: &Path, reason: &str) {
        if self.reported.len() < MAX_PROBLEMS {
            self.reported.push(format!("{}: {reason}", name.display()));
        } else {
            self.more += 1;
        }
    }

    fn text(self) -> Option<String> {
        let mut text = self.reported.join("\n");
        if self.more > 0 {
            text += &format!("\nand {} more", self.more);
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Sends what is written, piece by piece.
struct Pipe {
    pieces: Pieces,
    buffer: Vec<u8>,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        let sent = self.pieces.blocking_send(Ok(Data { metadata: None, bytes: bytes.into() }));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Sends a file as it is.
pub(super) fn send_plain(roots: &Roots, path: &str, pieces: &Pieces) -> Result<(), Error> {
    let mut file = roots.locate(path)?.open_file()?;
    let mut buffer = vec![0; PIECE];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(Error::Read { what: "reading the file", error }),
        };
        let bytes = Bytes::copy_from_slice(&buffer[..read]);
        if pieces.blocking_send(Ok(Data { metadata: None, bytes })).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

    use super::*;

    fn copy(path: &Path) -> Result<(Vec<u8>, String), Error> {
        let (sender, mut receiver) = mpsc::channel(4096);
        send(
            &Roots::new(Vec::new(), super::super::guard::Guard::default()),
            path.to_str().unwrap(),
            &sender,
        )?;
        drop(sender);
        let (mut bytes, mut problems) = (Vec::new(), String::new());
        while let Some(piece) = receiver.blocking_recv() {
            let piece = piece.unwrap();
            assert!(problems.is_empty(), "problems come last");
            bytes.extend(piece.bytes);
            problems = piece.metadata.map(|metadata| metadata.error).unwrap_or_default();
        }
        Ok((bytes, problems))
    }

    fn entries(archive: &[u8]) -> BTreeMap<String, (EntryType, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let kind = entry.header().entry_type();
            let mut text = String::new();
            match entry.link_name().unwrap() {
                Some(target) => text = target.display().to_string(),
                None => drop(entry.read_to_string(&mut text).unwrap()),
            }
            (name, (kind, text))
        });
        entries.collect()
    }

    #[test]
    fn a_folder_comes_with_all_that_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let long = "n".repeat(200);
        fs::create_dir_all(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/file"), "contents").unwrap();
        fs::write(folder.path().join(&long), "long").unwrap();
        symlink("/etc/passwd", folder.path().join("link")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap());
        let (archive, problems) = copy(folder.path()).unwrap();
        let found = entries(&archive);
        assert_eq!(found["sub/file"], (EntryType::Regular, "contents".into()));
        assert_eq!(found[&long], (EntryType::Regular, "long".into()));
        assert_eq!(found["link"], (EntryType::Symlink, "/etc/passwd".into()));
        assert_eq!(found["sub"].0, EntryType::Directory);
        assert_eq!(problems, "socket: sockets cannot be archived");
        assert!(found.keys().all(|name| !name.starts_with('/') && !name.contains("..")));
    }

    #[test]
    fn a_file_comes_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("one"), "1").unwrap();
        let (archive, problems) = copy(&folder.path().join("one")).unwrap();
        assert_eq!(entries(&archive)["one"], (EntryType::Regular, "1".into()));
        assert_eq!(problems, "");
        assert!(copy(&folder.path().join("none")).is_err());
        assert!(matches!(copy(Path::new("one")), Err(Error::NotAbsolute { .. })));
    }

    #[test]
    fn a_file_that_shrinks_does_not_break_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        let file = fs::File::open(&path).unwrap();
        let mut contents = Contents { file, left: 5, problem: None };
        fs::write(&path, "12").unwrap();
        let mut read = Vec::new();
        contents.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"12\0\0\0");
        assert!(contents.problem.is_some());
    }
}
