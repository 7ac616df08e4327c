//! A place to keep volumes in, for one test.

use std::{sync::Arc, time::Duration};

use selvage_lvmd::{
    Capacity, Error, NewVolume, Volume, Volumes,
    backend::{self, Backend},
    config::Config,
};
pub(crate) use selvage_testkit::skip;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Does what somebody else on the machine would do.
pub(crate) trait Outside {
    /// Makes a volume behind our back.
    fn create(&self, name: &str, size: u64);
    /// Opens a volume and keeps it open until the guard is dropped.
    fn keep_open(&self, volume: &Volume) -> Box<dyn std::any::Any> {
        Box::new(std::fs::File::open(&volume.path).unwrap())
    }
    /// Returns whether snapshots of thick volumes depend on their origin.
    fn thick_snapshots_depend(&self) -> bool;
    /// Returns whether the differences of thin snapshots are known.
    fn knows_changes(&self) -> bool;
}

/// The classes that every site has: `thick` (default, no spare) and `spare`
/// (thin, with the usual spare) and `thin` in group `tg`.
pub(crate) struct Site {
    pub(crate) volumes: Volumes,
    pub(crate) outside: Box<dyn Outside>,
    pub(crate) config: Config,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Site {
    pub(crate) async fn open(config: Config, outside: Box<dyn Outside>) -> Self {
        let opened = config.clone();
        let backend = tokio::task::spawn_blocking(move || backend::open(&opened)).await;
        Self::with(backend.unwrap().unwrap(), config, outside).await
    }

    pub(crate) async fn with(
        backend: Arc<dyn Backend>,
        config: Config,
        outside: Box<dyn Outside>,
    ) -> Self {
        let volumes = Volumes::open(backend, &config).await.unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(volumes.clone().run(stop.clone()));
        Self { volumes, outside, config, stop, running }
    }

    /// Ends, as a process would, and starts again.
    pub(crate) async fn restart(self) -> Self {
        let Self { volumes, outside, config, stop, running } = self;
        stop.cancel();
        running.await.unwrap();
        drop(volumes);
        Self::open(config, outside).await
    }

    pub(crate) async fn create(&self, class: &str, name: &str, size: u64) -> Result<Volume, Error> {
        let new = NewVolume { name: name.into(), size, ..NewVolume::default() };
        self.volumes.create(class, new).await
    }

    pub(crate) fn names(&self, class: &str) -> Vec<String> {
        self.volumes.list(class).unwrap().into_iter().map(|volume| volume.name).collect()
    }

    pub(crate) fn watch(&self) -> Notices {
        let mut receiver = self.volumes.watch();
        receiver.mark_unchanged();
        Notices(receiver)
    }
}

/// Messages to a watcher.
pub(crate) struct Notices(watch::Receiver<Arc<Capacity>>);

impl Notices {
    /// Returns whether something was told since the last time.
    pub(crate) fn was_notified(&mut self) -> bool {
        let was_notified = self.0.has_changed().unwrap();
        self.0.mark_unchanged();
        was_notified
    }

    /// Waits until something is told.
    pub(crate) async fn next(&mut self) {
        let waited = tokio::time::timeout(TIMEOUT, self.0.changed()).await;
        waited.expect("watchers are told").unwrap();
    }

    /// Waits until something is told that fits.
    pub(crate) async fn wait(&mut self, fits: impl FnMut(&Arc<Capacity>) -> bool) -> Capacity {
        let waited = tokio::time::timeout(TIMEOUT, self.0.wait_for(fits)).await;
        let capacity = waited.expect("watchers are told").unwrap();
        Capacity::clone(&capacity)
    }
}

/// The code and text of a failure on the wire.
pub(crate) fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> (tonic::Code, String) {
    let status = tonic::Status::from(result.unwrap_err());
    (status.code(), status.message().to_owned())
}
