//! Samples in memory and on disk.

use std::{io, ops::Deref, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Limits, Samples, keeper::Keeper};

/// Interval at which what came is written.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// Samples, and the folder in which they outlive the process.
#[derive(Debug)]
pub struct Archive {
    samples: Samples,
    /// None until the folder has been read, and where there is none.
    keeper: Mutex<Option<Keeper>>,
}

impl Deref for Archive {
    type Target = Samples;

    fn deref(&self) -> &Samples {
        &self.samples
    }
}

impl Archive {
    /// An empty archive, in memory alone until [`Archive::recall`].
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { samples: Samples::new(limits), keeper: Mutex::default() })
    }

    /// Reads the samples of earlier runs, and writes there from now on. A disk
    /// that fails costs the past, not the service.
    pub async fn recall(self: &Arc<Self>, folder: PathBuf, now: Timestamp) {
        let archive = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            match Keeper::open(&folder, &archive.samples, now) {
                Ok(keeper) => *archive.keeper.lock() = Some(keeper),
                Err(error) => {
                    let folder = folder.display();
                    tracing::warn!(%folder, %error, "samples are kept until the next restart only");
                }
            }
        });
        if let Err(error) = reading.await {
            tracing::error!(%error, "the samples of earlier runs were not read");
        }
    }

    /// Writes samples to the disk until told to stop, and then once more.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut works = true;
        loop {
            let pause = tokio::time::sleep(WRITE_INTERVAL);
            let ends = stop.run_until_cancelled(pause).await.is_none();
            let written = self.write().await;
            // A disk that is full is one event, not one every minute.
            match (&written, works) {
                (Ok(()), false) => tracing::info!("samples are written to the disk again"),
                (Err(error), true) => {
                    tracing::warn!(%error, "samples cannot be written to the disk");
                }
                _ => {}
            }
            works = written.is_ok();
            if ends {
                return;
            }
        }
    }

    async fn write(self: &Arc<Self>) -> io::Result<()> {
        let archive = Arc::clone(self);
        let writing = tokio::task::spawn_blocking(move || {
            let mut keeper = archive.keeper.lock();
            keeper.as_mut().map_or(Ok(()), |keeper| keeper.write(&archive.samples))
        });
        writing.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}
