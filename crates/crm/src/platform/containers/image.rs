//! Images of instances: from a registry, or from a file of this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use selvage_api::Code;
use selvage_fetch::Policy;
use selvage_runtime::{Pull, Runtime};
use serde::{Deserialize, Serialize};

use super::Options;
use crate::{
    Error, ImageFolders, Registries, Result,
    error::During,
    platform::{InstanceOrder, downloads::Downloads},
};

/// Age at which an image that no container uses is removed.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time for a whole image.
const PULL_TIMEOUT: Duration = Duration::from_secs(1800);
const GIB: u64 = 1 << 30;
/// Prefix of a path on this machine.
const FILE: &str = "file://";

pub(super) struct Images {
    runtime: Arc<dyn Runtime>,
    namespace: String,
    registries: Registries,
    policy: Policy,
    downloads: Downloads,
    folders: ImageFolders,
    /// When images were last used, and by whom they were pulled. What is not in
    /// here came without us, and stays.
    notes: Mutex<PathBuf>,
    /// Held for reading from when an image is asked for until a container has
    /// it, for writing to remove some.
    turns: tokio::sync::RwLock<()>,
}

type Notes = BTreeMap<String, Note>;

/// An image that is here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NoteForms")]
struct Note {
    /// In seconds since 1970.
    used: u64,
    /// Developers whom its registry let have it.
    pulled_by: BTreeSet<String>,
}

/// Notes of earlier versions had the time alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum NoteForms {
    Time(u64),
    Whole { used: u64, pulled_by: BTreeSet<String> },
}

