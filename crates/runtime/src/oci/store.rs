//! Images and their layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{record, unpack};
use crate::{
    Error, Image, Result,
    error::During,
    image::{self, Blobs, Descriptor, Named, Resolved},
};

/// By namespace, by name.
type Names = BTreeMap<String, BTreeMap<String, Kept>>;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    target: Descriptor,
    /// All blobs that must stay for it.
    blobs: BTreeSet<String>,
    diff_ids: Vec<String>,
    size: u64,
    taken: i64,
}

pub(super) struct Store {
    blobs: Blobs,
    layers: PathBuf,
    file: PathBuf,
    names: Mutex<Names>,
}

impl Store {
    pub(super) fn open(root: &Path) -> Result<Self> {
        let layers = root.join("layers");
        fs::create_dir_all(&layers).during("making the directory of layers")?;
        let file = root.join("images.json");
        let names = if file.exists() { record::read(&file)? } else { Names::new() };
        let blobs = Blobs::open(root.join("blobs"))?;
        Ok(Self { blobs, layers, file, names: Mutex::new(names) })
    }

    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    pub(super) fn images(&self, namespace: &str) -> Vec<Image> {
        let names = self.names.lock();
        let images = names.get(namespace).into_iter().flatten();
        images.map(|(name, kept)| kept.image(name)).collect()
    }

    /// The image by that name, looked up in full.
    pub(super) fn resolve(&self, namespace: &str, name: &str) -> Result<Resolved> {
        let target = {
            let names = self.names.lock();
            let kept = names.get(namespace).and_then(|images| images.get(name));
            kept.map(|kept| kept.target.clone())
        };
        let target = target.ok_or_else(|| Error::ImageNotFound { name: name.to_owned() })?;
        self.blobs.resolve(&target)
    }

    /// Unpacks an image whose blobs are here, and gives it its name.
    pub(super) fn take(&self, namespace: &str, named: Named) -> Result<Image> {
        let resolved = self.blobs.resolve(&named.target)?;
        let diff_ids = resolved.document.rootfs.diff_ids.clone();
        for (layer, diff_id) in resolved.manifest.layers.iter().zip(&diff_ids) {
            self.unpack(&layer.digest, diff_id)?;
        }
        let mut blobs: BTreeSet<String> =
            resolved.manifest.layers.iter().map(|layer| layer.digest.clone()).collect();
        blobs.insert(resolved.manifest.config.digest.clone());
        blobs.insert(resolved.target.digest.clone());
        let kept = Kept {
            size: resolved.size(),
            target: resolved.target,
            blobs,
            diff_ids,
            taken: Timestamp::now().as_millisecond(),
        };
        let image = kept.image(&named.name);
        let mut names = self.names.lock();
        let mut changed = names.clone();
        changed.entry(namespace.to_owned()).or_default().insert(named.name, kept);
        record::write(&self.file, &changed)?;
        *names = changed;
        Ok(image)
    }

    /// Forgets a name, and everything that neither another image nor one of
    /// these layers of containers needs.
    pub(super) fn remove(
        &self,
        namespace: &str,
        name: &str,
        in_use: &BTreeSet<String>,
    ) -> Result<()> {
        let mut names = self.names.lock();
        let mut changed = names.clone();
        let images = changed.get_mut(namespace);
        if images.and_then(|images| images.remove(name)).is_none() {
            return Err(Error::ImageNotFound { name: name.to_owned() });
        }
        changed.retain(|_, images| !images.is_empty());
        record::write(&self.file, &changed)?;
        *names = changed;
        let kept = || names.values().flat_map(BTreeMap::values);
        let blobs: BTreeSet<&String> = kept().flat_map(|kept| &kept.blobs).collect();
        for blob in self.blobs.all()? {
            if !blobs.contains(&blob) {
                self.blobs.remove(&blob)?;
            }
        }
        let mut layers: BTreeSet<PathBuf> =
            kept().flat_map(|kept| &kept.diff_ids).map(|id| self.layer(id)).collect();
        layers.extend(in_use.iter().map(|id| self.layer(id)));
        for entry in fs::read_dir(&self.layers).during("listing layers")? {
            let path = entry.during("listing layers")?.path();
            if !layers.contains(&path) {
                unpack::remove_all(&path).during("removing a layer")?;
            }
        }
        Ok(())
    }

    /// Where a layer is. Half of the digest is unique enough, and the less
    /// there is to say, the more layers fit into a mount.
    pub(super) fn layer(&self, diff_id: &str) -> PathBuf {
        let hex = image::hex_of(diff_id).unwrap_or_default();
        self.layers.join(hex.get(..32).unwrap_or_default())
    }

    fn unpack(&self, blob: &str, diff_id: &str) -> Result<()> {
        image::hex_of(diff_id)?;
        let layer = self.layer(diff_id);
        if layer.is_dir() {
            return Ok(());
        }
        let temporary = self.layers.join(format!("unpacking-{}", crate::unique()));
        fs::create_dir(&temporary).during("making a layer")?;
        let unpacked = unpack::layer(&self.blobs.path(blob)?, &temporary, diff_id);
        let kept = unpacked.and_then(|()| match fs::rename(&temporary, &layer) {
            // Somebody was faster.
            Err(_) if layer.is_dir() => Ok(()),
            kept => kept.during("keeping a layer"),
        });
        let _ = unpack::remove_all(&temporary);
        kept
    }
}

impl Kept {
    fn image(&self, name: &str) -> Image {
        Image {
            name: name.to_owned(),
            digest: self.target.digest.clone(),
            size: self.size,
            created: Timestamp::from_millisecond(self.taken).ok(),
        }
    }
}
