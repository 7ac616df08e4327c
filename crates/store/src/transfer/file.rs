//! The lines of the portable file.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::types::{MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, check_value};
use crate::{Error, Result, Revision};

const FORMAT: &str = "selvage-store-export";
const VERSION: u64 = 1;
/// The longest line there can be: key and value in base64, and their names.
const MAX_LINE: u64 = ((MAX_KEY_BYTES + MAX_VALUE_BYTES) * 4 / 3 + 256) as u64;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u64,
    revision: Revision,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Entry { key: String, value: String },
    End { keys: u64, sha256: String },
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) struct Writer {
    out: BufWriter<File>,
    digest: Sha256,
    keys: u64,
    path: PathBuf,
    partial: PathBuf,
}

impl Writer {
    pub(super) fn create(path: &Path, revision: Revision) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        // The content may hold secrets: nobody else may read it.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .map_err(|error| Error::io(format!("creating {}", partial.display()), error))?;
        let mut writer = Self {
            out: BufWriter::new(file),
            digest: Sha256::new(),
            keys: 0,
            path: path.to_owned(),
            partial,
        };
        writer.line(&Header { format: FORMAT.to_owned(), version: VERSION, revision })?;
        Ok(writer)
    }

    pub(super) fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keys += 1;
        let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
        self.line(&Line::Entry { key, value })
    }

    fn line(&mut self, content: &impl Serialize) -> Result<()> {
        let mut line =
            serde_json::to_vec(content).map_err(|error| Error::internal(error.to_string()))?;
        line.push(b'\n');
        self.digest.update(&line);
        self.out.write_all(&line).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(format!("writing {}", self.partial.display()), error)
    }

    pub(super) fn finish(mut self) -> Result<()> {
        let sha256 = hex(&self.digest.clone().finalize());
        self.line(&Line::End { keys: self.keys, sha256 })?;
        self.out.flush().map_err(|error| self.failed(error))?;
        self.out.get_ref().sync_all().map_err(|error| self.failed(error))?;
        selvage_files::rename(&self.partial, &self.path)
            .map_err(|error| Error::io(format!("renaming to {}", self.path.display()), error))
    }
}

pub(super) struct Reader {
    input: BufReader<File>,
    digest: Sha256,
    revision: Revision,
    keys: u64,
    line: u64,
    path: PathBuf,
    last_key: Bytes,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)
            .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
        let mut reader = Self {
            input: BufReader::new(file),
            digest: Sha256::new(),
            revision: 0,
            keys: 0,
            line: 0,
            path: path.to_owned(),
            last_key: Bytes::new(),
        };
        let line = reader.read_line()?;
        let header: Header = serde_json::from_slice(&line)
            .map_err(|error| reader.damaged(format!("no header: {error}")))?;
        if header.format != FORMAT {
            return Err(reader.damaged(format!("its format is {:?}", header.format)));
        }
        if header.version > VERSION {
            let what = format!("export file {}", path.display());
            return Err(Error::NewerFormat { what, found: header.version, supported: VERSION });
        }
        reader.digest.update(&line);
        reader.revision = header.revision;
        Ok(reader)
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    fn damaged(&self, detail: impl std::fmt::Display) -> Error {
        let what = format!("export file {}", self.path.display());
        Error::corrupt(what, format!("line {}: {detail}", self.line))
    }

    fn read_line(&mut self) -> Result<Vec<u8>> {
        self.line += 1;
        let mut line = Vec::new();
        let read = (&mut self.input).take(MAX_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| Error::io(format!("reading {}", self.path.display()), error))?;
        match line.last() {
            Some(b'\n') => Ok(line),
            Some(_) if line.len() as u64 == MAX_LINE => Err(self.damaged("it is too long")),
            _ => Err(self.damaged("the file ends here, it was cut off")),
        }
    }

    /// The next key and value; `None` after the last line, if all was right.
    pub(super) fn next_entry(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let line = self.read_line()?;
        match serde_json::from_slice(&line).map_err(|error| self.damaged(error))? {
            Line::Entry { key, value } => {
                self.digest.update(&line);
                self.keys += 1;
                let decode = |text: String, name: &str| {
                    let bytes = STANDARD.decode(text);
                    bytes.map_err(|error| self.damaged(format!("{name}: {error}")))
                };
                let key = Bytes::from(decode(key, "key")?);
                let value = Bytes::from(decode(value, "value")?);
                check_key(&key).and_then(|()| check_value(&value)).map_err(|e| self.damaged(e))?;
                if key <= self.last_key {
                    return Err(self.damaged("its key does not come after the one before"));
                }
                self.last_key = key.clone();
                Ok(Some((key, value)))
            }
            Line::End { keys, sha256 } => {
                self.check_end(keys, &sha256)?;
                Ok(None)
            }
        }
    }

    fn check_end(&mut self, keys: u64, sha256: &str) -> Result<()> {
        if keys != self.keys {
            return Err(self.damaged(format!("{keys} keys expected, {} found", self.keys)));
        }
        if hex(&self.digest.clone().finalize()) != sha256 {
            return Err(self.damaged("the checksum does not match, the file was altered"));
        }
        let rest = self.input.fill_buf();
        let rest =
            rest.map_err(|error| Error::io(format!("reading {}", self.path.display()), error))?;
        if !rest.is_empty() {
            return Err(self.damaged("there is more after the last line"));
        }
        Ok(())
    }
}
