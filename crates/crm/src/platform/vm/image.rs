//! Images of machines: fetched once, checked, and kept by what is in them, so
//! that a disk that builds on one never sees it change.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use md5::Md5;
use selvage_fetch::{
    Failure, Fetcher, Request, Response, StatusCode, Url,
    header::{self, HeaderName, HeaderValue},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Options, qcow2,
    source::{Location, Source},
};
use crate::{
    Error, ImageFolders, Result,
    error::During,
    platform::{InstanceOrder, downloads::Downloads},
};

/// Time for a whole image.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(1800);
/// Room on the disk that no image takes.
const RESERVE: u64 = 1 << 30;
/// Bytes between two looks at how much room there is.
const ROOM_INTERVAL: u64 = 64 << 20;
const GIB: u64 = 1 << 30;
/// Age at which an image that no machine uses is removed.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);
const PIECE: usize = 256 << 10;
/// Extension of an image that is being fetched.
const PART: &str = "part";
const IMAGE: &str = "qcow2";
const NOTE: &str = "json";

/// An image that is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) path: PathBuf,
    /// Of the disk that a machine sees.
    pub(super) size: u64,
}

/// An image that an instance wants.
pub(super) struct ImageRequest<'a> {
    pub(super) path: &'a str,
    pub(super) developer: &'a str,
    /// Size of the disk that it has to fit into.
    pub(super) disk: Option<u64>,
}

impl<'a> ImageRequest<'a> {
    pub(super) fn of(order: &'a InstanceOrder) -> Self {
        let disk = order.flavor.disk;
        Self {
            path: &order.app.image_path,
            developer: order.developer(),
            disk: (disk > 0).then(|| disk.saturating_mul(GIB)),
        }
    }

    /// Bytes that an image of that disk can have: its content, and tables.
    fn limit(&self) -> u64 {
        self.disk.map_or(u64::MAX, |disk| disk.saturating_add(disk / 64).saturating_add(64 << 20))
    }
}

/// Note on the image at an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) sha256: String,
    pub(super) md5: String,
    size: u64,
    version: Version,
}

/// By which a change is seen without fetching.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    tag: Option<String>,
    modified: Option<String>,
    length: Option<u64>,
}

pub(super) struct Images {
    directory: PathBuf,
    folders: ImageFolders,
    fetcher: Fetcher,
    downloads: Downloads,
    /// Held for reading while images come, for writing to remove some.
    coming: tokio::sync::RwLock<()>,
}

/// Outcome of asking for an image.
enum ImageReply {
    Unchanged,
    /// Nobody could say whether the image may be had still.
    Away(Error),
    Coming(Box<Response>, Version),
    Here(PathBuf, Version),
}

impl Images {
    pub(super) fn open(directory: PathBuf, options: &Options) -> Result<Self> {
        std::fs::create_dir_all(&directory).during("making a place for images")?;
        // What was being fetched when an earlier process ended.
        for end in [PART, selvage_files::UNFINISHED] {
            for path in with_end(&directory, end)? {
                std::fs::remove_file(path).during("tidying images up")?;
            }
        }
        Ok(Self {
            directory,
            folders: options.images.clone(),
            fetcher: Fetcher::new(options.policy.clone()),
            downloads: Downloads::default(),
            coming: tokio::sync::RwLock::default(),
        })
    }

    /// Sees that an image is here, as it is where it comes from.
    pub(super) async fn provide(&self, wish: &ImageRequest<'_>) -> Result<Image> {
        let mut source = Source::parse(wish.path)?;
        if let Location::File(file) = &mut source.place {
            *file = self.folders.find(file)?;
        }
        let _turn = self.downloads.turn(wish.developer).await;
        let _coming = self.coming.read().await;
        let late = |_| Error::state("the image did not come in time");
        tokio::time::timeout(DOWNLOAD_TIMEOUT, self.find(&source, wish.limit()))
            .await
            .map_err(late)?
    }

    async fn find(&self, source: &Source, limit: u64) -> Result<Image> {
        let kept = self.kept(source);
        let known = kept.as_ref().map(|note| note.version.clone());
        // One that is refused now is not to be had, whoever fetched it before.
        let asked = self.ask(source, known.as_ref()).await?;
        let usable = kept.filter(|note| source.check(note).is_ok());
        match (asked, usable) {
            (ImageReply::Unchanged, Some(note)) => self.used(source, &note),
            // It may be had, and what would come is known.
            (ImageReply::Coming(..) | ImageReply::Here(..), Some(note))
                if source.checksum.is_some() =>
            {
                self.used(source, &note)
            }
            (ImageReply::Away(error), Some(note)) => {
                tracing::warn!(%error, "the image was not looked for again, the one here is used");
                self.used(source, &note)
            }
            (ImageReply::Away(error), None) => Err(error),
            (ImageReply::Unchanged, None) => {
                let asked = self.ask(source, None).await?;
                self.take(source, asked, limit).await
            }
            (asked, _) => self.take(source, asked, limit).await,
        }
    }

