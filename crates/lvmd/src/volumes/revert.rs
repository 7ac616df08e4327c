//! Giving a volume the content of another one.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::{Volumes, change::incomplete};
use crate::{
    Error, REVERT_TAG, Result, Volume,
    backend::{Device, in_use::stays_open},
};

const STEP: usize = 1 << 20;

/// A device that nobody else can mount or claim meanwhile.
pub(crate) struct Claim {
    _device: Option<File>,
}

impl Volume {
    /// Claims the device of a volume. Refuses, in LVM's words, one that is in use.
    pub(crate) async fn claim(&self, group: &str) -> Result<Claim> {
        let (path, name) = (self.path.clone(), format!("{group}/{}", self.name));
        let claimed = tokio::task::spawn_blocking(move || claim(&path, &name));
        claimed.await.map_err(|_| Error::Task)?
    }
}

/// Claims a device. It keeps off those alone who claim it too, so others are looked for first.
fn claim(path: &Path, name: &str) -> Result<Claim> {
    let about = std::fs::metadata(path).map_err(Error::file(path))?;
    if !about.file_type().is_block_device() {
        return Ok(Claim { _device: None });
    }
    if stays_open(about.rdev()) {
        return Err(Error::Precondition(format!(
            "Logical volume {name} in use: end the process that has it open first"
        )));
    }
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(exclusively).open(path);
    match opened {
        Ok(device) => Ok(Claim { _device: Some(device) }),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(Error::Precondition(
            format!("Logical volume {name} contains a filesystem in use: unmount it first"),
        )),
        Err(error) => Err(Error::file(path)(error)),
    }
}

impl Volumes {
    /// Gives a volume the content of one of its snapshots, which stays. It goes on
    /// if nobody waits for it any more. One that was reverted in part may be reverted again,
    /// to the same snapshot or another one.
    pub async fn revert(&self, class: &str, name: &str, snapshot: &str) -> Result<Volume> {
        let volume = self.find(class, name)?;
        let still = self.find(class, snapshot).map_err(|error| match error {
            Error::VolumeNotFound(name) => Error::SourceNotFound(name),
            other => other,
        })?;
        let in_part = volume.reverted_to().is_some();
        if (volume.is_pending() && !in_part) || still.is_pending() {
            let which = if still.is_pending() { snapshot } else { name };
            return Err(incomplete(which));
        }
        if still.origin.as_deref() != Some(name) {
            return Err(Error::Invalid(format!("{snapshot} is not a snapshot of {name}")));
        }
        if volume.read_only {
            return Err(Error::Precondition(format!("{name} is for reading only")));
        }
        let group = self.classes().find(class)?.volume_group.clone();
        let (this, class) = (self.clone(), class.to_owned());
        let task = tokio::spawn(async move { this.revert_to(&class, &group, volume, still).await });
        task.await.map_err(|_| Error::Task)?
    }

    async fn revert_to(
        &self,
        class: &str,
        group: &str,
        volume: Volume,
        snapshot: Volume,
    ) -> Result<Volume> {
        self.inner.holds.check(group, &volume.name)?;
        let _hold = self.hold(group, &volume.name, "being reverted");
        let _source = self.hold(group, &snapshot.name, "being reverted to");
        let claim = volume.claim(group).await?;
        let mark = format!("{REVERT_TAG}{}", snapshot.name);
        // From here on it is shown to nobody, whatever becomes of this process.
        let before = volume.reverted_to().map(|name| format!("{REVERT_TAG}{name}"));
        self.tag(class, &volume.name, vec![mark.clone()], before.into_iter().collect()).await?;
        self.copy_content_of(group, &snapshot.name, &volume.name).await?;
        drop(claim);
        self.tag(class, &volume.name, Vec::new(), vec![mark]).await?;
        self.find(class, &volume.name)
    }

    /// Copies what differs from one volume to another. What the other has more is
    /// zeros then.
    pub(crate) async fn copy_content_of(&self, group: &str, from: &str, to: &str) -> Result<()> {
        let (group, from, to) = (group.to_owned(), from.to_owned(), to.to_owned());
        self.blocking(move |inner| {
            let source = inner.backend.open(&group, &from, false)?;
            copy_differing(&source, &inner.backend.open(&group, &to, true)?, &to)
        })
        .await
    }

    /// Goes on with what was being reverted when the process ended, or could not be.
    pub(super) fn resume_reverts(&self) {
        let classes = self.classes();
        for class in classes.all() {
            for volume in self.list(&class.name).unwrap_or_default() {
                let Some(snapshot) = volume.reverted_to().map(str::to_owned) else { continue };
                if self.is_held(&class.volume_group, &volume.name) {
                    continue;
                }
                let (this, class) = (self.clone(), class.name.clone());
                tokio::spawn(async move {
                    tracing::warn!(volume = %volume.name, snapshot, "going on to revert a volume");
                    if let Err(error) = this.revert(&class, &volume.name, &snapshot).await {
                        let volume = volume.name;
                        tracing::error!(volume, %error, "a volume is reverted in part");
                    }
                });
            }
        }
    }
}

/// Writes what differs; zeros are made, not written.
fn copy_differing(source: &Device, target: &Device, name: &str) -> Result<()> {
    let failed = |error| Error::File { path: name.into(), source: error };
    let (mut wanted, mut there) = (vec![0; STEP], vec![0; STEP]);
    let end = source.size().min(target.size());
    let mut at = 0;
    while at < end {
        let length = (end - at).min(STEP as u64) as usize;
        let (wanted, there) = (&mut wanted[..length], &mut there[..length]);
        source.read_at(wanted, at).map_err(failed)?;
        target.read_at(there, at).map_err(failed)?;
        if wanted != there {
            let written = match wanted.iter().all(|byte| *byte == 0) {
                true => target.zero(at, length as u64),
                false => target.write_at(wanted, at),
            };
            written.map_err(failed)?;
        }
        at += length as u64;
    }
    if end < target.size() {
        target.zero(end, target.size() - end).map_err(failed)?;
    }
    target.sync().map_err(failed)
}
