//! A manager whose machines come from a simulated MaaS. What machines do is
//! not: they join the controller's own service with the token of their user
//! data.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::Engine as _;
use parking_lot::Mutex;
use selvage_api::selvage::identity::{JoinRequest, identity_service_client::IdentityServiceClient};
use selvage_auth::{Auth, CertificateAuthority, HashCost, Report, SignError, Signed};
use selvage_kaas::{
    Dependencies, Keyring, Manager, Settings,
    catalogue::Catalogue,
    driver::{self, Driver, Node, Progress},
    pki::Seal,
    plan::Snapshot,
    provider::maas::{InstanceType, Maas, MaasOptions, TOKEN_FILE},
    record::Machine,
    vault::Writer,
};
use selvage_kit::{
    config::SecretFile,
    identity::{Connection, Identity, Machine as Named, Peer},
    pki::{self, Ca},
};
use selvage_store::{
    SharedStore,
    clock::{Clock, ManualClock},
    embedded::{Embedded, Options},
};

use super::sim::{KEY, Sim};
use crate::lab::vault;

/// More rounds than anything here needs.
const ROUNDS: usize = 1_000;
/// The clock moves at least so far between two looks.
const STRIDE: Duration = Duration::from_secs(15);

pub(super) struct MaasLab {
    pub(super) sim: Sim,
    pub(super) manager: Manager,
    pub(super) provider: Arc<Maas>,
    pub(super) clock: ManualClock,
    pub(super) auth: Auth,
    pub(super) store: SharedStore,
    pub(super) options: MaasOptions,
    pub(super) broken: Arc<Mutex<Vec<String>>>,
    /// Machines that could not join, and why.
    pub(super) outside: Mutex<Vec<String>>,
    folder: tempfile::TempDir,
}

struct Authority(Ca);

impl CertificateAuthority for Authority {
    fn sign(&self, csr: &str, machine: &Named, names: &[String]) -> Result<Signed, SignError> {
        let signed = self.0.sign_machine_for(csr, machine, names, pki::MACHINE_LIFETIME);
        let signed = signed.map_err(|error| SignError::BadRequest(error.to_string()))?;
        let not_after = jiff::Timestamp::from_second(signed.not_after).unwrap();
        Ok(Signed { certificate_pem: signed.certificate_pem, not_after })
    }

    fn sign_person(&self, _: &str, _: &str, _: Duration) -> Result<Signed, SignError> {
        Err(SignError::BadRequest("no people here".into()))
    }

    fn ca_pem(&self) -> String {
        self.0.pem().to_owned()
    }

    fn ca_sha256(&self) -> String {
        self.0.sha256()
    }
}

pub(crate) async fn open_auth(store: &SharedStore, folder: &std::path::Path) -> Auth {
    let options = selvage_auth::Options {
        argon2: HashCost { memory_kib: 64, iterations: 1, lanes: 1 },
        ..selvage_auth::Options::default()
    };
    let ca = Authority(Ca::open_or_create(&folder.join("pki")).unwrap());
    Auth::open(Arc::clone(store), options, Some(Arc::new(ca))).await.unwrap()
}

fn options(sim: &Sim, folder: &std::path::Path) -> MaasOptions {
    use std::os::unix::fs::PermissionsExt as _;
    let key = folder.join("maas.key");
    std::fs::write(&key, format!("{KEY}\n")).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let gpu = InstanceType { tags: vec!["gpu".into()], ..InstanceType::default() };
    MaasOptions {
        url: sim.url.clone(),
        api_key_file: Some(SecretFile(key)),
        distro_series: "noble".into(),
        types: BTreeMap::from([("big".to_owned(), gpu)]),
        controller: "edge.example:8443".into(),
        binary_url: "https://edge.example/selvage".into(),
        binary_sha256: "ab".repeat(32),
        ..MaasOptions::default()
    }
}

impl MaasLab {
    pub(super) async fn new(machines: usize) -> Self {
        Self::with(machines, |_| {}).await
    }

