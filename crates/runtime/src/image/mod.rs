//! Images: manifests, blobs kept by their digest, and the two ways they come
//! in, from an OCI layout or from a registry.

mod build;
mod layout;
mod registry;
mod room;

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Error, Result, error::During, spec::ImageDocument};
pub use build::ImageBuilder;
pub(crate) use layout::import;
pub(crate) use registry::pull;
pub(crate) use room::Room;

pub(crate) const INDEX: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
pub(crate) const MANIFEST: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Bytes that an image may have, packed and unpacked, where nobody says less.
pub(crate) const LARGEST_IMAGE: u64 = 16 << 30;

/// Manifests and configurations larger than this are somebody's mischief.
pub(crate) const LARGEST_DOCUMENT: u64 = 4 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
}

/// This machine's, in the words of images.
fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Platform {
    fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == own_architecture()
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// An image as somebody calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub name: String,
    pub target: Descriptor,
}

/// An image for this kind of machine, looked up in full.
pub(crate) struct Resolved {
    pub target: Descriptor,
    pub manifest: Manifest,
    pub document: ImageDocument,
}

impl Resolved {
    /// Of everything it consists of.
    pub(crate) fn size(&self) -> u64 {
        // Sizes are what somebody wrote into a manifest.
        let parts = [&self.manifest.config, &self.target].into_iter().chain(&self.manifest.layers);
        parts.fold(0, |size, part| size.saturating_add(part.size))
    }
}

/// `sha256:` and 64 hexadecimal digits, and nothing else: it becomes a path.
pub(crate) fn hex_of(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    });
    hex.ok_or_else(|| Error::invalid("digest", format!("{digest:?} is not a sha256 digest")))
}

/// The identity of a stack of layers.
pub(crate) fn chain_id(diff_ids: &[String]) -> Option<String> {
    let mut ids = diff_ids.iter();
    let mut chain = ids.next()?.clone();
    for id in ids {
        chain = digest_of(format!("{chain} {id}").as_bytes());
    }
    Some(chain)
}

/// Of an image that would fill the disk.
pub(crate) fn too_large(limit: u64) -> Error {
    let text = format!("the image has more than the {} MiB that one may have", limit >> 20);
    Error::Refused { code: selvage_api::Code::ResourceExhausted, text }
}

pub(crate) fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Blobs in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    directory: PathBuf,
}

impl Blobs {
    pub(crate) fn open(directory: PathBuf) -> Result<Self> {
        fs::create_dir_all(directory.join("sha256")).during("making the directory of blobs")?;
        Ok(Self { directory })
    }

    pub(crate) fn path(&self, digest: &str) -> Result<PathBuf> {
        Ok(self.directory.join("sha256").join(hex_of(digest)?))
    }

    /// Room on the disk that has them.
    pub(crate) fn room(&self) -> Room {
        Room::at(&self.directory)
    }

    pub(crate) fn has(&self, digest: &str) -> Result<bool> {
        Ok(self.path(digest)?.is_file())
    }

