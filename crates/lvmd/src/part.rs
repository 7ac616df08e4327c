//! The volume service as one part: what a process opens, serves and runs.

use std::path::PathBuf;

use selvage_kit::{
    serve::{Readiness, Services},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_work::Engine;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Result, Volumes, backend,
    backup::Backups,
    config::Config,
    reload,
    service::{BackupsApi, LvApi, VgApi, VolumesApi},
};

/// Settings that the part is opened with.
#[derive(Debug, Clone)]
pub struct Settings {
    pub config: Config,
    /// The file that the configuration is from; changes of it are followed.
    pub path: Option<PathBuf>,
}

/// The volume service. Clones are the same.
#[derive(Clone)]
pub struct Lvmd {
    settings: Settings,
    volumes: Volumes,
    /// None where they are not configured.
    backups: Option<Backups>,
    /// Ends streams when the process ends.
    stop: CancellationToken,
}

impl Lvmd {
    /// Opens the backend and reads what it holds.
    pub async fn open(settings: Settings) -> Result<Self> {
        let config = settings.config.clone();
        let opened = tokio::task::spawn_blocking(move || backend::open(&config)).await;
        let backend = opened.map_err(|_| Error::Task)??;
        tracing::info!(backend = backend.kind(), "volumes are read");
        let volumes = Volumes::open(backend, &settings.config).await?;
        let backups = match settings.config.backup.clone() {
            None => None,
            Some(config) => {
                let opened = Backups::open(volumes.clone(), config).await;
                Some(opened.map_err(|error| Error::Backups(Box::new(error)))?)
            }
        };
        Ok(Self { settings, volumes, backups, stop: CancellationToken::new() })
    }

    /// The volumes themselves.
    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// Tells why volumes cannot be served, as long as they cannot. A group that
    /// is missing is no such reason: the others go on.
    pub fn readiness(&self) -> Readiness {
        self.volumes.health()
    }

    /// Adds its services to those that are served.
    pub fn add_to(&self, services: &mut Services) {
        services.add(LvApi::service(self.volumes.clone(), self.backups.clone()));
        services.add(VgApi::service(self.volumes.clone(), self.stop.clone()));
        services.add(VolumesApi::service(self.volumes.clone()));
        services.add(BackupsApi::service(self.backups.clone(), self.stop.clone()));
    }

    /// Returns the engine of the operations on backups, if these are configured.
    pub fn engine(&self) -> Option<&Engine> {
        self.backups.as_ref().map(Backups::engine)
    }

    /// Registers its metrics.
    pub fn register(&self, metrics: &Metrics) {
        if let Some(backups) = &self.backups {
            backups.register(metrics);
        }
    }

    /// Starts what runs beside the services.
    pub fn spawn(&self, tasks: &Tasks) {
        let stop = tasks.token().clone();
        tasks.spawn("volumes", self.volumes.clone().run(stop.clone()));
        let (stopped, streams) = (stop.clone(), self.stop.clone());
        tasks.spawn("streams of volumes", async move {
            stopped.cancelled().await;
            streams.cancel();
        });
        if let Some(backups) = self.backups.clone() {
            tasks.spawn("backups", backups.run(stop.clone()));
        }
        if let Some(path) = self.settings.path.clone() {
            let Settings { config, .. } = self.settings.clone();
            tasks.spawn("volume classes", reload::follow(self.volumes.clone(), path, config, stop));
        }
    }
}
