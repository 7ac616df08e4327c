//! Changes: decided on what is there, made, read back.

use std::sync::Arc;

use super::{Inner, Volumes};
use crate::{
    Error, Group, Result, Volume,
    backend::{CopyProgress, Create, Snapshot},
    config::DeviceClass,
    model::is_temporary,
    names,
};

/// A volume to make.
#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    pub name: String,
    pub size: u64,
    pub tags: Vec<String>,
    /// Options of lvcreate by name; empty for those of the device class.
    pub option_class: String,
}

/// A snapshot to make.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshot {
    pub source: String,
    pub name: String,
    pub tags: Vec<String>,
    pub read_only: bool,
    pub change_room: Option<u64>,
    /// Tells how far it is, where it needs a copy.
    pub progress: CopyProgress,
}

/// State that a change is decided on.
pub(super) struct ChangeContext<'a> {
    pub(super) inner: &'a Inner,
    pub(super) class: DeviceClass,
    pub(super) group: Arc<Group>,
}

impl Volumes {
    /// Makes a volume.
    pub async fn create(&self, class: &str, new: NewVolume) -> Result<Volume> {
        let name = new.name.clone();
        self.change(class, move |context| {
            context.check_new(&new.name, &new.tags)?;
            if new.size == 0 {
                return Err(Error::Invalid("--size may not be zero.".into()));
            }
            context.check_room(new.size)?;
            context.check_free_name(&new.name)?;
            let options =
                context.inner.classes.load().options(&context.class, &new.option_class)?;
            let create = Create {
                group: context.group.name.clone(),
                name: new.name,
                size: new.size,
                tags: new.tags,
                pool: context.class.pool().map(|pool| pool.name.clone()),
                options,
            };
            context.make(&create.name, || context.inner.backend.create(&create)).map(|()| true)
        })
        .await?;
        self.find(class, &name)
    }

    /// Removes a volume; tells whether it was there.
    pub async fn remove(&self, class: &str, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.change(class, move |context| {
            let missing = match context.group.volumes.get(&name) {
                Some(_) => context.remove(&name),
                None => Err(Error::VolumeNotFound(name.clone())),
            };
            match missing {
                Err(Error::VolumeNotFound(_)) if !context.inner.classes.load().strict_remove => {
                    Ok(false)
                }
                other => other.map(|()| true),
            }
        })
        .await
    }

    /// Grows a volume. The same size again is a change like others to those
    /// who watch.
    pub async fn resize(&self, class: &str, name: &str, size: u64) -> Result<Volume> {
        let wanted = name.to_owned();
        self.change(class, move |context| {
            let volume = context.volume(&wanted)?;
            let Some(more) = size.checked_sub(volume.size) else { return Err(Error::Shrinking) };
            if more == 0 {
                return Ok(true);
            }
            context.check_room(more)?;
            context.inner.holds.check(&context.group.name, &wanted)?;
            context.inner.backend.resize(&context.group.name, &wanted, size).map(|()| true)
        })
        .await?;
        self.find(class, name)
    }

    /// Makes a snapshot.
    pub async fn snapshot(&self, class: &str, new: NewSnapshot) -> Result<Volume> {
        let name = new.name.clone();
        self.change(class, move |context| {
            context.check_new(&new.name, &new.tags)?;
            let source = context.group.volumes.get(&new.source).cloned();
            let source = source.ok_or_else(|| Error::SourceNotFound(new.source.clone()))?;
            if source.is_pending() {
                return Err(incomplete(&new.source));
            }
            let group = &context.group.name;
            // A snapshot that is a volume takes as much as its source, if somebody
            // may write to it.
            let temporary = is_temporary(&new.tags, new.read_only);
            if !temporary && context.inner.backend.snapshots_are_volumes(group, &new.source)? {
                context.check_room(source.size)?;
            }
            context.check_free_name(&new.name)?;
            let snapshot = Snapshot {
                group: group.clone(),
                source: new.source,
                name: new.name,
                tags: new.tags,
                read_only: new.read_only,
                change_room: new.change_room,
                progress: new.progress,
            };
            context
                .make(&snapshot.name, || context.inner.backend.snapshot(&snapshot))
                .map(|()| true)
        })
        .await?;
        self.find(class, &name)
    }

    /// Gives a snapshot more room for changes of its origin.
    pub async fn extend_change_room(&self, class: &str, name: &str, size: u64) -> Result<()> {
        let name = name.to_owned();
        let changed = self.change(class, move |context| {
            context.volume(&name)?;
            context
                .inner
                .backend
                .extend_change_room(&context.group.name, &name, size)
                .map(|()| true)
        });
        changed.await.map(|_| ())
    }

