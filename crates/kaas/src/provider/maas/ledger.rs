//! Machines of MaaS that operations have. The intent is written before MaaS is
//! asked, and which of its machines an operation has is decided here: of two
//! processes that ask at the same time one is told to give its machine back.

use std::sync::Arc;

use selvage_store::{Record, SharedStore, Table, clock::Millis, transact};

use super::api::MaasMachine;
use crate::provider::{Error, OperationId};

/// An operation that has a machine of MaaS, asks for one, or had one.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Allocation {
    #[prost(string, tag = "1")]
    pub operation: String,
    /// Empty until one was allocated.
    #[prost(string, tag = "2")]
    pub system_id: String,
    #[prost(string, tag = "3")]
    pub hostname: String,
    #[prost(string, tag = "4")]
    pub instance_type: String,
    #[prost(string, tag = "5")]
    pub cluster: String,
    /// Time of the last answer to a deployment.
    #[prost(uint64, tag = "6")]
    pub deployed_at: Millis,
    /// Time at which it was given back. Kept for a while: an allocation that
    /// MaaS was slow with may still bring a machine.
    #[prost(uint64, tag = "7")]
    pub ended_at: Millis,
    /// Machines that MaaS gave it besides, until they are back.
    #[prost(string, repeated, tag = "8")]
    pub others: Vec<String>,
    /// Name that the agent of its machine joins by, without `node/`. Kept after
    /// the end: a machine may join in the moment in which it is given back.
    #[prost(string, tag = "9")]
    pub agent: String,
}

impl Allocation {
    /// All machines that MaaS gave it.
    pub(super) fn all(&self) -> impl Iterator<Item = &String> {
        let own = Some(&self.system_id).filter(|id| !id.is_empty());
        own.into_iter().chain(&self.others)
    }
}

impl Record for Allocation {
    const KIND: &'static str = "kaas-maas";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.operation.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(BY_MACHINE, self.system_id.clone())]
    }
}

const BY_MACHINE: &str = "machine";

fn unavailable(error: &selvage_store::Error) -> Error {
    Error::Unavailable(error.to_string())
}

/// Record of operations as written to disk.
pub(super) struct Ledger {
    store: SharedStore,
    allocation: Arc<Table<Allocation>>,
}

impl Ledger {
    pub(super) async fn open(store: SharedStore) -> Result<Self, selvage_store::Error> {
        let allocation = Table::open(Arc::clone(&store)).await?;
        Ok(Self { store, allocation })
    }

    pub(super) fn get(&self, operation: &OperationId) -> Option<Allocation> {
        self.allocation.get(&operation.0).map(|stored| stored.value.clone())
    }

    pub(super) fn list(&self) -> Vec<Allocation> {
        self.allocation.list().iter().map(|stored| stored.value.clone()).collect()
    }

    /// Returns whether another operation has that machine now.
    pub(super) fn is_of_another(&self, system_id: &str, operation: &OperationId) -> bool {
        let of = self.allocation.by_index(BY_MACHINE, system_id);
        of.iter().any(|allocation| {
            allocation.value.operation != operation.0 && allocation.value.ended_at == 0
        })
    }

    /// Changes what is written of an operation, or writes `new` if nothing is,
    /// and returns what then is.
    async fn change(
        &self,
        new: Allocation,
        change: impl Fn(&mut Allocation) + Send + Sync,
    ) -> Result<Allocation, Error> {
        let (new, change) = (&new, &change);
        let written = transact(&self.store, |tx| async move {
            let mut allocation =
                tx.get::<Allocation>(&new.operation).await?.unwrap_or_else(|| new.clone());
            change(&mut allocation);
            tx.put(&allocation)?;
            Ok::<_, selvage_store::Error>(allocation)
        });
        let written = written.await.map_err(|error| unavailable(&error))?;
        let seen = self.allocation.wait_for(written.revision).await;
        seen.map_err(|error| unavailable(&error))?;
        Ok(written.value)
    }

    /// Writes down that an operation wants a machine.
    pub(super) async fn intend(&self, new: Allocation) -> Result<Allocation, Error> {
        match self.allocation.get(&new.operation) {
            Some(known) => Ok(known.value.clone()),
            None => self.change(new, |_| {}).await,
        }
    }

    /// Gives an operation its machine, unless it has one; returns what it has.
    pub(super) async fn choose(
        &self,
        allocation: Allocation,
        found: &MaasMachine,
        agent: &str,
    ) -> Result<Allocation, Error> {
        self.change(allocation, |allocation| {
            if allocation.system_id.is_empty() && allocation.ended_at == 0 {
                allocation.system_id.clone_from(&found.system_id);
                allocation.hostname.clone_from(&found.hostname);
                allocation.agent = agent.to_owned();
            }
        })
        .await
    }

    pub(super) async fn note_deployment(
        &self,
        allocation: Allocation,
        now: Millis,
    ) -> Result<(), Error> {
        self.change(allocation, |allocation| allocation.deployed_at = now).await?;
        Ok(())
    }

    /// Writes down a machine that is to go back, before it does.
    pub(super) async fn add_other(
        &self,
        allocation: Allocation,
        system_id: &str,
    ) -> Result<Allocation, Error> {
        if allocation.all().any(|id| id == system_id) {
            return Ok(allocation);
        }
        self.change(allocation, |allocation| {
            if !allocation.all().any(|id| id == system_id) {
                allocation.others.push(system_id.to_owned());
            }
        })
        .await
    }

    /// Writes down that all machines of an operation are back.
    pub(super) async fn end(&self, allocation: Allocation, now: Millis) -> Result<(), Error> {
        self.change(allocation, |allocation| {
            allocation.ended_at = allocation.ended_at.max(now);
            allocation.system_id.clear();
            allocation.others.clear();
        })
        .await?;
        Ok(())
    }

    pub(super) async fn forget(&self, operation: &str) -> Result<(), Error> {
        match self.allocation.delete(operation).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }
}