    fn kept(&self, source: &Source) -> Option<Note> {
        let text = std::fs::read(self.note_path(source)).ok()?;
        let note: Note = serde_json::from_slice(&text).ok()?;
        self.image_path(&note).is_file().then_some(note)
    }

    fn note_path(&self, source: &Source) -> PathBuf {
        self.directory.join(format!("{}.{NOTE}", source.name()))
    }

    fn image_path(&self, note: &Note) -> PathBuf {
        self.directory.join(format!("{}.{IMAGE}", note.sha256))
    }

    fn used(&self, source: &Source, note: &Note) -> Result<Image> {
        // How long ago it was used is the note's age.
        self.write_note(source, note)?;
        Ok(Image { path: self.image_path(note), size: note.size })
    }

    fn write_note(&self, source: &Source, note: &Note) -> Result<()> {
        let path = self.note_path(source);
        let text = serde_json::to_vec(note).map_err(std::io::Error::other);
        text.and_then(|text| selvage_files::replace(&path, &text, 0o600)).during("noting an image")
    }

    async fn ask(&self, source: &Source, known: Option<&Version>) -> Result<ImageReply> {
        match &source.place {
            Location::File(path) => {
                let metadata = tokio::fs::metadata(path).await;
                let metadata =
                    metadata.map_err(|source| Error::File { path: path.clone(), source })?;
                // A device may never end, and what is on it is not for guests; a
                // pipe may never begin.
                if !metadata.is_file() {
                    let reason = format!("{} is not a file", path.display());
                    return Err(Error::invalid("image_path", reason));
                }
                let modified = metadata.modified().during("looking at an image")?;
                let version = Version {
                    modified: Some(format!("{modified:?}")),
                    length: Some(metadata.len()),
                    tag: None,
                };
                if known == Some(&version) {
                    return Ok(ImageReply::Unchanged);
                }
                Ok(ImageReply::Here(path.clone(), version))
            }
            Location::Web(url) => self.ask_web(url, known).await,
        }
    }

    async fn ask_web(&self, url: &Url, known: Option<&Version>) -> Result<ImageReply> {
        let tag = known.and_then(|version| version.tag.as_deref());
        let modified = known.and_then(|version| version.modified.as_deref());
        let request = with_header(Request::get_with_login(url), header::IF_NONE_MATCH, tag);
        let request = with_header(request, header::IF_MODIFIED_SINCE, modified);
        let failed = |text: String| {
            let host = url.host_str().unwrap_or_default();
            Error::state(format!("the image cannot be fetched from {host}: {text}"))
        };
        let response = match self.fetcher.send(request).await {
            Ok(response) => response,
            Err(failure @ Failure::Unreachable(_)) => {
                return Ok(ImageReply::Away(failed(failure.to_string())));
            }
            Err(failure) => return Err(failed(failure.to_string())),
        };
        match response.status() {
            StatusCode::NOT_MODIFIED => Ok(ImageReply::Unchanged),
            StatusCode::OK => {
                let text = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
                let version = Version {
                    tag: text(header::ETAG),
                    modified: text(header::LAST_MODIFIED),
                    length: response.content_length(),
                };
                Ok(ImageReply::Coming(Box::new(response), version))
            }
            status => {
                let error = failed(format!("it answers {status}"));
                if is_passing(status) { Ok(ImageReply::Away(error)) } else { Err(error) }
            }
        }
    }