impl From<NoteForms> for Note {
    fn from(form: NoteForms) -> Self {
        match form {
            NoteForms::Time(used) => Self { used, pulled_by: BTreeSet::new() },
            NoteForms::Whole { used, pulled_by } => Self { used, pulled_by },
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Images {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            runtime: Arc::clone(&options.runtime),
            namespace: options.namespace.clone(),
            registries: options.registries.clone(),
            policy: options.policy.clone(),
            downloads: Downloads::default(),
            folders: options.images.clone(),
            notes: Mutex::new(options.data.join("images.json")),
            turns: tokio::sync::RwLock::default(),
        }
    }

    /// While this is held no image goes.
    pub(super) async fn using(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.turns.read().await
    }

    /// Changes what is noted, whole or not at all.
    fn note<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> Result<T> {
        let path = self.notes.lock();
        let before: Notes = match fs::read(&*path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Notes::new(),
            // Of what cannot be read nothing is known: nothing goes.
            read => {
                serde_json::from_slice(&read.during("reading notes of images")?).unwrap_or_default()
            }
        };
        let mut notes = before.clone();
        let changed = change(&mut notes);
        if notes != before {
            let text = serde_json::to_vec(&notes).map_err(std::io::Error::other);
            text.and_then(|text| selvage_files::replace(&path, &text, 0o600))
                .during("noting an image")?;
        }
        Ok(changed)
    }

    /// Removes images that were not used in a long time; says which.
    pub(super) async fn tidy(&self) -> Result<Vec<String>> {
        // Somebody who fetches one may take long, and nobody shall wait.
        let Ok(_alone) = self.turns.try_write() else { return Ok(Vec::new()) };
        let containers = self.runtime.list(&self.namespace).await?;
        let used: BTreeSet<&str> = containers.iter().map(|found| found.image.as_str()).collect();
        let images = self.runtime.images(&self.namespace).await?;
        let unused = self.note(|notes| {
            notes.retain(|name, _| images.iter().any(|image| image.name == *name));
            for image in &images {
                if used.contains(image.name.as_str()) || used.contains(image.digest.as_str()) {
                    notes.entry(image.name.clone()).or_default().used = now();
                }
            }
            let is_old = |at: u64| now().saturating_sub(at) >= UNUSED.as_secs();
            let old = notes.iter().filter(|(_, note)| is_old(note.used));
            old.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        })?;
        let mut removed = Vec::new();
        for name in unused {
            match self.runtime.remove_image(&self.namespace, &name).await {
                Ok(()) => removed.push(format!("image {name}")),
                Err(selvage_runtime::Error::ImageNotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(removed)
    }

    /// Sees that the image of an instance is there; what the runtime calls it.
    /// Its registry is asked each time, also for one that is there: whether the
    /// developer may have it, and whether its name means another by now.
    pub(super) async fn provide(&self, order: &InstanceOrder) -> Result<String> {
        let (path, developer) = (order.app.image_path.as_str(), order.developer());
        if path.is_empty() {
            return Err(Error::invalid("image_path", "may not be empty"));
        }
        let name = match path.strip_prefix(FILE) {
            Some(file) => self.import(path, file).await?,
            None => self.fetch(path, developer, limit(order)).await?,
        };
        self.note(|notes| {
            let note = notes.entry(name.clone()).or_default();
            note.used = now();
            note.pulled_by.insert(developer.to_owned());
        })?;
        Ok(name)
    }

    async fn fetch(&self, path: &str, developer: &str, limit: Option<u64>) -> Result<String> {
        let reference = with_tag(path.trim_start_matches("https://"));
        let own = self.note(|notes| {
            notes.get(&reference).is_some_and(|note| note.pulled_by.contains(developer))
        })?;
        let here = own && self.is_there(&reference).await?;
        match self.pull(&reference, developer, limit).await {
            // A registry that is away or has no time, as for many who ask often,
            // does not stop what is here.
            Err(error) if here && is_passing(&error) => {
                tracing::warn!(image = reference, %error, "not fetched again, the one here is used");
                Ok(reference)
            }
            pulled => pulled,
        }
    }

    async fn pull(&self, reference: &str, developer: &str, limit: Option<u64>) -> Result<String> {
        let pull = Pull {
            credentials: self.registries.credentials(developer, reference)?,
            plain_http: is_local(reference),
            reference: reference.to_owned(),
            scope: developer.to_owned(),
            policy: self.policy.clone(),
            limit,
        };
        let _turn = self.downloads.turn(developer).await;
        let pulled = self.runtime.pull(&self.namespace, pull);
        let late = |_| Error::state(format!("{reference} did not come in time"));
        let pulled = tokio::time::timeout(PULL_TIMEOUT, pulled).await.map_err(late)?;
        Ok(pulled?.name)
    }

    async fn is_there(&self, name: &str) -> Result<bool> {
        let images = self.runtime.images(&self.namespace).await?;
        Ok(images.iter().any(|image| image.name == name))
    }

    /// An OCI layout, a directory or a tar of one.
    async fn import(&self, name: &str, file: &str) -> Result<String> {
        let file = self.folders.find(Path::new(file))?;
        let taken = self.runtime.import(&self.namespace, &file, Some(name)).await?;
        let image = taken.into_iter().next();
        image.map(|image| image.name).ok_or_else(|| Error::missing(format!("image in {name}")))
    }
}

/// An image fits into the disk of its instance. None where that has no size.
fn limit(order: &InstanceOrder) -> Option<u64> {
    let disk = order.flavor.disk;
    (disk > 0).then(|| disk.saturating_mul(GIB))
}

fn is_passing(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::ResourceExhausted)
}

/// A name without a tag means the newest.
fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains(':') || last.contains('@') {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

/// A registry on this machine speaks plain HTTP, as everybody has it.
fn is_local(reference: &str) -> bool {
    let host = reference.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost"
        || name.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn notes_of_earlier_versions_give_nobody_a_right() {
        let notes: Notes = serde_json::from_str(r#"{"reg/a:1": 17}"#).unwrap();
        assert_eq!(notes["reg/a:1"], Note { used: 17, pulled_by: BTreeSet::new() });
        let text = serde_json::to_string(&notes).unwrap();
        assert_eq!(serde_json::from_str::<Notes>(&text).unwrap(), notes);
    }

    #[test]
    fn names_get_a_tag_and_local_registries_are_known() {
        assert_eq!(with_tag("reg:5000/a/b"), "reg:5000/a/b:latest");
        assert_eq!(with_tag("reg:5000/a/b:1"), "reg:5000/a/b:1");
        assert_eq!(with_tag("a/b@sha256:00"), "a/b@sha256:00");
        for local in ["localhost:5000/a", "127.0.0.1:5000/a", "[::1]:5000/a", "127.8.0.1/a"] {
            assert!(is_local(local), "{local}");
        }
        for far in ["reg.example/a", "10.0.0.1:5000/a", "localhost.example/a"] {
            assert!(!is_local(far), "{far}");
        }
    }
}