    pub(super) async fn with(machines: usize, change: impl FnOnce(&mut MaasOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(1_790_000_000_000);
        let sim = Sim::start(machines, clock.clone()).await;
        let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
        let auth = open_auth(&store, folder.path()).await;
        let mut options = options(&sim, folder.path());
        change(&mut options);
        let broken = Arc::default();
        let (provider, manager) = open(&store, &auth, &options, &clock, &sim, &broken).await;
        let outside = Mutex::default();
        Self { sim, manager, provider, clock, auth, store, options, broken, outside, folder }
    }

    /// Ends the process, as far as it can be seen from outside, and starts
    /// another.
    pub(super) async fn restart(&mut self) {
        self.auth = open_auth(&self.store, self.folder.path()).await;
        let (store, auth, options) = (&self.store, &self.auth, &self.options);
        (self.provider, self.manager) =
            open(store, auth, options, &self.clock, &self.sim, &self.broken).await;
    }

    /// Lets time pass at MaaS; machines that started join.
    pub(super) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        for (id, user_data) in self.sim.tick() {
            if let Err(status) = self.join(&id, &user_data).await {
                self.outside.lock().push(format!("{id}: {}", status.message()));
            }
        }
    }

    async fn join(&self, id: &str, user_data: &str) -> Result<(), tonic::Status> {
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
        let asked = JoinRequest { token: token(user_data), csr: csr.pem().unwrap() };
        let mut request = tonic::Request::new(asked);
        let number: u8 = id.trim_start_matches("abc").parse().unwrap();
        let peer = Peer::Ip([192, 0, 2, number].into());
        request.extensions_mut().insert(Identity::anonymous());
        request.extensions_mut().insert(Connection {
            peer,
            machine: None,
            certificate: None,
            person: None,
            encrypted: true,
        });
        let mut identities = IdentityServiceClient::new(self.auth.identity_service());
        let joined = identities.join(request).await?.into_inner();
        let machine = Named::parse(&joined.machine).unwrap();
        let address = format!("192.0.2.{number}:8443");
        let report = Report { address, ..Report::default() };
        self.auth.report(&machine, report).await.unwrap();
        Ok(())
    }

    /// Works on a cluster until nothing is left to do but to watch it.
    pub(super) async fn settle(&self, name: &str) {
        for _ in 0..ROUNDS {
            if self.round(name).await {
                return;
            }
        }
        panic!("{name} does not settle: {:#?}", self.manager.snapshot(name));
    }

    /// One look at a cluster. True: nothing is left to do.
    pub(super) async fn round(&self, name: &str) -> bool {
        let again = self.manager.reconcile(name).await.unwrap();
        self.check_use();
        let Some(again) = again else { return true };
        if self.is_settled(name) {
            return true;
        }
        self.pass(again.max(STRIDE)).await;
        false
    }

    fn is_settled(&self, name: &str) -> bool {
        let Some(snapshot) = self.manager.snapshot(name) else { return true };
        let policy = &self.manager.settings().policy;
        let plan = selvage_kaas::plan(&snapshot, policy, self.clock.now());
        plan.actions.is_empty() && plan.wake_at.is_none()
    }

    /// No machine is in two places.
    fn check_use(&self) {
        let mut seen = BTreeMap::new();
        for cluster in self.manager.list() {
            let Some(snapshot) = self.manager.snapshot(&cluster.name) else { continue };
            for machine in snapshot.machines.into_iter().filter(|m| !m.provider_id.is_empty()) {
                // One that is going back may be on its way to the next.
                if machine.removing || cluster.deleting {
                    continue;
                }
                if let Some(other) = seen.insert(machine.provider_id.clone(), machine.name.clone())
                {
                    let text = format!("{} is {} and {other}", machine.provider_id, machine.name);
                    self.broken.lock().push(text);
                }
            }
        }
    }

    /// Deletes a cluster, and looks for what nobody knows of until nothing is
    /// left.
    pub(super) async fn delete(&self, name: &str) {
        if self.manager.snapshot(name).is_some() {
            self.manager.delete(&super::super::lab::admin(), name).await.unwrap();
            self.settle(name).await;
        }
        for _ in 0..20 {
            self.pass(Duration::from_secs(600)).await;
            self.manager.sweep().await.unwrap();
        }
    }

    /// Nothing was leaked, nothing was used twice, and no secret is anywhere.
    pub(super) fn check_end(&self, what: &str) {
        assert_eq!(self.sim.owned(), Vec::<String>::new(), "{what}: leaked");
        assert_eq!(*self.broken.lock(), Vec::<String>::new(), "{what}");
        let listed = self.auth.machines();
        assert!(listed.is_empty(), "{what}: still listed: {listed:?}");
        for user_data in &self.sim.world.lock().user_data {
            let text = decode(user_data);
            assert!(!text.contains("PRIVATE KEY") && !text.contains("canary"), "{what}: {text}");
        }
    }
}

