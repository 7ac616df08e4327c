//! OCI layouts: a directory, or a tar of one.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Component, Path},
};

use super::{Blobs, Descriptor, Index, LARGEST_DOCUMENT, Manifest, Named};
use crate::{Error, Result, error::During};

/// Names by which tools write down what an image is called, best first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Takes all blobs that the layout's images need, and says what they are
/// called.
pub(crate) fn import(path: &Path, blobs: &Blobs, name: Option<&str>) -> Result<Vec<Named>> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::invalid("path", format!("{} does not exist", path.display()))
        }
        _ => Error::Io { doing: "looking at the layout", error },
    })?;
    let index = match metadata.file_type() {
        kind if kind.is_dir() => from_directory(path, blobs)?,
        kind if kind.is_file() => from_tar(path, blobs)?,
        // Pipes and devices: reading them may never end.
        _ => return Err(Error::invalid("path", "is neither a file nor a folder")),
    };
    let index: Index = serde_json::from_slice(&index)
        .map_err(|error| Error::invalid("path", format!("its index.json is damaged: {error}")))?;
    let images = named(index, name)?;
    for image in &images {
        require(blobs, &image.target)?;
    }
    Ok(images)
}

fn named(index: Index, name: Option<&str>) -> Result<Vec<Named>> {
    if index.manifests.is_empty() {
        return Err(Error::invalid("path", "the layout holds no image"));
    }
    if index.manifests.len() > 1 && name.is_some() {
        return Err(Error::invalid("name", "the layout holds several images"));
    }
    let said = |annotations: &BTreeMap<String, String>| {
        NAMES.iter().find_map(|key| annotations.get(*key)).cloned()
    };
    index
        .manifests
        .into_iter()
        .map(|target| {
            let name = name
                .map(str::to_owned)
                .or_else(|| target.annotations.as_ref().and_then(said))
                .unwrap_or_else(|| target.digest.clone());
            Ok(Named { name, target })
        })
        .collect()
}

/// Fails unless everything the image for this machine needs is there.
fn require(blobs: &Blobs, target: &Descriptor) -> Result<()> {
    let Manifest { layers, .. } = blobs.resolve(target)?.manifest;
    for layer in layers {
        if !blobs.has(&layer.digest)? {
            return Err(Error::invalid("path", format!("the layout lacks {}", layer.digest)));
        }
    }
    Ok(())
}

fn from_directory(path: &Path, blobs: &Blobs) -> Result<Vec<u8>> {
    let index = fs::read(path.join("index.json"))
        .map_err(|_| Error::invalid("path", "is not an OCI layout: there is no index.json"))?;
    let directory = path.join("blobs/sha256");
    for entry in fs::read_dir(directory).during("listing the layout")? {
        let entry = entry.during("listing the layout")?;
        let Some(digest) = entry.file_name().to_str().map(|hex| format!("sha256:{hex}")) else {
            continue;
        };
        if super::hex_of(&digest).is_ok() && entry.path().is_file() {
            let file = fs::File::open(entry.path()).during("opening a blob of the layout")?;
            blobs.add(&digest, file)?;
        }
    }
    Ok(index)
}

fn from_tar(path: &Path, blobs: &Blobs) -> Result<Vec<u8>> {
    // In its own words an error quotes the file, which may be anybody's.
    let bad =
        |error: std::io::Error| Error::invalid("path", format!("is no tar: {}", error.kind()));
    let mut archive = tar::Archive::new(super::decompressed(path)?);
    let mut index = None;
    for entry in archive.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let name = entry.path().map_err(bad)?.into_owned();
        let parts: Vec<&str> = name
            .components()
            .filter(|part| *part != Component::CurDir)
            .filter_map(|part| part.as_os_str().to_str())
            .collect();
        match parts.as_slice() {
            ["index.json"] => {
                let mut bytes = Vec::new();
                (&mut entry).take(LARGEST_DOCUMENT).read_to_end(&mut bytes).map_err(bad)?;
                index = Some(bytes);
            }
            ["blobs", "sha256", hex]
                if !hex.is_empty() && entry.header().entry_type().is_file() =>
            {
                let digest = format!("sha256:{hex}");
                blobs.add(&digest, &mut entry)?;
            }
            _ => {}
        }
    }
    index.ok_or_else(|| Error::invalid("path", "is not an OCI layout: there is no index.json"))
}
