//! Machines of a MaaS: allocated by instance type, deployed with our agent on
//! them, and given back.
//!
//! The operation that a machine was asked for by is its `agent_name` at MaaS.
//! Before a machine is allocated, the one of this operation is looked for, so
//! that an answer which got lost loses no machine; which machine an operation
//! has is decided in the store ([`ledger`]), so that two processes never keep two.
//! A machine counts as ours only while MaaS lists it under our user and the
//! operation: one that an administrator took, or that was given to somebody
//! else, is never touched again.
//!
//! After its agent has joined, a machine is like any other that joined.

mod api;
mod http;
pub mod ledger;
mod oauth;
mod options;
mod release;
mod user_data;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::selvage::identity::{
    CreateJoinTokenRequest, identity_service_client::IdentityServiceClient,
};
use selvage_auth::Auth;
use selvage_kit::identity::{Identity, Kind, Secret};
use selvage_store::{
    SharedStore,
    clock::{Clock, Millis},
};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tonic::transport::Channel;

use self::{
    api::{Api, MaasMachine, Status},
    http::{Failure, Http},
    ledger::{Allocation, Ledger},
    user_data::FirstStart,
};
pub use self::{
    options::{Erase, InstanceType, MaasOptions},
    user_data::TOKEN_FILE,
};
use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe,
    joined::{Fleet, NODE},
};

/// Life of a join token: MaaS gives a deployment half an hour, and packages
/// have to be installed after it.
const TOKEN_SECONDS: u32 = 2 * 60 * 60;
/// Time for which MaaS may show a machine as allocated after it took a deployment.
const SETTLING_MILLIS: u64 = 60_000;

/// Time for which an answer about a machine that MaaS works on is good: it takes
/// minutes, and is looked at more often than that.
const POLL_MILLIS: u64 = 5_000;
const RETURNING: &str = "it is being given back";

/// Machines of a MaaS.
pub struct Maas {
    api: Api,
    options: MaasOptions,
    /// Address at which machines reach this controller.
    controller: String,
    ledger: Ledger,
    fleet: Fleet,
    auth: Auth,
    clock: Arc<dyn Clock>,
    /// Name of our user at MaaS.
    owner: OnceCell<String>,
    /// When MaaS was last asked about an operation that it works on, and what
    /// it said.
    asked: Mutex<HashMap<String, (Millis, Observed)>>,
    /// Machines that nobody gets.
    excluded: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Maas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Maas")
    }
}

/// A call to `selvage.identity` in the name of this part.
fn as_kaas<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.extensions_mut().insert(Identity::all_powerful("kaas", Kind::Local));
    request
}

/// Name that the agent of a machine joins by, without `node/`: another one
/// each time that MaaS gives us the machine.
fn agent_name(operation: &OperationId, system_id: &str) -> String {
    let digest = Sha256::digest(operation.0.as_bytes());
    let short: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("maas-{system_id}-{short}")
}

impl Maas {
    /// `controller` is where machines reach this controller, unless the
    /// options say it.
    pub async fn open(
        store: SharedStore,
        auth: Auth,
        options: MaasOptions,
        controller: &str,
        tls: Option<Arc<rustls::ClientConfig>>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        options.validate().map_err(anyhow::Error::msg)?;
        let own = [options.controller.as_str(), controller].into_iter().find(|c| !c.is_empty());
        let Some(own) = own.map(str::to_owned) else {
            anyhow::bail!("kaas.maas.controller: needed, machines have to reach this controller");
        };
        let inventory = auth.clone();
        Ok(Self {
            api: Api(Http::new(&options, Arc::clone(&clock))?),
            controller: own,
            ledger: Ledger::open(store).await?,
            fleet: Fleet::new(move || inventory.machines(), tls),
            auth,
            options,
            clock,
            owner: OnceCell::new(),
            asked: Mutex::default(),
            excluded: Mutex::default(),
        })
    }

    /// Latest answers of MaaS, by operation.
    fn recent(&self, operation: &OperationId) -> Option<Observed> {
        let asked = self.asked.lock();
        let (at, said) = asked.get(&operation.0)?;
        (self.clock.now() < at + POLL_MILLIS).then(|| said.clone())
    }

    fn remember(&self, operation: &OperationId, said: Option<&Observed>) {
        let mut asked = self.asked.lock();
        match said {
            Some(said) => {
                asked.insert(operation.0.clone(), (self.clock.now(), said.clone()));
            }
            None => {
                asked.remove(&operation.0);
            }
        }
    }

    async fn owner(&self) -> Result<&str, Error> {
        let owner = self.owner.get_or_try_init(|| self.api.whoami()).await?;
        Ok(owner)
    }

