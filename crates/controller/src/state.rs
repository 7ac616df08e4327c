//! State of a controller, apart from what drives it: the store, the tables in
//! memory, the settings, what agents said.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use selvage_kit::clock::Clock;
use selvage_samples::{Archive, Limits, Sink};
use selvage_store::table::Committed;
use selvage_store::{LeaseId, SharedStore, Transaction, transact};
use tokio::time::Instant;

use crate::controller::{Dependencies, MeetsDeletions, Mode};
use crate::error::Result;
use crate::memory::Memory;
use crate::registry::PeerConnector;
use crate::settings::Settings;
use crate::tables::Tables;
use crate::version;

/// Longest wait of a caller for a deletion that is in the way.
const DELETION_TIMEOUT: Duration = Duration::from_secs(2);
const DELETION_POLL: Duration = Duration::from_millis(20);

/// State of a controller.
pub struct ControllerState {
    pub store: SharedStore,
    pub tables: Tables,
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub(crate) lease: RwLock<LeaseId>,
    pub(crate) memory: Memory,
    pub(crate) peers: Arc<dyn PeerConnector>,
}

impl std::fmt::Debug for ControllerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerState")
            .field("address", &self.settings.external_address)
            .finish_non_exhaustive()
    }
}

impl ControllerState {
    /// Brings the store to the newest model and reads everything into memory.
    pub async fn open(
        store: SharedStore,
        settings: Settings,
        dependencies: &Dependencies,
    ) -> Result<Arc<Self>> {
        version::prepare(&store, settings.auto_upgrade, version::STEPS).await?;
        let tables = Tables::open(&store).await?;
        let lease = store.lease_grant(settings.lease).await?;
        let samples = Archive::new(Limits {
            count: settings.samples_kept,
            bytes: settings.samples_bytes,
            age: settings.samples_age,
        });
        let influx = settings.influx.clone().map(Sink::new).transpose()?;
        let state = Arc::new(Self {
            store,
            tables,
            clock: Arc::clone(&dependencies.clock),
            lease: RwLock::new(lease.id),
            memory: Memory::new(samples, influx),
            peers: Arc::clone(&dependencies.peers),
            settings,
        });
        if let Some(folder) = state.settings.samples_folder.clone() {
            state.memory.samples.recall(folder, state.clock.now()).await;
        }
        Ok(state)
    }

    /// The lease that what this controller owns hangs on.
    pub fn lease(&self) -> LeaseId {
        *self.lease.read()
    }

    /// Runs a transaction, again whenever somebody came in between and while
    /// something it refers to is being deleted. In a dry run nothing is
    /// committed and the revision is 0.
    pub async fn transact<T, E, F, Fut>(&self, mode: Mode, mut body: F) -> Result<Committed<T>, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<selvage_store::Error> + MeetsDeletions,
    {
        let give_up = Instant::now() + DELETION_TIMEOUT;
        loop {
            let result = match mode {
                // Boxed, since the futures of most callers hold one of these.
                Mode::Real => Box::pin(transact(&self.store, &mut body)).await,
                Mode::DryRun => Box::pin(rehearse(&self.store, &mut body)).await,
            };
            match result {
                Err(error) if error.is_being_deleted() && Instant::now() < give_up => {
                    tokio::time::sleep(DELETION_POLL).await;
                }
                result => return result,
            }
        }
    }
}

/// End of a body that must not be committed.
enum Rehearsal<T, E> {
    Ended(T),
    Failed(E),
}

impl<T, E: From<selvage_store::Error>> From<selvage_store::Error> for Rehearsal<T, E> {
    fn from(error: selvage_store::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs the body and drops what it wrote.
async fn rehearse<T, E, F, Fut>(store: &SharedStore, body: &mut F) -> Result<Committed<T>, E>
where
    F: FnMut(Transaction) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: From<selvage_store::Error>,
{
    let attempt = transact(store, |tx| {
        let run = body(tx);
        async move {
            Err(match run.await {
                Ok(value) => Rehearsal::Ended(value),
                Err(error) => Rehearsal::Failed(error),
            })
        }
    });
    match attempt.await {
        Ok(Committed { value, .. }) | Err(Rehearsal::Ended(value)) => {
            Ok(Committed { value, revision: 0 })
        }
        Err(Rehearsal::Failed(error)) => Err(error),
    }
}
