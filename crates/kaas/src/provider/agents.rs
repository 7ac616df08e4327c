//! Machines that joined the controller and are labelled `kaas=free`. Which of
//! them is whose is written in the store: a machine is in one cluster at most.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::selvage::identity::Machine as Joined;
use selvage_kit::dial::Endpoint;
use selvage_store::{Record, SharedStore, Table, transact};
use tonic::transport::Channel;

use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, Wipe,
    joined::{Fleet, Inventory, NODE},
};

/// Label and value of machines that may be taken.
const FREE: (&str, &str) = ("kaas", "free");
/// Label that names the type of a machine; `standard` where it is missing.
const TYPE: &str = "instance-type";
const STANDARD: &str = "standard";

/// A machine that a cluster has.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AssignedMachine {
    /// Name of the machine, without `node/`.
    #[prost(string, tag = "1")]
    pub machine: String,
    #[prost(string, tag = "2")]
    pub operation: String,
    #[prost(string, tag = "3")]
    pub cluster: String,
    #[prost(string, tag = "4")]
    pub name: String,
}

impl Record for AssignedMachine {
    const KIND: &'static str = "kaas-taken";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.machine.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("operation", self.operation.clone())]
    }
}

/// Machines that joined.
pub struct Agents {
    fleet: Fleet,
    store: SharedStore,
    taken: Arc<Table<AssignedMachine>>,
    /// Machines that nobody gets.
    excluded: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agents")
    }
}

fn unavailable(error: &selvage_store::Error) -> Error {
    Error::Unavailable(error.to_string())
}

impl Agents {
    pub async fn open(
        store: SharedStore,
        inventory: impl Inventory,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Self, selvage_store::Error> {
        let taken = Table::open(Arc::clone(&store)).await?;
        let excluded = Mutex::default();
        Ok(Self { fleet: Fleet::new(inventory, tls), store, taken, excluded })
    }

    /// Machines that may be in a cluster, with their types.
    fn offered(&self) -> Vec<(String, String, Joined)> {
        let machines = self.fleet.machines().into_iter();
        let excluded = self.excluded.lock();
        let offered = machines.filter_map(|machine| {
            let name = machine.machine.strip_prefix(NODE)?.to_owned();
            let free = machine.labels.get(FREE.0).is_some_and(|value| value == FREE.1);
            let usable = free
                && !machine.blocked
                && !machine.address.is_empty()
                && !excluded.contains(&name);
            let kind = machine.labels.get(TYPE).map_or(STANDARD, String::as_str).to_owned();
            usable.then_some((name, kind, machine))
        });
        offered.collect()
    }

    fn of(&self, operation: &OperationId) -> Option<AssignedMachine> {
        let found = self.taken.by_index("operation", &operation.0);
        found.first().map(|stored| stored.value.clone())
    }

    fn joined(&self, operation: &OperationId) -> Result<(AssignedMachine, Endpoint), Error> {
        let gone = || Error::Refused("the machine is gone".into());
        let taken = self.of(operation).ok_or_else(gone)?;
        let name = format!("{NODE}{}", taken.machine);
        if !self.fleet.machines().iter().any(|machine| machine.machine == name) {
            return Err(gone());
        }
        let silent = || Error::Unavailable("the machine has not told where it is".into());
        let endpoint = self.fleet.endpoint(&taken.machine)?.ok_or_else(silent)?;
        Ok((taken, endpoint))
    }

    /// Takes a machine unless somebody was faster.
    async fn take(&self, taken: AssignedMachine) -> Result<bool, Error> {
        let committed = transact(&self.store, async |tx| {
            if tx.get::<AssignedMachine>(&taken.machine).await?.is_some() {
                return Ok(false);
            }
            tx.put(&taken)?;
            Ok::<_, selvage_store::Error>(true)
        })
        .await
        .map_err(|error| unavailable(&error))?;
        let waited = self.taken.wait_for(committed.revision).await;
        waited.map_err(|error| unavailable(&error))?;
        Ok(committed.value)
    }
}

#[async_trait]
impl Provider for Agents {
    fn name(&self) -> &'static str {
        "agents"
    }

    fn capabilities(&self) -> Capabilities {
        let problem = self.offered().is_empty().then(|| {
            "no machine is offered: run `selvage node --controller HOST:PORT --label kaas=free \
             --set node.kubernetes=true` on one, with a join token"
                .to_owned()
        });
        Capabilities { disposable: false, problem }
    }

    fn exclude(&self, machines: BTreeSet<String>) -> bool {
        *self.excluded.lock() = machines;
        true
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        let mut offers: Vec<Offer> = Vec::new();
        for (name, kind, _) in self.offered() {
            if !instance_type.is_empty() && kind != instance_type {
                continue;
            }
            let free = u32::from(self.taken.get(&name).is_none());
            match offers.iter_mut().find(|offer| offer.instance_type == kind) {
                Some(offer) => {
                    offer.total = offer.total.map(|total| total + 1);
                    offer.free = offer.free.map(|known| known + free);
                }
                None => {
                    offers.push(Offer { instance_type: kind, total: Some(1), free: Some(free) });
                }
            }
        }
        Ok(offers)
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        if let Some(known) = self.of(operation) {
            return Ok(Acquired { id: known.machine.clone(), hostname: known.machine });
        }
        for (machine, kind, _) in self.offered() {
            let fits = request.instance_type.is_empty() || kind == request.instance_type;
            if !fits || self.taken.get(&machine).is_some() {
                continue;
            }
            let taken = AssignedMachine {
                machine: machine.clone(),
                operation: operation.0.clone(),
                cluster: request.cluster.clone(),
                name: request.name.clone(),
            };
            if self.take(taken).await? {
                return Ok(Acquired { id: machine.clone(), hostname: machine });
            }
        }
        Err(Error::NoneFree(match request.instance_type.as_str() {
            "" => "no machine is free".into(),
            kind => format!("no machine of type {kind:?} is free"),
        }))
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        let (taken, endpoint) = self.joined(operation)?;
        let state = self.fleet.up(&endpoint).await?;
        Ok(Observed { state, detail: format!("joined as {}", taken.machine) })
    }

    async fn release(&self, operation: &OperationId, _: Wipe) -> Result<bool, Error> {
        let Some(known) = self.of(operation) else { return Ok(true) };
        let committed = transact(&self.store, async |tx| {
            let stored = tx.get::<AssignedMachine>(&known.machine).await?;
            if stored.is_some_and(|stored| stored.operation == operation.0) {
                tx.delete::<AssignedMachine>(&known.machine).await?;
            }
            Ok::<_, selvage_store::Error>(())
        })
        .await
        .map_err(|error| unavailable(&error))?;
        let waited = self.taken.wait_for(committed.revision).await;
        waited.map_err(|error| unavailable(&error))?;
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        let (_, endpoint) = self.joined(operation)?;
        self.fleet.channel(endpoint)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        let owned = |taken: &AssignedMachine| Owned {
            operation: OperationId(taken.operation.clone()),
            id: taken.machine.clone(),
        };
        Ok(self.taken.list().iter().map(|stored| owned(&stored.value)).collect())
    }
}
