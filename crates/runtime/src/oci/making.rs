//! Images taken in and forgotten, containers made of them and removed.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use tracing::warn;

use super::{
    entry::Entry,
    lifecycle::{Inner, blocking},
    overlay::{self, Stack},
    record::{self, Phase, Record, State},
    store::Puller,
    unpack, users,
};
use crate::{
    ContainerSpec, Error, Event, EventKind, Image, Network, Result, Users, cgroup, error::During,
    image::Named, spec,
};

impl Inner {
    /// Unpacks an image and gives it its name.
    pub(super) async fn take(
        self: &Arc<Self>,
        namespace: &str,
        named: Named,
        puller: Option<Puller>,
    ) -> Result<Image> {
        let _using = self.images.read().await;
        let (inner, namespace) = (self.clone(), namespace.to_owned());
        let name = named.name.clone();
        let event =
            Event { namespace: namespace.clone(), runtime_id: name, kind: EventKind::ImageChanged };
        let image = blocking(move || inner.store.take(&namespace, named, puller)).await?;
        self.hub.send(event);
        Ok(image)
    }

    pub(super) async fn remove_image(self: &Arc<Self>, namespace: &str, name: &str) -> Result<()> {
        let _alone = self.images.write().await;
        let (inner, owned) = (self.clone(), (namespace.to_owned(), name.to_owned()));
        blocking(move || {
            inner.store.forget(&owned.0, &owned.1)?;
            inner.sweep()
        })
        .await?;
        self.hub.send(Event {
            namespace: namespace.to_owned(),
            runtime_id: name.to_owned(),
            kind: EventKind::ImageRemoved,
        });
        Ok(())
    }

    /// Removes what was left of images; the caller is alone with them.
    fn sweep(&self) -> Result<()> {
        let mut in_use = BTreeSet::new();
        for directory in self.containers()? {
            let entries = self.entries.lock();
            let entry = entries.values().find(|entry| entry.directory == directory);
            // One that cannot be read may need anything.
            let Some(entry) = entry else { return Ok(()) };
            in_use.extend(self.store.layers_of(&entry.record.diff_ids));
        }
        self.store.sweep(&in_use)
    }

    /// Removes what was left of images, unless somebody is at them.
    pub(super) async fn tidy_images(self: &Arc<Self>) -> Result<()> {
        if !self.store.is_untidy() {
            return Ok(());
        }
        let Ok(_alone) = self.images.try_write() else { return Ok(()) };
        let inner = self.clone();
        blocking(move || inner.sweep()).await
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        namespace: &str,
        spec: ContainerSpec,
    ) -> Result<()> {
        let _using = self.images.read().await;
        let (inner, owned) = (self.clone(), namespace.to_owned());
        let entry = blocking(move || inner.make(&owned, spec)).await?;
        let key = (entry.namespace.clone(), entry.id().to_owned());
        self.entries.lock().insert(key, entry.clone());
        self.tell(&entry, EventKind::Created);
        Ok(())
    }

