//! Machines of a static inventory, reached by SSH: this program is copied to a
//! machine and joins the controller as its agent; giving the machine back
//! removes it again.
//!
//! Which operation has which machine is written in the store ([`claims`]), and
//! on the machine too, in the file `claim` of the agent's directory. The row
//! comes before the claim and goes after it, so that whoever goes on after a
//! crash finds the machine; a claim whose row was lost is found by asking the
//! machines. A machine is touched only for the operation that its claim names,
//! under a lock on the machine: a command that comes late changes nothing.
//!
//! After its agent has joined, a machine is like any other that joined.

pub mod claims;
mod install;
mod options;
mod remote;
mod session;

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use selvage_api::selvage::kubernetes::{ResetRequest, member_service_client::MemberServiceClient};
use selvage_auth::Auth;
use selvage_kit::dial::Endpoint;
use selvage_store::SharedStore;
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, time::Instant};
use tonic::transport::Channel;

pub use self::options::{SshMachine, SshOptions};
use self::{
    claims::{Claim, Claims},
    install::{Installations, Installer, Order},
    options::Target,
    remote::Remote,
    session::Failure,
};
use super::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe, enrolment::Enrolment, joined::Fleet,
};

/// Type of machines that name no other.
const STANDARD: &str = "standard";
/// Interval of checks that agents are there.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of an agent's socket in such a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of removing a member of a cluster from a machine.
const RESET_TIMEOUT: Duration = Duration::from_secs(120);
/// Machines that are asked at the same time.
const PARALLEL: usize = 16;

/// Machines by SSH.
pub struct Ssh {
    options: SshOptions,
    claims: Claims,
    fleet: Fleet,
    enrolment: Arc<Enrolment>,
    installer: Arc<Installer>,
    installations: Installations,
    /// Claims on machines that have no row, by operation.
    strays: Mutex<HashMap<String, Claim>>,
    /// Machines in quarantine, by name.
    excluded: Mutex<BTreeSet<String>>,
    checked: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Ssh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ssh")
    }
}

/// Name that the agent of a machine joins by, without `node/`: another one each
/// time that the machine is set aside.
fn agent_name(machine: &str, operation: &str) -> String {
    let digest = Sha256::digest(operation.as_bytes());
    let short: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("ssh-{machine}-{short}")
}

fn gone() -> Error {
    Error::Refused("the machine is gone".into())
}

impl Ssh {
    /// `controller` is where machines reach this controller, unless the options
    /// say it; `program` is copied to them.
    pub async fn open(
        store: SharedStore,
        auth: Auth,
        options: SshOptions,
        controller: &str,
        tls: Option<Arc<rustls::ClientConfig>>,
        program: PathBuf,
    ) -> anyhow::Result<Self> {
        options.validate().map_err(anyhow::Error::msg)?;
        let own = [options.controller.as_str(), controller].into_iter().find(|c| !c.is_empty());
        let Some(own) = own.map(str::to_owned) else {
            anyhow::bail!("kaas.ssh.controller: needed, machines have to reach this controller");
        };
        let inventory = auth.clone();
        let enrolment = Arc::new(Enrolment::new(auth));
        Ok(Self {
            claims: Claims::open(store).await?,
            fleet: Fleet::new(move || inventory.machines(), tls),
            installer: Arc::new(Installer::new(program, own, Arc::clone(&enrolment))),
            enrolment,
            options,
            installations: Installations::default(),
            strays: Mutex::default(),
            excluded: Mutex::default(),
            checked: Mutex::default(),
        })
    }

    async fn connect_to(&self, target: &Target, operation: &str) -> Result<Remote, Failure> {
        Remote::connect(target, &self.claims.controller, operation).await
    }

    fn target(&self, machine: &str) -> Result<Target, Error> {
        self.options.target(machine).map_err(Error::Unavailable)
    }

    /// Agent of a machine that an operation has, once it has joined.
    fn endpoint(&self, claim: &Claim) -> Result<Option<Endpoint>, Error> {
        self.fleet.endpoint(&agent_name(&claim.machine, &claim.operation))
    }