    /// Machines that we have at MaaS for this operation.
    async fn own(&self, operation: &OperationId) -> Result<Vec<MaasMachine>, Error> {
        let owner = self.owner().await?;
        let found = self.api.of_agent(&operation.0).await?.into_iter();
        let ours = |machine: &MaasMachine| {
            machine.owner.as_deref() == Some(owner)
                && !self.ledger.is_of_another(&machine.system_id, operation)
        };
        Ok(found.filter(ours).collect())
    }

    /// Gives back what MaaS gave to an operation besides its machine.
    async fn release_others(
        &self,
        allocation: &Allocation,
        own: &[MaasMachine],
    ) -> Result<(), Error> {
        let is_other = |machine: &&MaasMachine| {
            machine.system_id != allocation.system_id && machine.status() != Status::Releasing
        };
        let mut written = allocation.clone();
        for other in own.iter().filter(is_other) {
            tracing::info!(machine = other.system_id, "given back: allocated twice");
            written = self.ledger.add_other(written, &other.system_id).await?;
            self.give_back(other, Wipe::Reset).await?;
        }
        Ok(())
    }

    /// A machine that fits and is not excluded; `None` where MaaS may choose itself.
    async fn choose_other(&self, wanted: &InstanceType) -> Result<Option<String>, Error> {
        let excluded = self.excluded.lock().clone();
        if excluded.is_empty() {
            return Ok(None);
        }
        let machines = self.api.machines().await?;
        let free = machines.iter().find(|machine| {
            machine.is_free() && machine.fits(wanted) && !excluded.contains(&machine.system_id)
        });
        let none = || Error::NoneFree("MaaS has no machine that fits and is free".into());
        Ok(Some(free.ok_or_else(none)?.system_id.clone()))
    }

