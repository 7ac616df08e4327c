//! Machines of the inventory that operations have, as the store knows it. A row
//! is written before its machine is claimed and deleted after the claim is
//! gone.

use std::sync::Arc;

use selvage_store::{Record, SharedStore, Table, transact};
use uuid::Uuid;

use crate::provider::{Error, OperationId};

const BY_OPERATION: &str = "operation";

/// A machine that an operation has.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    /// Name of the machine in the inventory.
    #[prost(string, tag = "1")]
    pub machine: String,
    #[prost(string, tag = "2")]
    pub operation: String,
    #[prost(string, tag = "3")]
    pub cluster: String,
}

impl Record for Claim {
    const KIND: &'static str = "kaas-ssh";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.machine.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(BY_OPERATION, self.operation.clone())]
    }
}

/// Machine of an operation: it never has two, whoever asks at the same time.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MachineOf {
    #[prost(string, tag = "1")]
    pub operation: String,
    #[prost(string, tag = "2")]
    pub machine: String,
}

impl Record for MachineOf {
    const KIND: &'static str = "kaas-ssh-operation";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.operation.clone()
    }
}

/// Name of this store on machines: another controller may have them in its
/// inventory too.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerId {
    #[prost(string, tag = "1")]
    pub id: String,
}

impl Record for ControllerId {
    const KIND: &'static str = "kaas-ssh-controller";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        "own".into()
    }
}

pub(super) fn unavailable(error: &selvage_store::Error) -> Error {
    Error::Unavailable(error.to_string())
}

/// Rows of machines that operations have.
pub(super) struct Claims {
    store: SharedStore,
    table: Arc<Table<Claim>>,
    /// Name of this store.
    pub(super) controller: String,
}

impl Claims {
    pub(super) async fn open(store: SharedStore) -> Result<Self, selvage_store::Error> {
        let table = Table::open(Arc::clone(&store)).await?;
        let own = transact(&store, async |tx| {
            let fresh = ControllerId { id: Uuid::new_v4().to_string() };
            let own = match tx.get::<ControllerId>(&fresh.key()).await? {
                Some(own) => own,
                None => {
                    tx.put(&fresh)?;
                    fresh
                }
            };
            Ok::<_, selvage_store::Error>(own.id)
        });
        let controller = own.await?.value;
        Ok(Self { store, table, controller })
    }

    pub(super) fn of(&self, operation: &OperationId) -> Option<Claim> {
        let found = self.table.by_index(BY_OPERATION, &operation.0);
        found.first().map(|stored| stored.value.clone())
    }

    pub(super) fn is_free(&self, machine: &str) -> bool {
        self.table.get(machine).is_none()
    }

    pub(super) fn list(&self) -> Vec<Claim> {
        self.table.list().iter().map(|stored| stored.value.clone()).collect()
    }

    /// Writes a row unless the machine or the operation has one; tells whether
    /// it did.
    pub(super) async fn add(&self, claim: &Claim) -> Result<bool, Error> {
        let added = transact(&self.store, async |tx| {
            let has_one = tx.get::<MachineOf>(&claim.operation).await?.is_some();
            if has_one || tx.get::<Claim>(&claim.machine).await?.is_some() {
                return Ok(false);
            }
            let (operation, machine) = (claim.operation.clone(), claim.machine.clone());
            tx.put(&MachineOf { operation, machine })?;
            tx.put(claim)?;
            Ok::<_, selvage_store::Error>(true)
        });
        let added = added.await.map_err(|error| unavailable(&error))?;
        self.table.wait_for(added.revision).await.map_err(|error| unavailable(&error))?;
        Ok(added.value)
    }

    /// Deletes the row of an operation.
    pub(super) async fn remove(&self, claim: &Claim) -> Result<(), Error> {
        let removed = transact(&self.store, async |tx| {
            let stored = tx.get::<Claim>(&claim.machine).await?;
            if stored.is_some_and(|stored| stored.operation == claim.operation) {
                tx.delete::<Claim>(&claim.machine).await?;
                tx.delete::<MachineOf>(&claim.operation).await?;
            }
            Ok::<_, selvage_store::Error>(())
        });
        let removed = removed.await.map_err(|error| unavailable(&error))?;
        self.table.wait_for(removed.revision).await.map_err(|error| unavailable(&error))
    }
}