    /// Sets aside the machine of a row. Returns why it is not to be had, where
    /// there is no claim of ours on it.
    async fn claim(&self, claim: &Claim) -> Result<Option<String>, Error> {
        let target = self.target(&claim.machine)?;
        let remote = match self.connect_to(&target, &claim.operation).await {
            Ok(remote) => remote,
            Err(failure) => return Ok(Some(failure.to_string())),
        };
        let claimed = remote.claim(&claim.cluster).await;
        remote.close().await;
        match claimed {
            Ok(true) => Ok(None),
            Ok(false) => {
                let machine = &claim.machine;
                Ok(Some(format!("machine {machine:?} is set aside for another operation")))
            }
            // It may have been done: only this machine is tried again.
            Err(failure) => Err(failure.into()),
        }
    }

    /// Machines of a type that clusters may have, in use or not.
    fn offered(&self, instance_type: &str) -> Vec<(&String, &SshMachine)> {
        let excluded = self.excluded.lock();
        let machines = self.options.machines.iter();
        let fits = machines.filter(|(name, machine)| {
            let kind = SshOptions::instance_type(machine);
            (instance_type.is_empty() || kind == instance_type) && !excluded.contains(*name)
        });
        fits.collect()
    }

    /// Machines of a type that no operation has.
    fn free(&self, instance_type: &str) -> Vec<String> {
        let offered = self.offered(instance_type).into_iter();
        let free = offered.filter(|(name, _)| self.claims.is_free(name));
        free.map(|(name, _)| name.clone()).collect()
    }

    /// Removes what a cluster left on a machine, by its agent.
    async fn reset(&self, claim: &Claim) -> Result<(), Error> {
        let away = || Error::Unavailable("its agent does not answer".into());
        let endpoint = self.endpoint(claim)?.ok_or_else(away)?;
        let mut agent = MemberServiceClient::new(self.fleet.channel(endpoint)?);
        let mut request = tonic::Request::new(ResetRequest { cluster: claim.cluster.clone() });
        request.set_timeout(RESET_TIMEOUT);
        let answer = agent.reset(request).await;
        let answer = answer.map_err(|status| Error::Unavailable(status.message().to_owned()))?;
        match answer.into_inner().left.first() {
            None => Ok(()),
            Some(left) => Err(Error::Unavailable(left.clone())),
        }
    }

    /// Removes everything of an operation from its machine.
    async fn clear(&self, claim: &Claim) -> Result<(), Error> {
        let Ok(target) = self.options.target(&claim.machine) else {
            tracing::warn!(machine = claim.machine, "is no longer in the inventory");
            return Ok(());
        };
        let remote = self.connect_to(&target, &claim.operation).await?;
        if let Some(probe) = remote.probe().await? {
            if probe.member {
                remote.start().await?;
                self.reset(claim).await?;
            }
            remote.release(install::cgroup(&target)).await?;
        }
        remote.close().await;
        Ok(())
    }

    /// The row of an operation, or what stands for one that was lost.
    fn claim_of(&self, operation: &OperationId) -> Option<Claim> {
        self.claims.of(operation).or_else(|| self.strays.lock().get(&operation.0).cloned())
    }

    /// Asks a machine whose it is; `None` also where it does not answer.
    async fn stray(&self, machine: &str) -> Option<Claim> {
        let target = self.options.target(machine).ok()?;
        let status = async {
            let remote = self.connect_to(&target, "").await?;
            let status = remote.status().await;
            remote.close().await;
            status
        };
        let [controller, operation, cluster] = match status.await {
            Ok(status) => status?,
            Err(failure) => {
                tracing::warn!(machine, %failure, "does not say whose it is");
                return None;
            }
        };
        let ours = controller == self.claims.controller;
        ours.then(|| Claim { machine: machine.to_owned(), operation, cluster })
    }

    /// Starts the agent of a machine that does not answer.
    async fn revive(&self, claim: &Claim) {
        let Ok(Some(endpoint)) = self.endpoint(claim) else { return };
        let socket = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        if matches!(tokio::time::timeout(CHECK_TIMEOUT, socket).await, Ok(Ok(_))) {
            return;
        }
        let started = async {
            let remote = self.connect_to(&self.target(&claim.machine)?, &claim.operation).await?;
            let started = remote.start().await;
            remote.close().await;
            Ok::<_, Error>(started?)
        };
        match started.await {
            Ok(()) => tracing::info!(machine = claim.machine, "its agent is started again"),
            Err(error) => tracing::warn!(machine = claim.machine, %error, "its agent is away"),
        }
    }
}

