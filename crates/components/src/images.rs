//! Images that no registry has to be asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use parking_lot::Mutex;
use selvage_api::Code;
use selvage_runtime::{
    ImageBuilder, Runtime,
    containerd::{Containerd, Options},
    select::{KUBERNETES, SYSTEM},
};
use sha2::{Digest, Sha256};

use crate::{Result, artifact::Artifacts, component::PAUSE_IMAGE, pause};

/// An image with nothing in it but folders to mount into.
pub(crate) const EMPTY_IMAGE: &str = "selvage.local/empty:1";

/// Folders that every machine has at its top, if it has them.
const USUAL: [&str; 20] = [
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "opt",
    "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr",
];

/// Folders and links at the top of this machine.
pub(crate) struct Top {
    pub(crate) folders: Vec<String>,
    links: Vec<(String, String)>,
}

impl Top {
    /// The usual ones, and those that these paths begin with.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut names: BTreeSet<String> = USUAL.iter().map(|name| (*name).to_owned()).collect();
        names.insert("var".into());
        let first = |path: &Path| Some(path.components().nth(1)?.as_os_str().to_str()?.to_owned());
        names.extend(paths.into_iter().filter_map(first));
        let (mut folders, mut links) = (Vec::new(), Vec::new());
        for name in names {
            let path = Path::new("/").join(&name);
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(name),
                Ok(found) if found.is_symlink() => {
                    let target = fs::read_link(&path).unwrap_or_default();
                    links.push((name, target.to_string_lossy().into_owned()));
                }
                _ => {}
            }
        }
        Self { folders, links }
    }

    /// Name of the image that has the same.
    pub(crate) fn image(&self) -> String {
        let digest = Sha256::digest(format!("{:?}{:?}", self.folders, self.links));
        format!("selvage.local/host:{}", hex::encode(&digest[..6]))
    }

    fn build(&self) -> Result<ImageBuilder> {
        let mut image = ImageBuilder::new();
        for folder in &self.folders {
            image = image.directory(folder, 0o755)?;
        }
        for (link, target) in &self.links {
            image = image.link(link, target)?;
        }
        Ok(image)
    }
}

/// Takes in the images that components are made of.
pub(crate) async fn for_components(runtime: &dyn Runtime, top: &Top, work: &Path) -> Result<()> {
    let have: Vec<String> =
        runtime.images(SYSTEM).await?.into_iter().map(|image| image.name).collect();
    let host = top.image();
    if !have.contains(&host) {
        import(runtime, SYSTEM, top.build()?, &host, work).await?;
    }
    if !have.iter().any(|name| name == EMPTY_IMAGE) {
        let mut image = ImageBuilder::new();
        for folder in ["dev", "etc", "proc", "sys", "tmp", "usr", "usr/local", "usr/local/bin"] {
            image = image.directory(folder, 0o755)?;
        }
        import(runtime, SYSTEM, image, EMPTY_IMAGE, work).await?;
    }
    Ok(())
}

async fn import(
    runtime: &dyn Runtime,
    namespace: &str,
    image: ImageBuilder,
    name: &str,
    work: &Path,
) -> Result<()> {
    let path = work.join("image.tar");
    image.write(name, &path)?;
    let imported = runtime.import(namespace, &path, Some(name)).await;
    let _ = fs::remove_file(&path);
    imported?;
    Ok(())
}

/// Images of pods.
pub(crate) struct PodImages {
    containerd: Containerd,
    /// Names of the images in files.
    taken: Mutex<BTreeMap<PathBuf, Vec<String>>>,
    /// Files that hold no images, as they were when that was seen.
    unusable: Mutex<BTreeMap<PathBuf, Option<SystemTime>>>,
}

impl PodImages {
    pub(crate) fn new(socket: &Path) -> Self {
        let containerd = Containerd::new(Options::new(socket));
        Self { containerd, taken: Mutex::default(), unusable: Mutex::default() }
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &self.containerd
    }

    /// Takes in what every pod needs, and what lies ready in files.
    pub(crate) async fn provide(&self, artifacts: &Artifacts, work: &Path) -> Result<()> {
        let have = self.containerd.images(KUBERNETES).await?;
        if !have.iter().any(|image| image.name == PAUSE_IMAGE) {
            let image =
                ImageBuilder::new().file("pause", 0o755, &pause::program())?.command(["/pause"]);
            import(&self.containerd, KUBERNETES, image, PAUSE_IMAGE, work).await?;
        }
        let is_there = |name: &String| have.iter().any(|image| image.name == *name);
        for path in artifacts.images() {
            let names = self.taken.lock().get(&path).cloned();
            // A kubelet that runs out of space forgets images.
            if names.is_some_and(|names| names.iter().all(is_there)) {
                continue;
            }
            self.take(&path).await?;
        }
        Ok(())
    }

    /// Takes in the images of a file. One that holds none is named once and keeps no
    /// other from being taken in.
    async fn take(&self, path: &Path) -> Result<()> {
        let modified = fs::metadata(path).and_then(|file| file.modified()).ok();
        if self.unusable.lock().get(path) == Some(&modified) {
            return Ok(());
        }
        match self.containerd.import(KUBERNETES, path, None).await {
            Ok(images) => {
                let names = images.into_iter().map(|image| image.name).collect();
                self.taken.lock().insert(path.to_owned(), names);
            }
            Err(error) if error.code() == Code::InvalidArgument => {
                tracing::warn!(path = %path.display(), %error, "the file holds no images");
                self.unusable.lock().insert(path.to_owned(), modified);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