    /// Changes the tags of a volume.
    pub async fn tag(
        &self,
        class: &str,
        name: &str,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> Result<()> {
        let name = name.to_owned();
        let changed = self.change(class, move |context| {
            add.iter().try_for_each(|tag| names::check_tag(tag))?;
            context.volume(&name)?;
            context.inner.backend.tag(&context.group.name, &name, &add, &remove).map(|()| true)
        });
        changed.await.map(|_| ())
    }

    /// A volume of a class.
    pub fn find(&self, class: &str, name: &str) -> Result<Volume> {
        let classes = self.classes();
        let group = self.inner.group(&classes.find(class)?.volume_group)?;
        let volume = group.volumes.get(name).cloned();
        volume.ok_or_else(|| Error::VolumeNotFound(name.to_owned()))
    }

    /// Does something when it is its group's turn, reads back what became of
    /// it and tells watchers if it changed something. It goes on if nobody
    /// waits for it any more.
    pub(super) async fn change(
        &self,
        class: &str,
        work: impl FnOnce(&ChangeContext<'_>) -> Result<bool> + Send + 'static,
    ) -> Result<bool> {
        let class = class.to_owned();
        let this = self.clone();
        let task = tokio::spawn(async move { this.in_turn(class, work).await });
        task.await.map_err(|_| Error::Task)?
    }

    async fn in_turn(
        self,
        class: String,
        work: impl FnOnce(&ChangeContext<'_>) -> Result<bool> + Send + 'static,
    ) -> Result<bool> {
        let group = self.classes().find(&class)?.volume_group.clone();
        let turn = Arc::clone(self.inner.turns.lock().entry(group).or_default());
        let _turn = turn.lock().await;
        let _changing = self.inner.changing.read().await;
        let before = self.groups();
        let done = self
            .blocking(move |inner| {
                if inner.backend.fingerprint() != *inner.seen.lock() {
                    inner.read()?;
                }
                let class = inner.classes.load().find(&class)?.clone();
                let group = inner.group(&class.volume_group)?;
                let done = work(&ChangeContext { inner, class, group });
                // A failure may have changed something too.
                match done {
                    Ok(true) => inner.read().map(|()| true),
                    Ok(false) => Ok(false),
                    Err(error) => {
                        inner.backend.doubt();
                        let _ = inner.read();
                        Err(error)
                    }
                }
            })
            .await;
        if matches!(done, Ok(true)) {
            self.inner.notify();
        } else if *before != *self.groups() {
            self.inner.tell_missing();
            self.inner.notify();
        }
        done
    }
}

/// Why a volume cannot be copied yet.
pub(super) fn incomplete(name: &str) -> Error {
    Error::Precondition(format!("the content of logical volume {name} is not complete yet"))
}

impl ChangeContext<'_> {
    fn volume(&self, name: &str) -> Result<Volume> {
        let volume = self.group.volumes.get(name).cloned();
        volume.ok_or_else(|| Error::VolumeNotFound(name.to_owned()))
    }

    fn check_new(&self, name: &str, tags: &[String]) -> Result<()> {
        names::check_name(name)?;
        tags.iter().try_for_each(|tag| names::check_tag(tag))
    }

    fn check_free_name(&self, name: &str) -> Result<()> {
        let there = self.group.volumes.get(name);
        if there.is_some_and(|it| self.inner.unfinished.left(&self.class.name, it)) {
            return self.remove(name);
        }
        if there.is_some() || self.group.pools.contains_key(name) {
            let (group, name) = (self.group.name.clone(), name.to_owned());
            return Err(Error::Exists { group, name });
        }
        Ok(())
    }

    /// The spare is not looked at: it is there for those who ask knowingly.
    fn check_room(&self, requested: u64) -> Result<()> {
        let free = self.class.free_in(&self.group)?;
        if free < requested { Err(Error::NoSpace { free, requested }) } else { Ok(()) }
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.inner.holds.check(&self.group.name, name)?;
        // LVM would remove them without a word.
        let dependants = self.group.dependants(name);
        if !dependants.is_empty() {
            let names: Vec<&str> = dependants.iter().map(|volume| volume.name.as_str()).collect();
            return Err(Error::Precondition(format!(
                "logical volume {name} has snapshots, which would be lost with it: {}",
                names.join(", ")
            )));
        }
        self.inner.backend.remove(&self.group.name, name)
    }
}