#[async_trait]
impl Provider for Ssh {
    fn name(&self) -> &'static str {
        "ssh"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { disposable: false, problem: None }
    }

    fn exclude(&self, machines: BTreeSet<String>) -> bool {
        *self.excluded.lock() = machines;
        true
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        let mut offers: Vec<Offer> = Vec::new();
        for (name, machine) in self.offered(instance_type) {
            let kind = SshOptions::instance_type(machine);
            let at = match offers.iter().position(|offer| offer.instance_type == kind) {
                Some(at) => at,
                None => {
                    let instance_type = kind.to_owned();
                    offers.push(Offer { instance_type, total: Some(0), free: Some(0) });
                    offers.len() - 1
                }
            };
            let free = u32::from(self.claims.is_free(name));
            offers[at].total = offers[at].total.map(|total| total + 1);
            offers[at].free = offers[at].free.map(|known| known + free);
        }
        Ok(offers)
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        let acquired = |machine: String| Acquired { hostname: machine.clone(), id: machine };
        if let Some(own) = self.claims.of(operation) {
            return match self.claim(&own).await? {
                None => Ok(acquired(own.machine)),
                Some(reason) => Err(Error::Unavailable(reason)),
            };
        }
        let mut reasons = Vec::new();
        for machine in self.free(&request.instance_type) {
            let claim =
                Claim { machine, operation: operation.0.clone(), cluster: request.cluster.clone() };
            if !self.claims.add(&claim).await? {
                continue;
            }
            match self.claim(&claim).await? {
                None => return Ok(acquired(claim.machine)),
                Some(reason) => reasons.push(reason),
            }
            self.claims.remove(&claim).await?;
        }
        Err(Error::NoneFree(match request.instance_type.as_str() {
            _ if !reasons.is_empty() => reasons.join("; "),
            "" => "no machine is free".into(),
            kind => format!("no machine of type {kind:?} is free"),
        }))
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        let claim = self.claims.of(operation).ok_or_else(gone)?;
        if let Some(endpoint) = self.endpoint(&claim)? {
            self.installations.forget(operation);
            let state = self.fleet.up(&endpoint).await?;
            let agent = agent_name(&claim.machine, &claim.operation);
            return Ok(Observed { state, detail: format!("joined as {agent}") });
        }
        let target = self.target(&claim.machine)?;
        let machine = self.options.machines.get(&claim.machine).ok_or_else(gone)?;
        let order = Order {
            target,
            controller: self.claims.controller.clone(),
            operation: claim.operation.clone(),
            agent: agent_name(&claim.machine, &claim.operation),
            instance_type: SshOptions::instance_type(machine).to_owned(),
        };
        self.installations.advance(&self.installer, order).await
    }

    async fn release(&self, operation: &OperationId, _: Wipe) -> Result<bool, Error> {
        let Some(claim) = self.claim_of(operation) else { return Ok(true) };
        self.installations.cancel(operation).await;
        self.clear(&claim).await?;
        self.enrolment.remove(&agent_name(&claim.machine, &claim.operation)).await?;
        self.claims.remove(&claim).await?;
        self.strays.lock().remove(&operation.0);
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, Error> {
        let claim = self.claims.of(operation).ok_or_else(gone)?;
        let silent = || Error::Unavailable("its agent has not joined yet".into());
        self.fleet.channel(self.endpoint(&claim)?.ok_or_else(silent)?)
    }

    /// Also machines whose claim is ours although the store knows nothing of it,
    /// as after a restore.
    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        let mut free: Vec<String> = self.options.machines.keys().cloned().collect();
        free.retain(|name| self.claims.is_free(name));
        let asked = futures::stream::iter(free).map(|name| async move { self.stray(&name).await });
        let strays: Vec<Option<Claim>> = asked.buffered(PARALLEL).collect().await;
        let strays: Vec<Claim> = strays.into_iter().flatten().collect();
        let by_operation = strays.iter().map(|claim| (claim.operation.clone(), claim.clone()));
        *self.strays.lock() = by_operation.collect();
        let rows = self.claims.list().into_iter().chain(strays);
        let owned =
            rows.map(|row| Owned { operation: OperationId(row.operation), id: row.machine });
        Ok(owned.collect())
    }

    /// Starts agents that ended: a machine without systemd does not after a
    /// restart.
    async fn maintain(&self) -> Result<(), Error> {
        {
            let mut checked = self.checked.lock();
            if checked.is_some_and(|at| at.elapsed() < CHECK_INTERVAL) {
                return Ok(());
            }
            *checked = Some(Instant::now());
        }
        let checks = futures::stream::iter(self.claims.list())
            .map(|claim| async move { self.revive(&claim).await });
        checks.buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
        Ok(())
    }
}