    pub(crate) fn remove(&self, digest: &str) -> Result<()> {
        match fs::remove_file(self.path(digest)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).during("removing a blob")
            }
            _ => Ok(()),
        }
    }

    /// All digests that are here.
    pub(crate) fn all(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.directory.join("sha256")).during("listing blobs")?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.map(|hex| format!("sha256:{hex}")).filter(|d| hex_of(d).is_ok()).collect())
    }

    /// Takes in bytes that must have this digest.
    pub(crate) fn writer(&self, digest: &str) -> Result<BlobWriter> {
        let path = self.path(digest)?;
        let temporary = self.directory.join(format!(
            "incoming-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        ));
        let file = fs::File::create(&temporary).during("making a blob")?;
        Ok(BlobWriter {
            file,
            hasher: Sha256::new(),
            temporary: Temporary(temporary),
            path,
            digest: digest.to_owned(),
        })
    }

    pub(crate) fn add(&self, digest: &str, mut from: impl Read) -> Result<()> {
        if self.has(digest)? {
            return Ok(());
        }
        let mut writer = self.writer(digest)?;
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = from.read(&mut piece).during("reading a blob")?;
            if length == 0 {
                return writer.finish();
            }
            writer.write(&piece[..length])?;
        }
    }

    fn document<T: for<'a> Deserialize<'a>>(&self, descriptor: &Descriptor) -> Result<T> {
        let path = self.path(&descriptor.digest)?;
        let damaged = |reason: String| Error::Damaged { what: descriptor.digest.clone(), reason };
        let file = fs::File::open(&path).map_err(|error| damaged(error.to_string()))?;
        let mut bytes = Vec::new();
        file.take(LARGEST_DOCUMENT + 1).read_to_end(&mut bytes).during("reading a manifest")?;
        if bytes.len() as u64 > LARGEST_DOCUMENT {
            return Err(damaged("it is larger than 4 MiB".into()));
        }
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
    }

    /// The image for this machine that a manifest or an index stands for.
    pub(crate) fn resolve(&self, target: &Descriptor) -> Result<Resolved> {
        let value: serde_json::Value = self.document(target)?;
        let target = if value.get("manifests").is_some() {
            let index: Index = parse(value, &target.digest)?;
            ours(index.manifests, &target.digest)?
        } else {
            target.clone()
        };
        let manifest: Manifest = self.document(&target)?;
        let document: ImageDocument = self.document(&manifest.config)?;
        if document.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(Error::Damaged {
                what: target.digest,
                reason: "manifest and configuration disagree about the layers".into(),
            });
        }
        for id in &document.rootfs.diff_ids {
            hex_of(id)?;
        }
        Ok(Resolved { target, manifest, document })
    }
}

fn parse<T: for<'a> Deserialize<'a>>(value: serde_json::Value, what: &str) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::Damaged { what: what.to_owned(), reason: error.to_string() })
}

/// The manifest of an index that is for this machine.
pub(crate) fn ours(manifests: Vec<Descriptor>, what: &str) -> Result<Descriptor> {
    let fits = |d: &Descriptor| d.platform.as_ref().is_none_or(Platform::is_ours);
    manifests.into_iter().find(fits).ok_or_else(|| {
        Error::invalid("image", format!("{what} has nothing for linux/{}", std::env::consts::ARCH))
    })
}

/// Any bytes as the documents of an image.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(index) = serde_json::from_slice::<Index>(bytes) {
        let _ = ours(index.manifests, "fuzz");
    }
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
        for descriptor in manifest.layers.iter().chain([&manifest.config]) {
            // It becomes a path.
            if let Ok(hex) = hex_of(&descriptor.digest) {
                assert!(hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hex}");
            }
        }
        let (target, document) = (Descriptor::default(), ImageDocument::default());
        let _ = Resolved { target, manifest, document }.size();
    }
    if let Ok(document) = serde_json::from_slice::<ImageDocument>(bytes) {
        let _ = chain_id(&document.rootfs.diff_ids);
    }
}

/// Any bytes as a reply of a registry, or as the name of an image.
pub(crate) fn fuzz_registry(bytes: &[u8]) {
    registry::fuzz(bytes);
}

static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Removed unless it was renamed.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A blob on its way in. It appears when it is whole and right, or not at all.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    file: fs::File,
    hasher: Sha256,
    temporary: Temporary,
    path: PathBuf,
    digest: String,
}

impl BlobWriter {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).during("writing a blob")
    }

    pub(crate) fn finish(self) -> Result<()> {
        let found = format!("sha256:{}", hex::encode(self.hasher.finalize()));
        if found != self.digest {
            return Err(Error::Damaged { what: self.digest, reason: format!("it is {found}") });
        }
        self.file.sync_all().during("writing a blob")?;
        fs::rename(&self.temporary.0, &self.path).during("keeping a blob")
    }
}

/// A reader of what a layer holds, by what it begins with: what its media
/// type says is wrong often enough.
pub(crate) fn decompressed(path: &Path) -> Result<Box<dyn Read>> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let mut file = fs::File::open(path).during("opening a layer")?;
    let mut head = [0u8; 4];
    let length = file.read(&mut head).during("reading a layer")?;
    let file = io::BufReader::with_capacity(
        256 << 10,
        io::Cursor::new(head).take(length as u64).chain(file),
    );
    if head.starts_with(&GZIP) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(file)));
    }
    if head == ZSTD {
        let decoder = ruzstd::decoding::StreamingDecoder::new(file).map_err(|error| {
            Error::Damaged { what: path.display().to_string(), reason: error.to_string() }
        })?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(file))
}
