//! Copies of volumes that stand on their own.

use super::{NewSnapshot, NewVolume, Volumes, change::incomplete};
use crate::{Error, PENDING_TAG, Result, Volume, backend::Device};

/// Marks what a clone makes on its way; whatever has it after a start is
/// removed.
const CLONE_TAG: &str = "selvage.clone";
const STEP: usize = 4 << 20;
/// Room for changes of the source at least, in percent.
const CHANGE_ROOM: u64 = 10;

impl Volumes {
    /// Copies a volume as it is at this moment.
    pub async fn clone_volume(&self, class: &str, new: NewSnapshot) -> Result<Volume> {
        let source = self.find(class, &new.source).map_err(|error| match error {
            Error::VolumeNotFound(name) => Error::SourceNotFound(name),
            other => other,
        })?;
        if source.is_pending() {
            return Err(incomplete(&source.name));
        }
        let group = self.classes().find(class)?.volume_group.clone();
        let (at, from) = (group.clone(), source.name.clone());
        let alone =
            self.blocking(move |inner| inner.backend.snapshots_are_volumes(&at, &from)).await?;
        if alone {
            return self.snapshot(class, NewSnapshot { read_only: false, ..new }).await;
        }
        let (this, class) = (self.clone(), class.to_owned());
        let task = tokio::spawn(async move { this.copy(&class, &group, source, new).await });
        task.await.map_err(|_| Error::Task)?
    }

    async fn copy(
        &self,
        class: &str,
        group: &str,
        source: Volume,
        new: NewSnapshot,
    ) -> Result<Volume> {
        let marks = vec![CLONE_TAG.to_owned(), PENDING_TAG.to_owned()];
        let tags = [new.tags.clone(), marks.clone()].concat();
        let target =
            NewVolume { name: new.name.clone(), size: source.size, tags, ..Default::default() };
        self.create(class, target).await?;
        let copied = self.copy_content(class, group, &source, &new).await;
        if copied.is_ok() {
            self.tag(class, &new.name, Vec::new(), marks).await?;
            return self.find(class, &new.name);
        }
        if let Err(error) = self.remove(class, &new.name).await {
            tracing::warn!(volume = %new.name, %error, "half a clone stays behind");
        }
        copied.and_then(|()| self.find(class, &new.name))
    }

    async fn copy_content(
        &self,
        class: &str,
        group: &str,
        source: &Volume,
        new: &NewSnapshot,
    ) -> Result<()> {
        // The name of the target is taken, and so is nobody else's.
        let still = format!("clone-{}", new.name);
        let room = match new.change_room {
            Some(room) => room,
            None => self.room_for_changes(class, source, CHANGE_ROOM).await?,
        };
        let snapshot = NewSnapshot {
            source: source.name.clone(),
            name: still.clone(),
            tags: vec![CLONE_TAG.into(), PENDING_TAG.into()],
            read_only: true,
            change_room: Some(room),
            ..NewSnapshot::default()
        };
        self.snapshot(class, snapshot).await?;
        let hold = self.hold(group, &source.name, "being cloned");
        let (at, from, to) = (group.to_owned(), still.clone(), new.name.clone());
        let copying = self.blocking(move |inner| {
            let source = inner.backend.open(&at, &from, false)?;
            copy_all(&source, &inner.backend.open(&at, &to, true)?, &from)
        });
        let copied = self.while_whole(class, group, &still, copying).await;
        let copied = copied.and_then(|whole| {
            let lost = || format!("{still} had too little room for the changes of its origin");
            whole.ok_or_else(|| Error::Precondition(lost()))?
        });
        drop(hold);
        let removed = self.remove(class, &still).await;
        copied.and(removed.map(|_| ()))
    }

    /// Removes what clones left that were cut off by the end of the process.
    pub(super) async fn remove_leftovers(&self) {
        let classes = self.classes();
        for class in classes.all() {
            let volumes = self.list(&class.name).unwrap_or_default();
            let mut left: Vec<Volume> = volumes
                .into_iter()
                .filter(|volume| volume.is_pending() && volume.tags.iter().any(|t| t == CLONE_TAG))
                .collect();
            // Snapshots first: their origin cannot go before them.
            left.sort_by_key(|volume| volume.origin.is_none());
            for volume in left {
                tracing::warn!(volume = %volume.name, "removing a clone that was not finished");
                if let Err(error) = self.remove(&class.name, &volume.name).await {
                    tracing::warn!(volume = %volume.name, %error, "it stays");
                }
            }
        }
    }
}

/// Copies everything; zeros are made, not written.
fn copy_all(source: &Device, target: &Device, name: &str) -> Result<()> {
    let failed = |error| Error::File { path: name.into(), source: error };
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    while at < source.size() {
        let length = (source.size() - at).min(STEP as u64) as usize;
        let part = &mut buffer[..length];
        source.read_at(part, at).map_err(failed)?;
        let zeros = part.iter().all(|byte| *byte == 0);
        let written = match zeros {
            true => target.zero(at, length as u64),
            false => target.write_at(part, at),
        };
        written.map_err(failed)?;
        at += length as u64;
    }
    target.sync().map_err(failed)
}
