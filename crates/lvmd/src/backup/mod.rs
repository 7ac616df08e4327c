//! Backups of volumes in restic repositories, and what is made of them.
//!
//! Every piece of work is a job: a record that lasts, and an operation that
//! does it and is continued after a crash. What opens a repository is not
//! kept, so work that was cut off waits for a while until somebody asks for
//! it again and brings the keys along; lvmd's clients do that every half
//! minute. Where the machine has the credentials itself, it goes on at once.
//!
//! A volume is read from a snapshot, which is marked, and gone when the job
//! has ended. One that is restored is marked too, and shown to nobody before
//! it is whole.

mod access;
mod credentials;
mod describe;
mod device;
mod ended;
mod error;
mod maintenance;
mod orphans;
mod pick;
mod record;
mod repository;
mod restore;
mod running;
mod save;
mod schedule;
mod start;
mod telemetry;
#[cfg(test)]
mod tests;
mod turns;
mod work;

use std::sync::Arc;

use selvage_api::{
    proto::{DataSource, data_source},
    selvage::volumes as selvage,
};
use selvage_restic::Limits;
use selvage_store::{SharedStore, Table, clock::Clock, embedded};
use selvage_work::{Engine, Options};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use access::{Access, check_storable};
use access::{own_hostname, split, wanted};
pub(crate) use describe::stored;
pub use error::Error;
pub(crate) use error::Result;
pub(crate) use record::{Keep, Kind, StoredLocation};
use running::RunningJobs;
pub(crate) use start::{NewRestore, Origin, Pruning};

use crate::{Volumes, config, private};

/// Name of the process among those that drive operations.
const DRIVER: &str = "lvmd";
/// Marks the snapshot of a backup; behind it stands the operation.
pub(crate) const BACKUP_TAG: &str = "lvmd.backup=";
/// Marks a volume that is being restored; behind it stands the operation.
pub(crate) const RESTORE_TAG: &str = "lvmd.restore=";
/// Marks a volume that a restore writes over; behind it stands the operation.
pub(crate) const REPLACE_TAG: &str = "lvmd.replace=";

/// Backups of this machine's volumes. Clones are the same.
#[derive(Clone)]
pub(crate) struct Backups {
    shared: Arc<Shared>,
    engine: Engine,
}

/// State that jobs work with.
pub(crate) struct Shared {
    config: config::Backup,
    volumes: Volumes,
    store: SharedStore,
    jobs: Arc<Table<record::Job>>,
    parents: Arc<Table<record::Parent>>,
    last_good: Arc<Table<record::LastGood>>,
    schedules: Arc<Table<record::Schedule>>,
    speeds: Arc<Table<record::Speeds>>,
    keychain: credentials::Keychain,
    running: RunningJobs,
    ended: ended::Ended,
    limits: Arc<Limits>,
    slots: Semaphore,
    turns: turns::Turns,
    clock: Arc<dyn Clock>,
}

impl Backups {
    /// Reads what was going on. Removes what nobody knows any more.
    pub(crate) async fn open(volumes: Volumes, config: config::Backup) -> Result<Self> {
        forbid_dumps();
        private::take_folder(&config.workdir)?;
        private::take_folder(&config.workdir.join("credentials"))?;
        let options = Options::default();
        let stored = embedded::Options {
            cache_bytes: 4 << 20,
            clock: Arc::clone(&options.clock),
            ..embedded::Options::default()
        };
        let path = config.workdir.join("backups.redb");
        let store: SharedStore = embedded::Embedded::open(&path, stored).await?;
        let engine = Engine::open(Arc::clone(&store), DRIVER, options.clone()).await?;
        let shared = Arc::new(Shared {
            slots: Semaphore::new(config.jobs),
            turns: turns::Turns::default(),
            config,
            volumes,
            jobs: Table::open(Arc::clone(&store)).await?,
            parents: Table::open(Arc::clone(&store)).await?,
            last_good: Table::open(Arc::clone(&store)).await?,
            schedules: Table::open(Arc::clone(&store)).await?,
            speeds: Table::open(Arc::clone(&store)).await?,
            store,
            keychain: credentials::Keychain::default(),
            running: RunningJobs::default(),
            ended: ended::Ended::default(),
            limits: Arc::default(),
            clock: options.clock,
        });
        shared.apply_speeds();
        work::register(&engine, &shared).await?;
        let this = Self { shared, engine };
        this.remove_orphans().await;
        Ok(this)
    }

    /// Returns the access to a repository that one of our own clients describes.
    pub(crate) fn access(&self, from: selvage::Repository) -> Result<Access> {
        Access::new(from, &self.shared.config)
    }

    /// Returns the access to a repository that one of lvmd's clients describes.
    pub(crate) fn access_of(&self, from: Option<DataSource>) -> Result<Access> {
        match from.and_then(|from| from.r#type) {
            Some(data_source::Type::S3(from)) => Access::from_wire(from, &self.shared.config),
            None => Err(Error::Missing("data_source.s3")),
        }
    }

    /// Returns the engine of its operations.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Works until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let schedules = self.clone().run_schedules(stop.clone());
        let (driven, ()) = tokio::join!(self.engine.run(stop), schedules);
        if let Err(error) = driven {
            tracing::error!(%error, "work on backups cannot go on");
        }
        if let Err(error) = self.shared.store.close().await {
            tracing::warn!(%error, "the state of backups was not closed well");
        }
    }
}

/// A process that holds keys leaves no image of its memory behind.
fn forbid_dumps() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a crash may write keys to disk");
    }
}
