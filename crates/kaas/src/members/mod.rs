//! Kubernetes on machines with our agent: what each is to be is told to its
//! agent, what became of it is read from there and from the cluster's API.

mod api;
pub(crate) mod artifacts;
mod backup;
mod drain;
pub(crate) mod mirror;
pub(crate) mod official;
mod preflight;
mod snapshot_kinds;
mod spec;
mod storage;
mod sync;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use prost::Message;
use selvage_api::selvage::kubernetes::{
    AddEtcdMemberRequest, ApplyRequest, Certificate, ComponentState, EtcdPeer, GetMemberRequest,
    MemberSpec, MemberStatus, Profile, PromoteEtcdMemberRequest, RemoveEtcdMemberRequest,
    RequestCertificatesRequest, ResetRequest, member_service_client::MemberServiceClient,
};
use selvage_kube::Connection;
use selvage_store::clock::{Clock, Millis};
use sha2::{Digest, Sha256};
use tonic::{Request, Status, transport::Channel};

use crate::{
    Keyring,
    catalogue::{Catalogue, Version},
    driver::{Driver, Error, Node, Progress},
    endpoint::ApiEndpoint,
    pki::{self, Authorities, ClusterPki, MEMBER_LIFETIME},
    plan::Snapshot,
    provider::{self, OperationId, Provider},
    record::{Machine, Phase},
    vault::{Vault, Writer},
};

/// No call to an agent takes longer, but for one that undoes a whole machine.
const TIMEOUT: Duration = Duration::from_secs(20);
const RESET_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a machine may say that it can run no member before that is believed: a
/// busy one may have failed at something once.
const OBSTACLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Renewed when so much of the life of a certificate is left.
const RENEW_WITHIN: Duration = Duration::from_secs(MEMBER_LIFETIME.as_secs() / 3);

type Agent = MemberServiceClient<Channel>;

/// Spec that an agent got last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SentSpec {
    digest: [u8; 32],
    generation: u64,
    /// When its certificates were looked at.
    checked_at: Millis,
}

/// Uid of a cluster, address of its API, and stage of its certificate authorities.
type Endpoint = (String, String, u32);

/// Brings up Kubernetes through agents.
pub struct Members {
    provider: Arc<dyn Provider>,
    keyring: Arc<Keyring>,
    catalogue: Catalogue,
    clock: Arc<dyn Clock>,
    /// By operation of the machine.
    sent: Mutex<HashMap<String, SentSpec>>,
    /// Until when they serve is beside them.
    connections: Mutex<HashMap<Endpoint, (Arc<Connection>, Millis)>>,
    /// Clusters whose API has the objects that everything else needs.
    prepared: Mutex<HashSet<String>>,
    artifacts: artifacts::Artifacts,
    /// Snapshots that clusters are restored from.
    vault: Option<Arc<Vault>>,
    /// Name by which people reach the API of a cluster.
    endpoint: Option<ApiEndpoint>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Members")
    }
}

