//! Volumes as repositories see them.

use std::{io, ops::Range, sync::Arc};

use selvage_restic::{BlockSink, BlockSource};

use super::{Error, Result};
use crate::{
    Volumes,
    backend::{Device, Ranges},
};

/// A volume that is read.
pub(crate) struct Source {
    device: Device,
    allocated: Option<Ranges>,
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
            Ok(Arc::new(Self { device, allocated: backend.allocated(&group, &name)? }))
        })
        .await
    }

    /// One whose holes are not to be trusted, for it is being written to.
    pub(crate) async fn open_live(volumes: &Volumes, group: &str, name: &str) -> Result<Arc<Self>> {
        let (group, name) = (group.to_owned(), name.to_owned());
        blocking(volumes, move |backend| {
            Ok(Arc::new(Self { device: backend.open(&group, &name, false)?, allocated: None }))
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

    fn is_fresh(&self) -> bool {
        self.fresh
    }

    fn finish(&self) -> io::Result<()> {
        self.device.sync()
    }
}