    async fn allocate(
        &self,
        operation: &OperationId,
        request: &Request,
    ) -> Result<MaasMachine, Error> {
        let wanted = self.options.instance_type(&request.instance_type);
        let comment = format!("{} of cluster {}", request.name, request.cluster);
        let system_id = self.choose_other(&wanted).await?;
        let allocated = self.api.allocate(&operation.0, &comment, &wanted, system_id.as_deref());
        match allocated.await {
            Ok(machine) => Ok(machine),
            Err(Failure::Conflict(text)) => Err(Error::NoneFree(text)),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Finds the machine of an operation that has one, and its state.
    async fn find(&self, operation: &OperationId) -> Result<(Allocation, MaasMachine), Error> {
        let gone = || Error::Refused("the machine is gone".into());
        let allocation = self
            .ledger
            .get(operation)
            .filter(|allocation| allocation.ended_at == 0)
            .ok_or_else(gone)?;
        let own = self.own(operation).await?;
        let machine = own.iter().find(|machine| machine.system_id == allocation.system_id).cloned();
        let lost = || {
            Error::Refused(format!("MaaS no longer has machine {} for us", allocation.system_id))
        };
        let machine = machine.ok_or_else(lost)?;
        self.release_others(&allocation, &own).await?;
        Ok((allocation, machine))
    }

    /// Installs our agent on a machine that was allocated.
    async fn deploy(
        &self,
        allocation: &Allocation,
        machine: &MaasMachine,
    ) -> Result<Observed, Error> {
        let waiting = |detail: String| Ok(Observed { state: State::Deploying, detail });
        let now = self.clock.now();
        if allocation.deployed_at > 0 && now < allocation.deployed_at + SETTLING_MILLIS {
            return waiting("MaaS begins to deploy it".into());
        }
        let token = self.join_token(allocation).await?;
        let start = FirstStart {
            controller: &self.controller,
            token: &token,
            binary_url: &self.options.binary_url,
            binary_sha256: &self.options.binary_sha256,
            packages: &self.options.packages,
            instance_type: &allocation.instance_type,
        };
        let series = self.options.instance_type(&allocation.instance_type).distro_series;
        let comment = format!("cluster {}", allocation.cluster);
        let id = &machine.system_id;
        let deployed = self.api.deploy(id, &comment, &series, &start.encode()).await?;
        self.ledger.note_deployment(allocation.clone(), now).await?;
        waiting(deployed.detail())
    }

    /// A token by which the agent of this machine joins, and nobody else.
    async fn join_token(&self, allocation: &Allocation) -> Result<Secret, Error> {
        let machine = format!("{NODE}{}", allocation.agent);
        let asked = CreateJoinTokenRequest {
            machine,
            ttl_seconds: TOKEN_SECONDS,
            ..CreateJoinTokenRequest::default()
        };
        let mut identities = IdentityServiceClient::new(self.auth.identity_service());
        let made = identities.create_join_token(as_kaas(asked)).await;
        let made = made.map_err(|status| Error::Unavailable(status.message().to_owned()))?;
        Ok(Secret::new(made.into_inner().token))
    }

    /// Returns whether the agent of this operation's machine is there.
    fn has_joined(&self, operation: &OperationId) -> Result<bool, Error> {
        match self.ledger.get(operation) {
            Some(allocation) => Ok(self.fleet.endpoint(&allocation.agent)?.is_some()),
            None => Ok(false),
        }
    }

    /// A machine that MaaS has deployed: it is there when its agent is.
    async fn joined(
        &self,
        allocation: &Allocation,
        machine: &MaasMachine,
    ) -> Result<Observed, Error> {
        let name = &allocation.agent;
        Ok(match self.fleet.endpoint(name)? {
            None => Observed {
                state: State::Deploying,
                detail: format!("{}; its agent has not joined yet", machine.detail()),
            },
            Some(endpoint) => Observed {
                state: self.fleet.up(&endpoint).await?,
                detail: format!("{}, joined as {name}", machine.detail()),
            },
        })
    }
}

#[async_trait]
impl Provider for Maas {
    fn name(&self) -> &'static str {
        "maas"
    }

    fn capabilities(&self) -> Capabilities {
        // What is on a machine goes with its next deployment, or at once where
        // disks are erased: its agent need not answer for it to be given back.
        Capabilities { disposable: true, problem: None }
    }

    fn exclude(&self, machines: BTreeSet<String>) -> bool {
        *self.excluded.lock() = machines;
        true
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        let wanted = self.options.instance_type(instance_type);
        let owner = self.owner().await?;
        let (mut total, mut free) = (0, 0);
        let excluded = self.excluded.lock().clone();
        for machine in self.api.machines().await?.iter().filter(|machine| machine.fits(&wanted)) {
            if excluded.contains(&machine.system_id) {
                continue;
            }
            let mine = machine.owner.as_deref() == Some(owner);
            total += u32::from(mine || machine.is_free());
            free += u32::from(machine.is_free());
        }
        let instance_type = instance_type.to_owned();
        Ok(vec![Offer { instance_type, total: Some(total), free: Some(free) }])
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        let intent = Allocation {
            operation: operation.0.clone(),
            instance_type: request.instance_type.clone(),
            cluster: request.cluster.clone(),
            ..Allocation::default()
        };
        let mut allocation = self.ledger.intend(intent).await?;
        if allocation.ended_at > 0 {
            return Err(Error::Refused("the machine was given back".into()));
        }
        let mut own = self.own(operation).await?;
        if allocation.system_id.is_empty() {
            let usable = |machine: &&MaasMachine| {
                !matches!(machine.status(), Status::Releasing | Status::FailedReleasing)
            };
            let found = match own.iter().find(usable) {
                Some(found) => found.clone(),
                None => {
                    let found = self.allocate(operation, request).await?;
                    own.push(found.clone());
                    found
                }
            };
            let agent = agent_name(operation, &found.system_id);
            allocation = self.ledger.choose(allocation, &found, &agent).await?;
            if allocation.system_id != found.system_id {
                self.release_others(&allocation, &[found]).await?;
                return Err(Error::Unavailable("another process has a machine for it".into()));
            }
        }
        self.release_others(&allocation, &own).await?;
        if !own.iter().any(|machine| machine.system_id == allocation.system_id) {
            return Err(Error::Refused(format!(
                "MaaS no longer has machine {} for us",
                allocation.system_id
            )));
        }
        Ok(Acquired { id: allocation.system_id, hostname: allocation.hostname })
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        if let Some(said) = self.recent(operation)
            && !self.has_joined(operation)?
        {
            return Ok(said);
        }
        self.remember(operation, None);
        let (allocation, machine) = self.find(operation).await?;
        let detail = machine.detail();
        let observed = match machine.status() {
            Status::Allocated => self.deploy(&allocation, &machine).await?,
            Status::Deploying => Observed { state: State::Deploying, detail },
            Status::Deployed => self.joined(&allocation, &machine).await?,
            _ => Observed { state: State::Failed(format!("MaaS: {detail}")), detail },
        };
        self.remember(operation, Some(&observed).filter(|o| o.state == State::Deploying));
        Ok(observed)
    }

    async fn release(&self, operation: &OperationId, wipe: Wipe) -> Result<bool, Error> {
        let Some(allocation) = self.ledger.get(operation) else { return Ok(true) };
        let returning = Observed { state: State::Failed(RETURNING.into()), detail: String::new() };
        if self.recent(operation).is_some_and(|said| said == returning) {
            return Ok(false);
        }
        self.remember(operation, None);
        if !self.returned(operation, &allocation, wipe).await? {
            self.remember(operation, Some(&returning));
            return Ok(false);
        }
        self.forget_agent(&allocation).await?;
        self.ledger.end(allocation, self.clock.now()).await?;
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        let allocation = self.ledger.get(operation).filter(|allocation| allocation.ended_at == 0);
        let allocation = allocation.ok_or_else(|| Error::Refused("the machine is gone".into()))?;
        let silent = || Error::Unavailable("its agent has not joined yet".into());
        let endpoint = self.fleet.endpoint(&allocation.agent)?.ok_or_else(silent)?;
        self.fleet.channel(endpoint)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        self.owned().await
    }
}