impl From<provider::Error> for Error {
    fn from(error: provider::Error) -> Self {
        match error {
            provider::Error::Refused(text) => Self::Refused(text),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<pki::Error> for Error {
    fn from(error: pki::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<selvage_kube::Error> for Error {
    fn from(error: selvage_kube::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// An agent's refusal. What is wrong with a spec stays wrong.
fn refused(status: &Status) -> Error {
    let text = status.message().to_owned();
    match status.code() {
        tonic::Code::InvalidArgument => Error::Refused(text),
        _ => Error::Unavailable(text),
    }
}

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl Members {
    pub fn new(
        provider: Arc<dyn Provider>,
        keyring: Arc<Keyring>,
        catalogue: Catalogue,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            provider,
            keyring,
            catalogue,
            clock,
            sent: Mutex::default(),
            connections: Mutex::default(),
            prepared: Mutex::default(),
            artifacts: artifacts::Artifacts::default(),
            vault: None,
            endpoint: None,
        }
    }

    /// Lets API servers prove that they have that name.
    #[must_use]
    pub fn with_endpoint(self, endpoint: Option<ApiEndpoint>) -> Self {
        Self { endpoint, ..self }
    }

    /// Sends machines the programs that they lack from there.
    #[must_use]
    pub(crate) fn with_artifacts(self, artifacts: artifacts::Artifacts) -> Self {
        Self { artifacts, ..self }
    }

    /// Restores clusters from these snapshots.
    #[must_use]
    pub fn with_vault(self, vault: Arc<Vault>) -> Self {
        Self { vault: Some(vault), ..self }
    }

    async fn agent(&self, machine: &Machine) -> Result<Agent, Error> {
        let channel = self.provider.connect(&OperationId(machine.operation.clone())).await?;
        Ok(MemberServiceClient::new(channel))
    }

    /// Asks an agent how its machine is.
    async fn status(agent: &mut Agent) -> Result<MemberStatus, Error> {
        let asked = agent.get_member(timed(GetMemberRequest {}, TIMEOUT)).await;
        let answer = asked.map_err(|status| refused(&status))?.into_inner();
        let status = answer.messages.into_iter().next();
        status.ok_or_else(|| Error::Unavailable("the agent says nothing".into()))
    }

    /// Asks the agent of a machine how it is, and refuses one that says it is another.
    async fn status_of(
        agent: &mut Agent,
        snapshot: &Snapshot,
        machine: &Machine,
    ) -> Result<MemberStatus, Error> {
        let status = Self::status(agent).await?;
        let own = (snapshot.cluster.name.as_str(), machine.name.as_str());
        let said = (status.cluster.as_str(), status.node.as_str());
        // One that is in no cluster names none.
        if status.generation > 0 && !status.cluster.is_empty() && said != own {
            let (cluster, node) = said;
            let text = format!("its agent says that it is node {node:?} of cluster {cluster:?}");
            return Err(Error::Refused(text));
        }
        Ok(status)
    }

    /// Tells an agent what its machine is to be, unless it knows, and returns
    /// the generation of that.
    async fn apply_spec(
        &self,
        agent: &mut Agent,
        snapshot: &Snapshot,
        machine: &Machine,
        mut spec: MemberSpec,
        status: &MemberStatus,
    ) -> Result<u64, Error> {
        let digest: [u8; 32] = Sha256::digest(spec.encode_to_vec()).into();
        let keys = self.keyring.keys(&snapshot.cluster).await?;
        let stage = machine.wanted.authority_stage;
        let certificates = self.missing_certificates(&keys, &spec, status, stage)?;
        let known = self.sent.lock().get(&machine.operation).copied();
        let sent = SentSpec { digest, generation: status.generation, checked_at: self.clock.now() };
        let same = known
            .is_some_and(|known| (known.digest, known.generation) == (digest, sent.generation));
        if same && certificates.is_empty() {
            self.sent.lock().insert(machine.operation.clone(), sent);
            return Ok(status.generation);
        }
        let signer = keys.signer(stage)?;
        let names: Vec<String> =
            self.endpoint.iter().map(|endpoint| endpoint.host(&spec.cluster)).collect();
        spec.certificates = self.certify(agent, signer, &spec, &names, certificates).await?;
        spec.generation = status.generation + 1;
        let generation = spec.generation;
        let request = timed(ApplyRequest { spec: Some(spec) }, TIMEOUT);
        agent.apply(request).await.map_err(|status| refused(&status))?;
        self.sent.lock().insert(machine.operation.clone(), SentSpec { generation, ..sent });
        Ok(generation)
    }

    /// Profiles that the machine needs a certificate for.
    fn missing_certificates(
        &self,
        keys: &ClusterPki,
        spec: &MemberSpec,
        status: &MemberStatus,
        stage: u32,
    ) -> Result<Vec<Profile>, Error> {
        let signer = keys.signer(stage)?;
        let soon = i64::try_from(self.clock.now() / 1000 + RENEW_WITHIN.as_secs());
        let soon = soon.unwrap_or(i64::MAX);
        let mut missing = Vec::new();
        for profile in spec::profiles(spec) {
            let signed_by = spec::authority(signer, profile).key_id()?;
            let holds = status.certificates.iter().any(|known| {
                let ends = known.not_after.as_ref().map_or(0, |at| at.seconds);
                let id = &known.authority_key_id;
                // An agent that is older than this does not say who signed.
                let ours = *id == signed_by || (id.is_empty() && stage == 0);
                known.profile() == profile && ends > soon && ours
            });
            if !holds {
                missing.push(profile);
            }
        }
        Ok(missing)
    }

    /// Returns whether all other control planes are as they have to be.
    async fn other_planes_are_healthy(&self, snapshot: &Snapshot, machine: &Machine) -> bool {
        let others = snapshot.machines.iter().filter(|other| {
            other.is_control_plane() && other.name != machine.name && !other.removing
        });
        for other in others {
            let Ok(mut agent) = self.agent(other).await else { return false };
            let Ok(status) = Self::status(&mut agent).await else { return false };
            if other.phase() != Phase::Ready || status.observed_generation != status.generation {
                return false;
            }
        }
        true
    }

    async fn certify(
        &self,
        agent: &mut Agent,
        signer: &Authorities,
        spec: &MemberSpec,
        api_names: &[String],
        profiles: Vec<Profile>,
    ) -> Result<Vec<Certificate>, Error> {
        if profiles.is_empty() {
            return Ok(Vec::new());
        }
        let request = RequestCertificatesRequest {
            cluster: spec.cluster.clone(),
            profiles: profiles.iter().map(|profile| (*profile).into()).collect(),
            renew: false,
        };
        let answer = agent.request_certificates(timed(request, TIMEOUT)).await;
        let answer = answer.map_err(|status| refused(&status))?.into_inner();
        // A machine gets certificates for what it is, whatever it asks for.
        let asked: Vec<Profile> = answer.requests.iter().map(|request| request.profile()).collect();
        if asked != profiles {
            let text = "its agent asks for certificates that it has no right to";
            return Err(Error::Refused(text.into()));
        }
        let now = self.clock.now() / 1000;
        let sign =
            |request| spec::sign(signer, spec, api_names, &request, now).map_err(Error::from);
        answer.requests.into_iter().map(sign).collect()
    }

    /// Another machine of the control plane that votes.
    async fn peer(&self, snapshot: &Snapshot, machine: &Machine) -> Result<Agent, Error> {
        let votes = |other: &&Machine| {
            other.is_control_plane()
                && other.name != machine.name
                && other.phase() == Phase::Ready
                && !other.removing
        };
        let peer = snapshot.machines.iter().find(votes);
        let none = || Error::Unavailable("no other control plane is ready".into());
        self.agent(peer.ok_or_else(none)?).await
    }

    /// Adds a machine to etcd, without a vote, and returns whom it starts with.
    async fn add_to_etcd(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
    ) -> Result<Vec<EtcdPeer>, Error> {
        let mut peer = self.peer(snapshot, machine).await?;
        let own = EtcdPeer { name: machine.name.clone(), address: machine.address.clone() };
        let request = timed(AddEtcdMemberRequest { peer: Some(own) }, TIMEOUT);
        let added = peer.add_etcd_member(request).await.map_err(|status| refused(&status))?;
        Ok(added.into_inner().peers)
    }

    /// Lets a machine vote in etcd; says what it waits for.
    async fn promote(&self, snapshot: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        let mut peer = self.peer(snapshot, machine).await?;
        let request = timed(PromoteEtcdMemberRequest { name: machine.name.clone() }, TIMEOUT);
        match peer.promote_etcd_member(request).await {
            Ok(_) => Ok(Progress::Done),
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                Ok(Progress::Waiting("etcd has not caught up".into()))
            }
            Err(status) => Err(refused(&status)),
        }
    }

    /// Error of a machine that can run no member: a passing one at first.
    fn obstacle(&self, machine: &Machine, text: String) -> Error {
        let waited = Duration::from_millis(self.clock.now().saturating_sub(machine.since));
        if waited < OBSTACLE_TIMEOUT { Error::Unavailable(text) } else { Error::Refused(text) }
    }

    async fn spec(&self, snapshot: &Snapshot, machine: &Machine) -> Result<MemberSpec, Error> {
        let keys = self.keyring.keys(&snapshot.cluster).await?;
        spec::member(snapshot, machine, &keys, &self.catalogue).map_err(Error::Refused)
    }

    /// Sets a machine going as what it is to be, and says how far it is.
    async fn bring_up(&self, snapshot: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        let mut agent = self.agent(machine).await?;
        let status = Self::status_of(&mut agent, snapshot, machine).await?;
        if let Some(obstacle) = status.obstacles.first() {
            return Err(self.obstacle(machine, obstacle.clone()));
        }
        let mut spec = self.spec(snapshot, machine).await?;
        let joins = machine.is_control_plane()
            && !machine.founder
            && machine.running.control_plane.is_empty();
        if let (true, Some(plane)) = (joins, &mut spec.control_plane) {
            plane.etcd = self.add_to_etcd(snapshot, machine).await?;
            plane.join_etcd = true;
        }
        let versions = spec.versions.clone().unwrap_or_default();
        if machine.founder && status.generation == 0 {
            self.restore_etcd(&mut agent, snapshot, machine, &versions.etcd).await?;
        }
        let generation = self.apply_spec(&mut agent, snapshot, machine, spec, &status).await?;
        let status = Self::status(&mut agent).await?;
        if let Some(program) = self.artifacts.send(&mut agent, &versions, &status.missing).await? {
            return Ok(Progress::Waiting(format!("{program} was sent to the machine")));
        }
        if joins
            && is_healthy(&status, "etcd")
            && let waiting @ Progress::Waiting(_) = self.promote(snapshot, machine).await?
        {
            return Ok(waiting);
        }
        if machine.is_control_plane() && is_healthy(&status, "kube-apiserver") {
            self.prepare(snapshot, machine).await?;
        }
        if status.observed_generation >= generation {
            return Ok(Progress::Done);
        }
        Ok(Progress::Waiting(what_is_waited_for(&status)))
    }
}

fn is_healthy(status: &MemberStatus, component: &str) -> bool {
    let healthy = |c: &selvage_api::selvage::kubernetes::Component| {
        c.name == component && c.state() == ComponentState::Healthy
    };
    status.components.iter().any(healthy)
}

/// The first thing that is not as it is to be.
fn what_is_waited_for(status: &MemberStatus) -> String {
    if let Some(missing) = status.missing.first() {
        let (name, version) = (&missing.name, &missing.version);
        return format!("the machine has no {name} {version}: put it into kaas.artifacts");
    }
    let unhealthy = status.components.iter().find(|c| c.state() != ComponentState::Healthy);
    match unhealthy {
        Some(component) if component.message.is_empty() => {
            let state = component.state().as_str_name().to_lowercase();
            format!("{} is {state}", component.name)
        }
        Some(component) => format!("{}: {}", component.name, component.message),
        None => "components start".into(),
    }
}

#[async_trait]
impl Driver for Members {
    async fn configure(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        self.bring_up(cluster, machine).await
    }

    async fn hibernate(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        let mut agent = self.agent(machine).await?;
        let status = Self::status_of(&mut agent, cluster, machine).await?;
        let spec = MemberSpec { hibernated: true, ..self.spec(cluster, machine).await? };
        let generation = self.apply_spec(&mut agent, cluster, machine, spec, &status).await?;
        let status = Self::status(&mut agent).await?;
        if status.observed_generation >= generation {
            return Ok(Progress::Done);
        }
        Ok(Progress::Waiting(what_is_waited_for(&status)))
    }

    async fn api(&self, cluster: &Snapshot) -> Result<Option<String>, Error> {
        self.find_api(cluster).await
    }

    async fn join(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        self.join_node(cluster, machine).await
    }

    async fn nodes(&self, cluster: &Snapshot) -> Result<Vec<Node>, Error> {
        self.list_nodes(cluster).await
    }

    async fn cordon(&self, cluster: &Snapshot, machine: &Machine) -> Result<(), Error> {
        let client = self.client(cluster).await?;
        let cordoned = selvage_kube::Nodes::new(&client).cordon(&machine.name).await;
        match cordoned {
            // A node that never registered has no pods.
            Err(error) if error.code() == selvage_api::Code::NotFound => Ok(()),
            other => Ok(other?),
        }
    }

    async fn drain(
        &self,
        cluster: &Snapshot,
        machine: &Machine,
        force: bool,
    ) -> Result<Progress, Error> {
        let client = self.client(cluster).await?;
        drain::pass(&client, &machine.name, force).await
    }

    async fn taint(&self, cluster: &Snapshot, machine: &Machine) -> Result<(), Error> {
        self.taint_node(cluster, machine).await
    }

    async fn leave(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        if machine.is_control_plane() {
            let mut peer = self.peer(cluster, machine).await?;
            let request = timed(RemoveEtcdMemberRequest { name: machine.name.clone() }, TIMEOUT);
            peer.remove_etcd_member(request).await.map_err(|status| refused(&status))?;
        }
        self.delete_node(cluster, &machine.name).await?;
        Ok(Progress::Done)
    }

    async fn answers(&self, machine: &Machine) -> bool {
        match self.agent(machine).await {
            Ok(mut agent) => Self::status(&mut agent).await.is_ok(),
            Err(_) => false,
        }
    }

    async fn reset(&self, cluster: &Snapshot, machine: &Machine) -> Result<Progress, Error> {
        let mut agent = self.agent(machine).await?;
        let request = ResetRequest { cluster: cluster.cluster.name.clone() };
        let answer = agent.reset(timed(request, RESET_TIMEOUT)).await;
        let answer = answer.map_err(|status| refused(&status))?.into_inner();
        self.sent.lock().remove(&machine.operation);
        match answer.left.first() {
            None => Ok(Progress::Done),
            Some(left) => Ok(Progress::Waiting(left.clone())),
        }
    }

    async fn obstacles(&self, cluster: &Snapshot, to: Version) -> Result<Vec<String>, Error> {
        preflight::obstacles(&self.client(cluster).await?, to).await
    }

    async fn save(&self, cluster: &Snapshot, into: &mut Writer) -> Result<(), Error> {
        self.save_etcd(cluster, into).await
    }

    async fn sync(&self, cluster: &Snapshot) -> Result<(), Error> {
        self.sync_all(cluster).await
    }
}
