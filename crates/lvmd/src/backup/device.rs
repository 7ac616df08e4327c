//! Volumes as repositories see them.

use std::{io, ops::Range, sync::Arc};

use selvage_restic::{BlockSink, BlockSource};

use super::{Error, Result};
use crate::{
    Volumes,
    backend::{Device, Guarded, Ranges, WriteGuard},
};

/// A volume that is read.
pub(crate) struct Source {
    device: Device,
    allocated: Option<Ranges>,
    /// Notices writes, where nothing else keeps them off.
    guard: Option<Box<dyn WriteGuard>>,
}

/// A volume that is written.
pub(crate) struct Sink {
    device: Device,
    fresh: bool,
}

/// Does something with the backend where blocking is allowed.
pub(crate) async fn blocking<T: Send + 'static>(
    volumes: &Volumes,
    work: impl FnOnce(&dyn crate::backend::Backend) -> crate::Result<T> + Send + 'static,
) -> Result<T> {
    let backend = Arc::clone(volumes.backend());
    let done = tokio::task::spawn_blocking(move || work(&*backend)).await;
    Ok(done.map_err(|_| Error::Task)??)
}

impl Source {
    pub(crate) async fn open(volumes: &Volumes, group: &str, name: &str) -> Result<Arc<Self>> {
        let (group, name) = (group.to_owned(), name.to_owned());
        blocking(volumes, move |backend| {
            // First, so that it does not miss what is written meanwhile.
            let device = backend.open(&group, &name, false)?;
            let allocated = backend.allocated(&group, &name)?;
            Ok(Arc::new(Self { device, allocated, guard: None }))
        })
        .await
    }

    /// A volume in use, as it is now; it is noticed if it is written to. None where
    /// the backend cannot do that.
    pub(crate) async fn open_guarded(
        volumes: &Volumes,
        group: &str,
        name: &str,
    ) -> Result<Option<Arc<Self>>> {
        let (group, name) = (group.to_owned(), name.to_owned());
        blocking(volumes, move |backend| {
            let Some(Guarded { device, guard }) = backend.guard(&group, &name)? else {
                return Ok(None);
            };
            let allocated = backend.allocated(&group, &name)?;
            Ok(Some(Arc::new(Self { device, allocated, guard: Some(guard) })))
        })
        .await
    }

    /// One whose holes are not to be trusted, for it is being written to.
    pub(crate) async fn open_live(volumes: &Volumes, group: &str, name: &str) -> Result<Arc<Self>> {
        let (group, name) = (group.to_owned(), name.to_owned());
        blocking(volumes, move |backend| {
            let device = backend.open(&group, &name, false)?;
            Ok(Arc::new(Self { device, allocated: None, guard: None }))
        })
        .await
    }
}

impl BlockSource for Source {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(buffer, offset)
    }

    fn is_unchanged(&self) -> io::Result<bool> {
        self.guard.as_ref().map_or(Ok(true), |guard| guard.is_unchanged().map_err(io::Error::other))
    }

    fn allocated(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        Ok(self.allocated.clone())
    }
}

impl Sink {
    pub(crate) async fn open(volumes: &Volumes, group: &str, name: &str) -> Result<Arc<Self>> {
        let (group, name) = (group.to_owned(), name.to_owned());
        blocking(volumes, move |backend| {
            let written = backend.allocated(&group, &name)?;
            let fresh = written.is_some_and(|ranges| ranges.is_empty());
            Ok(Arc::new(Self { device: backend.open(&group, &name, true)?, fresh }))
        })
        .await
    }

    /// Makes what lies behind the restored content zeros.
    pub(crate) async fn clear_behind(self: Arc<Self>, end: u64) -> Result<()> {
        if self.fresh || end >= self.device.size() {
            return Ok(());
        }
        let cleared = tokio::task::spawn_blocking(move || {
            self.device.zero(end, self.device.size() - end)?;
            self.device.sync()
        });
        let cleared = cleared.await.map_err(|_| Error::Task)?;
        cleared.map_err(|source| selvage_restic::Error::Sink { offset: end, source }.into())
    }
}

impl BlockSink for Sink {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(bytes, offset)
    }

    fn zero_at(&self, offset: u64, length: u64) -> io::Result<()> {
        self.device.zero(offset, length)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.device.read_at(buffer, offset).map(|()| true)
    }

    fn is_fresh(&self) -> bool {
        self.fresh
    }

    fn finish(&self) -> io::Result<()> {
        self.device.sync()
    }
}