async fn open(
    store: &SharedStore,
    auth: &Auth,
    options: &MaasOptions,
    clock: &ManualClock,
    sim: &Sim,
    broken: &Arc<Mutex<Vec<String>>>,
) -> (Arc<Maas>, Manager) {
    let own = Arc::new(clock.clone());
    let provider = Maas::open(
        Arc::clone(store),
        auth.clone(),
        options.clone(),
        "",
        None,
        Arc::<ManualClock>::clone(&own),
    );
    let provider = Arc::new(provider.await.unwrap());
    let seal = Seal::new(&[7; 32], "test").unwrap();
    let backups = options.api_key_file.as_ref().unwrap().0.with_file_name("backups");
    let dependencies = Dependencies {
        provider: provider.clone(),
        driver: Arc::new(Pretended { sim: sim.clone(), broken: Arc::clone(broken) }),
        catalogue: Catalogue::load(None).unwrap(),
        keyring: Keyring::open(Arc::clone(store), seal, own.clone()).await.unwrap(),
        clock: own,
        vault: Arc::new(vault(&backups)),
    };
    let manager =
        Manager::open(Arc::clone(store), Settings::default(), dependencies).await.unwrap();
    (provider, manager)
}

pub(super) fn decode(user_data: &str) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(user_data).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The join token in user data.
pub(super) fn token(user_data: &str) -> String {
    let text = decode(user_data);
    let json = text.strip_prefix("#cloud-config\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(json).unwrap();
    let files = document["write_files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == TOKEN_FILE).unwrap();
    file["content"].as_str().unwrap().to_owned()
}

/// Kubernetes that comes up at once, on machines that are ours.
struct Pretended {
    sim: Sim,
    broken: Arc<Mutex<Vec<String>>>,
}

impl Pretended {
    /// Returns whether the machine is there and is the one it is taken for.
    fn reach(&self, machine: &Machine) -> Result<(), driver::Error> {
        let gone = || Err(driver::Error::Unavailable("no route to host".into()));
        let Some(found) = self.sim.machine(&machine.provider_id) else { return gone() };
        if found.agent == machine.operation && found.status == 6 {
            return Ok(());
        }
        if !found.agent.is_empty() && found.agent != machine.operation && found.status == 6 {
            let text = format!("{} is used by {} as well", found.id, machine.name);
            self.broken.lock().push(text);
        }
        gone()
    }
}

#[async_trait]
impl Driver for Pretended {
    async fn configure(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.reach(machine).map(|()| Progress::Done)
    }

    async fn hibernate(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.reach(machine).map(|()| Progress::Done)
    }

    async fn api(&self, cluster: &Snapshot) -> Result<Option<String>, driver::Error> {
        let up = |machine: &&Machine| machine.is_control_plane() && !machine.address.is_empty();
        let first = cluster.machines.iter().find(up);
        Ok(first.map(|machine| format!("{}:6443", machine.address)))
    }

    async fn join(&self, _: &Snapshot, machine: &Machine) -> Result<Progress, driver::Error> {
        self.reach(machine).map(|()| Progress::Done)
    }

    async fn nodes(&self, cluster: &Snapshot) -> Result<Vec<Node>, driver::Error> {
        let node = |machine: &Machine| Node {
            name: machine.name.clone(),
            ready: true,
            unknown: false,
            reason: String::new(),
            schedulable: true,
            kubelet_version: machine.running.kubelet.clone(),
            delete_first: false,
            tainted: false,
        };
        Ok(cluster.machines.iter().map(node).collect())
    }

    async fn cordon(&self, _: &Snapshot, _: &Machine) -> Result<(), driver::Error> {
        Ok(())
    }

    async fn taint(&self, _: &Snapshot, _: &Machine) -> Result<(), driver::Error> {
        Ok(())
    }

    async fn drain(&self, _: &Snapshot, _: &Machine, _: bool) -> Result<Progress, driver::Error> {
        Ok(Progress::Done)
    }

    async fn leave(&self, _: &Snapshot, _: &Machine) -> Result<Progress, driver::Error> {
        Ok(Progress::Done)
    }

    async fn answers(&self, machine: &Machine) -> bool {
        self.reach(machine).is_ok()
    }

    async fn reset(&self, _: &Snapshot, _: &Machine) -> Result<Progress, driver::Error> {
        Ok(Progress::Done)
    }

    async fn save(&self, _: &Snapshot, _: &mut Writer) -> Result<(), driver::Error> {
        Err(driver::Error::Refused("there is no etcd here".into()))
    }
}
