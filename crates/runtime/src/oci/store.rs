//! Images and their layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    record,
    unpack::{self, Budget},
};
use crate::{
    Error, Image, Result,
    error::During,
    image::{self, Blobs, Descriptor, Named, Resolved},
};

/// Prefix of layers that are not whole yet.
const UNPACKING: &str = "unpacking-";

/// By namespace, by name.
type Names = BTreeMap<String, BTreeMap<String, StoredImage>>;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredImage {
    target: Descriptor,
    /// All blobs that must stay for it.
    blobs: BTreeSet<String>,
    diff_ids: Vec<String>,
    size: u64,
    taken: i64,
    /// Scopes that it was pulled in.
    #[serde(default)]
    scopes: BTreeSet<String>,
}

pub(super) struct Store {
    blobs: Blobs,
    layers: PathBuf,
    file: PathBuf,
    names: Mutex<Names>,
    /// So many bytes of an image may be unpacked.
    limit: u64,
    /// Number of images that are coming in: their blobs are nobody's yet.
    coming: Mutex<usize>,
    untidy: AtomicBool,
}

/// Developer for whom an image came from a registry, of whom nothing good is
/// known.
pub(super) struct Puller {
    pub(super) scope: String,
    /// So many bytes may be unpacked.
    pub(super) limit: u64,
}

/// An image is coming in while this is held.
pub(super) struct ImportGuard<'a>(&'a Store);

impl Drop for ImportGuard<'_> {
    fn drop(&mut self) {
        *self.0.coming.lock() -= 1;
        // It may have failed, or have taken the place of another.
        self.0.untidy.store(true, Ordering::Relaxed);
    }
}

impl Store {
    pub(super) fn open(root: &Path, limit: u64) -> Result<Self> {
        let layers = root.join("layers");
        fs::create_dir_all(&layers).during("making the directory of layers")?;
        let file = root.join("images.json");
        let names = read_names(&file)?;
        let blobs = Blobs::open(root.join("blobs"))?;
        // What was coming in when one of us was killed.
        discard(&root.join("blobs"), "incoming-").during("tidying images up")?;
        discard(&layers, UNPACKING).during("tidying images up")?;
        Ok(Self {
            blobs,
            layers,
            file,
            names: Mutex::new(names),
            limit,
            coming: Mutex::default(),
            untidy: AtomicBool::default(),
        })
    }