    fn make(&self, namespace: &str, spec: ContainerSpec) -> Result<Arc<Entry>> {
        let directory = self.directory(namespace, &spec.id);
        fs::create_dir_all(self.home().join(namespace)).during("making a container's directory")?;
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { id: spec.id });
            }
            made => made.during("making a container's directory")?,
        }
        let made = self.fill(namespace, &directory, spec);
        if made.is_err() {
            let _ = discard(&directory);
        }
        made
    }

    /// The record is written last: what has none is not a container.
    fn fill(&self, namespace: &str, directory: &Path, spec: ContainerSpec) -> Result<Arc<Entry>> {
        let image = self.store.resolve(namespace, &spec.image)?;
        let record = Record {
            diff_ids: image.document.rootfs.diff_ids.clone(),
            created: Timestamp::now().as_millisecond(),
            limited: self.disks.provide(directory, spec.limits.disk_bytes)?,
            users: self.users_of(directory, &spec)?,
            spec,
        };
        self.stack(directory, &record).mount()?;
        let rootfs = directory.join("rootfs");
        let (passwd, group) = (
            overlay::read_inside(&rootfs, "etc/passwd"),
            overlay::read_inside(&rootfs, "etc/group"),
        );
        let config = &image.document.config;
        let place = spec::SpecPaths {
            rootfs: &rootfs,
            cgroup: &self.group(namespace, &record),
            user: spec::user(&config.user, &passwd, &group)?,
            unified: self.unified,
            seccomp: self.seccomp,
            users: record.users,
        };
        let mut document = spec::document(&record.spec, config, &place)?;
        self.compiled.spare(&mut document);
        record::write(&directory.join("config.json"), &document)?;
        let state = State::default();
        record::write(&directory.join("state.json"), &state)?;
        record::write(&directory.join("record.json"), &record)?;
        Ok(Entry::new(namespace.to_owned(), directory.to_owned(), record, state))
    }

    /// First of the users that a new container has for itself, if it has any.
    fn users_of(&self, directory: &Path, spec: &ContainerSpec) -> Result<Option<u32>> {
        if spec.users == Users::Machine || spec.host || spec.network == Network::Host {
            return Ok(None);
        }
        let obstacle = self.no_own_users.get_or_init(|| {
            let obstacle = users::obstacle(&self.options.root, self.driver.program());
            if let Some(reason) = &obstacle {
                warn!(reason, "containers share the users of the machine");
            }
            obstacle
        });
        match obstacle {
            None => {
                let entries = self.entries.lock();
                let taken = entries.values().filter_map(|entry| entry.record.users).collect();
                users::choose(directory, &taken).map(Some)
            }
            Some(reason) if spec.users == Users::Own => {
                Err(Error::state(format!("no users of its own for a container: {reason}")))
            }
            Some(_) => Ok(None),
        }
    }

    /// Control group of a container.
    pub(super) fn group(&self, namespace: &str, record: &Record) -> String {
        match &record.spec.group {
            Some(group) => format!("{group}/{}", record.spec.id),
            None => format!("{}/{namespace}/{}", self.options.cgroup, record.spec.id),
        }
    }

    pub(super) fn stack(&self, directory: &Path, record: &Record) -> Stack {
        let mut layers = self.store.layers_of(&record.diff_ids);
        layers.reverse();
        let Record { limited, users, .. } = *record;
        Stack { layers, directory: directory.to_owned(), limited, users }
    }

    pub(super) async fn delete(
        self: &Arc<Self>,
        namespace: &str,
        id: &str,
        force: bool,
    ) -> Result<()> {
        let entry = self.entry(namespace, id)?;
        let _step = entry.step.lock().await;
        if entry.phase() == Phase::Running && !force {
            return Err(Error::state(format!("container {id:?} runs: stop it first")));
        }
        self.end(&entry, Duration::ZERO).await?;
        let (name, log) = (entry.runtime_name(), entry.directory.join("runtime.log"));
        entry.driver(&self.driver).delete(&name, &log).await?;
        let directory = entry.directory.clone();
        blocking(move || {
            // Without its record it is not a container, however far we get.
            fs::remove_file(directory.join("record.json")).during("removing a record")?;
            discard(&directory)
        })
        .await?;
        self.entries.lock().remove(&(namespace.to_owned(), id.to_owned()));
        self.tell(&entry, EventKind::Deleted);
        self.remove_empty_groups(namespace);
        Ok(())
    }

    /// A control group is only removed when nothing is in it.
    fn remove_empty_groups(&self, namespace: &str) {
        let Ok(mounts) = cgroup::Mounts::read() else { return };
        for path in [format!("{}/{namespace}", self.options.cgroup), self.options.cgroup.clone()] {
            for group in mounts.groups(&path) {
                let _ = fs::remove_dir(group);
            }
        }
    }
}

/// Removes a container's directory with all that is mounted in it.
pub(super) fn discard(directory: &Path) -> Result<()> {
    /// A program that this process started before it was killed may still mount
    /// something, once.
    const TRIES: usize = 3;
    let mut removed = Ok(());
    for _ in 0..TRIES {
        overlay::unmount(directory);
        removed = unpack::remove_all(directory);
        if removed.is_ok() {
            break;
        }
    }
    removed.during("removing a container")
}