    /// Takes an image in whole, or not at all.
    async fn take(&self, source: &Source, asked: ImageReply, limit: u64) -> Result<Image> {
        let unique = uuid::Uuid::new_v4().simple();
        let part = Part(self.directory.join(format!("{}.{unique}.{PART}", source.name())));
        let length = match &asked {
            ImageReply::Coming(_, version) | ImageReply::Here(_, version) => version.length,
            ImageReply::Away(_) | ImageReply::Unchanged => return Err(Error::missing("the image")),
        };
        self.check_room(length.unwrap_or_default())?;
        check_limit(length.unwrap_or_default(), limit)?;
        let mut taking = Taking::new(&part.0).await?;
        let version = match asked {
            ImageReply::Coming(mut response, version) => {
                let cut =
                    |error| Error::state(format!("the image did not come: {}", describe(error)));
                while let Some(piece) = response.chunk().await.map_err(cut)? {
                    // Not every server says how much it sends.
                    let before = taking.length / ROOM_INTERVAL;
                    taking.add(&piece).await?;
                    check_limit(taking.length, limit)?;
                    if taking.length / ROOM_INTERVAL != before {
                        self.check_room(0)?;
                    }
                }
                version
            }
            ImageReply::Here(path, version) => {
                let mut file = tokio::fs::File::open(&path)
                    .await
                    .map_err(|source| Error::File { path, source })?;
                let mut piece = vec![0; PIECE];
                loop {
                    let length = file.read(&mut piece).await.during("reading an image")?;
                    if length == 0 {
                        break version;
                    }
                    taking.add(&piece[..length]).await?;
                }
            }
            ImageReply::Away(error) => return Err(error),
            ImageReply::Unchanged => return Err(Error::missing("the image")),
        };
        let mut note = taking.finish().await?;
        source.check(&note)?;
        // Whatever else is in it is for the process of a machine to read, as
        // that machine's user.
        let size = qcow2::check(&part.0).during("reading an image")?;
        note.size = size.map_err(|reason| Error::invalid("image_path", reason))?;
        note.version = version;
        let path = self.image_path(&note);
        std::fs::set_permissions(&part.0, PermissionsExt::from_mode(0o444))
            .and_then(|()| selvage_files::rename(&part.0, &path))
            .during("keeping an image")?;
        self.used(source, &note)
    }

    fn check_room(&self, length: u64) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.directory).map_err(std::io::Error::from);
        let disk = disk.during("measuring the disk")?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if length.saturating_add(RESERVE) < free {
            return Ok(());
        }
        let (needs, free) = (length >> 20, free.saturating_sub(RESERVE) >> 20);
        Err(Error::state(format!("the image has {needs} MB and the disk has room for {free}")))
    }

    /// Removes images that none of these disks builds on: those that others
    /// took the place of, and those that were not asked for in a long time.
    pub(super) fn tidy(&self, used: &[PathBuf]) -> Result<Vec<String>> {
        // Somebody who fetches one may take long, and nobody shall wait.
        let Ok(_alone) = self.coming.try_write() else { return Ok(Vec::new()) };
        let mut current = Vec::new();
        for path in with_end(&self.directory, NOTE)? {
            let note = std::fs::read(&path).ok();
            let note: Option<Note> = note.and_then(|text| serde_json::from_slice(&text).ok());
            let age = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
            let age = age.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
            match note {
                Some(note) if age.is_none_or(|age| age < UNUSED) => {
                    current.push(self.image_path(&note));
                }
                Some(note) if used.contains(&self.image_path(&note)) => {}
                _ => std::fs::remove_file(&path).during("tidying images up")?,
            }
        }
        let mut removed = Vec::new();
        for path in with_end(&self.directory, IMAGE)? {
            if !used.contains(&path) && !current.contains(&path) {
                std::fs::remove_file(&path).during("tidying images up")?;
                removed.push(format!("image {}", path.display()));
            }
        }
        Ok(removed)
    }
}

/// Returns whether the server answers so when it has no time, whoever asks.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

fn check_limit(length: u64, limit: u64) -> Result<()> {
    if length <= limit {
        return Ok(());
    }
    let reason = format!("the image has more than the {} MB that fit the flavor", limit >> 20);
    Err(Error::invalid("image_path", reason))
}

fn with_header(request: Request, name: HeaderName, value: Option<&str>) -> Request {
    match value.and_then(|value| HeaderValue::from_str(value).ok()) {
        Some(value) => request.header(name, value),
        None => request,
    }
}

/// Without the address, which may have a password in it.
fn describe(error: selvage_fetch::TransferError) -> String {
    selvage_api::chain(&error.without_url())
}

fn with_end(directory: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).during("looking at images")?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|found| found == end)).collect())
}

/// A file that goes if it was not given another name.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes and counts at once.
struct Taking {
    length: u64,
    file: tokio::fs::File,
    sha256: Sha256,
    md5: Md5,
}

impl Taking {
    async fn new(path: &Path) -> Result<Self> {
        let file = tokio::fs::File::create(path).await.during("writing an image")?;
        Ok(Self { length: 0, file, sha256: Sha256::new(), md5: Md5::new() })
    }

    async fn add(&mut self, piece: &[u8]) -> Result<()> {
        self.length += piece.len() as u64;
        self.sha256.update(piece);
        self.md5.update(piece);
        self.file.write_all(piece).await.during("writing an image")
    }

    async fn finish(mut self) -> Result<Note> {
        self.file.flush().await.during("writing an image")?;
        self.file.sync_all().await.during("writing an image")?;
        Ok(Note {
            sha256: hex::encode(self.sha256.finalize()),
            md5: hex::encode(self.md5.finalize()),
            ..Note::default()
        })
    }
}

#[cfg(test)]
mod tests;