    /// To be held from the first blob to the image's name.
    pub(super) fn coming(&self) -> ImportGuard<'_> {
        *self.coming.lock() += 1;
        ImportGuard(self)
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns whether there may be something that nothing needs.
    pub(super) fn is_untidy(&self) -> bool {
        self.untidy.load(Ordering::Relaxed)
    }

    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Returns whether a blob came before for somebody in this scope.
    pub(super) fn has_for(&self, scope: &str, digest: &str) -> bool {
        let names = self.names.lock();
        let mut kept = names.values().flat_map(BTreeMap::values);
        kept.any(|kept| kept.scopes.contains(scope) && kept.blobs.contains(digest))
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
    pub(super) fn take(
        &self,
        namespace: &str,
        named: Named,
        puller: Option<Puller>,
    ) -> Result<Image> {
        let resolved = self.blobs.resolve(&named.target)?;
        let diff_ids = resolved.document.rootfs.diff_ids.clone();
        let mut budget = match &puller {
            Some(puller) => Budget::new(puller.limit).leaving_room(),
            None => Budget::new(self.limit),
        };
        for (number, layer) in resolved.manifest.layers.iter().enumerate() {
            self.unpack(&layer.digest, &diff_ids[..=number], &mut budget)?;
        }
        let mut blobs: BTreeSet<String> =
            resolved.manifest.layers.iter().map(|layer| layer.digest.clone()).collect();
        blobs.insert(resolved.manifest.config.digest.clone());
        blobs.insert(resolved.target.digest.clone());
        let mut kept = StoredImage {
            scopes: puller.into_iter().map(|puller| puller.scope).collect(),
            size: resolved.size(),
            target: resolved.target,
            blobs,
            diff_ids,
            taken: Timestamp::now().as_millisecond(),
        };
        let image = kept.image(&named.name);
        self.settle(&kept)?;
        let mut names = self.names.lock();
        let mut changed = names.clone();
        let images = changed.entry(namespace.to_owned()).or_default();
        if let Some(before) = images.remove(&named.name).filter(|of| of.target == kept.target) {
            kept.scopes.extend(before.scopes);
        }
        images.insert(named.name, kept);
        record::write(&self.file, &changed)?;
        *names = changed;
        Ok(image)
    }

    /// Waits until the disk has all of an image: a layer that an image or a
    /// container names is whole, also after a power cut.
    fn settle(&self, image: &StoredImage) -> Result<()> {
        let known = |kept: &StoredImage| {
            kept.diff_ids == image.diff_ids && kept.blobs.is_superset(&image.blobs)
        };
        if self.names.lock().values().flat_map(BTreeMap::values).any(known) {
            return Ok(());
        }
        let layers = fs::File::open(&self.layers).during("keeping an image")?;
        rustix::fs::syncfs(layers).during("keeping an image")
    }

    /// Removes layers that neither an image nor one of these layers of
    /// containers names: of those nobody knows how much a power cut has left.
    /// To be called before anything is unpacked.
    pub(super) fn discard_unsettled(&self, in_use: &BTreeSet<PathBuf>) -> Result<()> {
        let names = self.names.lock();
        let kept = names.values().flat_map(BTreeMap::values);
        let settled: BTreeSet<PathBuf> =
            kept.flat_map(|kept| self.layers_of(&kept.diff_ids)).collect();
        self.discard_layers(|layer| settled.contains(layer) || in_use.contains(layer))
    }

    fn discard_layers(&self, is_kept: impl Fn(&PathBuf) -> bool) -> Result<()> {
        for entry in fs::read_dir(&self.layers).during("listing layers")? {
            let path = entry.during("listing layers")?.path();
            if !is_kept(&path) {
                unpack::remove_all(&path).during("removing a layer")?;
            }
        }
        Ok(())
    }

    /// Forgets a name; what only it needs is left for [`sweep`](Self::sweep).
    pub(super) fn forget(&self, namespace: &str, name: &str) -> Result<()> {
        let mut names = self.names.lock();
        let mut changed = names.clone();
        let images = changed.get_mut(namespace);
        if images.and_then(|images| images.remove(name)).is_none() {
            return Err(Error::ImageNotFound { name: name.to_owned() });
        }
        changed.retain(|_, images| !images.is_empty());
        record::write(&self.file, &changed)?;
        *names = changed;
        self.untidy.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Removes everything that neither an image nor one of these layers of
    /// containers needs. Nobody may be unpacking or making anything.
    pub(super) fn sweep(&self, in_use: &BTreeSet<PathBuf>) -> Result<()> {
        self.untidy.store(false, Ordering::Relaxed);
        let names = self.names.lock();
        let kept = || names.values().flat_map(BTreeMap::values);
        let blobs: BTreeSet<&String> = kept().flat_map(|kept| &kept.blobs).collect();
        {
            let coming = self.coming.lock();
            for blob in self.blobs.all()? {
                if *coming == 0 && !blobs.contains(&blob) {
                    self.blobs.remove(&blob)?;
                }
            }
        }
        let layers: BTreeSet<PathBuf> =
            kept().flat_map(|kept| self.layers_of(&kept.diff_ids)).collect();
        self.discard_layers(|layer| layers.contains(layer) || in_use.contains(layer))
    }

    /// Paths of the layers of an image, the lowest first.
    pub(super) fn layers_of(&self, diff_ids: &[String]) -> Vec<PathBuf> {
        let place = |number: usize| {
            let above = self.layer(&diff_ids[..=number]);
            // Earlier versions unpacked each layer as if nothing were below.
            if above.is_dir() { above } else { self.directory(&diff_ids[number]) }
        };
        (0..diff_ids.len()).map(place).collect()
    }

    /// Path of the topmost of these layers. It depends on all below it.
    fn layer(&self, diff_ids: &[String]) -> PathBuf {
        self.directory(&image::chain_id(diff_ids).unwrap_or_default())
    }

    /// Half of the digest is unique enough, and the less there is to say, the
    /// more layers fit into a mount.
    fn directory(&self, digest: &str) -> PathBuf {
        let hex = image::hex_of(digest).unwrap_or_default();
        self.layers.join(hex.get(..32).unwrap_or_default())
    }

    /// Unpacks the topmost of these layers, unless that is done.
    fn unpack(&self, blob: &str, diff_ids: &[String], budget: &mut Budget) -> Result<()> {
        let Some((diff_id, below)) = diff_ids.split_last() else { return Ok(()) };
        image::hex_of(diff_id)?;
        let layer = self.layer(diff_ids);
        if layer.is_dir() {
            // The digest of a layer is no secret. Whoever has a blob of that
            // content may have the layer, and not who only names it.
            return unpack::check(&self.blobs.path(blob)?, diff_id, budget);
        }
        let temporary = self.layers.join(format!("{UNPACKING}{}", crate::unique()));
        fs::create_dir(&temporary).during("making a layer")?;
        let mut below = self.layers_of(below);
        below.reverse();
        let blob = self.blobs.path(blob)?;
        let unpacked = unpack::layer(&blob, &temporary, &below, diff_id, budget);
        let kept = unpacked.and_then(|()| match fs::rename(&temporary, &layer) {
            // Somebody was faster.
            Err(_) if layer.is_dir() => Ok(()),
            kept => kept.during("keeping a layer"),
        });
        let _ = unpack::remove_all(&temporary);
        kept
    }
}

/// Reads which images there are. A record that is damaged is begun anew: images
/// are fetched again when they are next needed, and containers have records of
/// their own.
fn read_names(file: &Path) -> Result<Names> {
    if !file.exists() {
        return Ok(Names::new());
    }
    match record::read(file) {
        Err(error @ Error::Damaged { .. }) => {
            warn!(%error, "the record of images is begun anew");
            Ok(Names::new())
        }
        read => read,
    }
}

/// Removes what has such a name.
fn discard(directory: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl StoredImage {
    fn image(&self, name: &str) -> Image {
        Image {
            name: name.to_owned(),
            digest: self.target.digest.clone(),
            size: self.size,
            created: Timestamp::from_millisecond(self.taken).ok(),
        }
    }
}
