//! The dashboard as one part: what a process opens, serves and runs.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::{
    clock::Clock,
    serve::Services,
    tasks::Tasks,
    telemetry::{self, Metrics},
};
use selvage_store::{Compare, Op, SharedStore, StoreExt, Txn};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::Audit,
    board::Board,
    metrics,
    rules::Thresholds,
    series::{self, Series},
    service::{Dashboards, Shared},
    source::{self, Source},
    stats::Stats,
};

/// The key under which the store has the system's own name.
const ID_KEY: &str = "dashboard/id";

/// Settings that the part is opened with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of history, events and audit lines. None: in memory alone.
    pub folder: Option<PathBuf>,
    /// Days for which audit lines are kept.
    pub audit_days: u32,
    /// Limits from which something is a problem.
    pub thresholds: Thresholds,
}

impl Default for Settings {
    fn default() -> Self {
        Self { folder: None, audit_days: 90, thresholds: Thresholds::default() }
    }
}

/// The dashboard. Clones are the same.
#[derive(Clone)]
pub struct Dashboard {
    shared: Arc<Shared>,
    sources: Arc<Mutex<Vec<Box<dyn Source + Send>>>>,
}

impl Dashboard {
    /// Opens the dashboard of the system of this name and reads what earlier
    /// runs kept. A disk that fails costs the past, not the service.
    pub fn open(settings: Settings, id: String, clock: Arc<dyn Clock>) -> Self {
        let Settings { folder, audit_days, thresholds } = settings;
        let board = Arc::new(Board::new(clock, id, thresholds));
        let series = Arc::new(Series::default());
        if let Some(folder) = &folder {
            match board.events().open(&folder.join("events")) {
                Ok(lasting) => board.recall(lasting),
                Err(error) => tracing::warn!(%error, "events are kept until the next restart only"),
            }
            if let Err(error) = series.open(&folder.join("series"), board.clock().now()) {
                tracing::warn!(%error, "history is kept until the next restart only");
            }
        }
        let audit_folder = folder.map(|folder| folder.join("audit"));
        let audit = Arc::new(Audit::open(audit_folder.as_deref(), audit_days));
        let shared = Arc::new(Shared::new(board, series, audit));
        Self { shared, sources: Arc::default() }
    }

    /// The system's own name, as the store keeps it; made on the first start.
    pub async fn system_id(store: &SharedStore) -> selvage_store::Result<String> {
        let id = uuid::Uuid::new_v4().to_string();
        // Of several processes that start at once, one names it.
        let name = Op::put(ID_KEY, id.clone());
        store.txn(Txn::new().when(Compare::missing(ID_KEY)).then(name)).await?;
        let found = store.get(ID_KEY).await?;
        Ok(found.map_or(id, |found| String::from_utf8_lossy(&found.value).into_owned()))
    }

    /// The board that sources write to.
    pub fn board(&self) -> &Arc<Board> {
        &self.shared.board
    }

    /// Adds a source. Those that are added first are preferred.
    pub fn add_source(&self, source: impl Source + Send + 'static) {
        self.sources.lock().push(Box::new(source));
    }

    /// Adds its services to those that are served.
    pub fn add_to(&self, services: &mut Services) {
        services.add(Stats::service(Arc::clone(&self.shared.board)));
        services.add(Dashboards::service(Arc::clone(&self.shared)));
    }

    /// Shows problems and the age of sources among a process's metrics.
    pub fn watch(&self, metrics: &Metrics) {
        metrics::watch(&self.shared.board, metrics);
    }

    /// Starts what runs beside the services.
    pub fn spawn(&self, tasks: &Tasks) {
        *self.shared.tasks.lock() = Some(tasks.clone());
        for source in std::mem::take(&mut *self.sources.lock()) {
            source::spawn(source, &self.shared.board, tasks);
        }
        let stop = || tasks.token().clone();
        tasks.spawn("dashboard: board", Arc::clone(&self.shared.board).run(stop()));
        tasks.spawn("dashboard: series", self.clone().measure(stop()));
        let audit = Arc::clone(&self.shared.audit);
        tasks.spawn("dashboard: audit", audit.run(telemetry::audit_lines(), stop()));
        let (stopped, streams) = (stop(), self.shared.stop.clone());
        tasks.spawn("dashboard: streams", async move {
            stopped.cancelled().await;
            streams.cancel();
        });
    }

    /// Measures until told to stop.
    async fn measure(self, stop: CancellationToken) {
        let mut works = true;
        let mut pause = FIRST_SAMPLE_DELAY;
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            pause = series::EVERY;
            let dashboard = self.clone();
            let measured = tokio::task::spawn_blocking(move || dashboard.sample()).await;
            let measured = measured.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            match (&measured, works) {
                (Ok(()), false) => tracing::info!("history is written to the disk again"),
                (Err(error), true) => {
                    tracing::warn!(%error, "history cannot be written to the disk");
                }
                _ => {}
            }
            works = measured.is_ok();
        }
        if let Err(error) = self.shared.series.sync() {
            tracing::warn!(%error, "the last of the history is not on the disk");
        }
    }

    fn sample(&self) -> std::io::Result<()> {
        let board = &self.shared.board;
        let snapshot = board.snapshot();
        if !snapshot.is_filled() {
            return Ok(());
        }
        let now = board.clock().now();
        let sampled = self.shared.series.sample(&snapshot, now);
        board.grows(self.shared.series.growth(now));
        sampled
    }
}

/// The first sample comes when sources have answered, so that a chart is not
/// empty for long.
const FIRST_SAMPLE_DELAY: Duration = Duration::from_secs(3);
