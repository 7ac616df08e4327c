//! Specs that agents get, seen by a fake one that records them.

use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use selvage_api::selvage::kubernetes::{
    self as wire, Component, ComponentState, EtcdPeer, MemberSpec, MemberStatus, Profile,
    member_service_server::{MemberService, MemberServiceServer},
};
use selvage_kaas::{
    ApiEndpoint, Dependencies, Keyring, Manager, Members, Settings,
    catalogue::Catalogue,
    driver::{Driver, Error, Progress},
    pki::Seal,
    plan::Snapshot,
    provider::{
        self, Acquired, Capabilities, Observed, Offer, OperationId, Owned, Provider, Request, Wipe,
        sim::Sim,
    },
    record::{Backup, Cluster, ControlPlane, Machine, Phase, Versions},
    vault::Vault,
};
use selvage_store::clock::Clock;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::{Stream, wrappers::UnixListenerStream};
use tonic::{Response, Status, transport::Channel};
use x509_parser::extensions::ParsedExtension;

use super::lab::{Lab, vault};

/// Calls that a fake agent got, and its answers.
#[derive(Default)]
struct Heard {
    specs: Vec<MemberSpec>,
    certificates: BTreeMap<i32, String>,
    /// Keys of those certificates.
    keys: BTreeMap<i32, String>,
    added: Vec<EtcdPeer>,
    promoted: Vec<String>,
    healthy: Vec<&'static str>,
    obstacles: Vec<String>,
    /// Answers that etcd has not caught up yet.
    lags: bool,
    reset: Vec<String>,
    /// Bytes of the snapshot that etcd starts from.
    restored: Vec<u8>,
    /// Profile that it asks for besides those it is to ask for.
    greedy: Option<Profile>,
    /// Cluster and node that it says it is.
    identity: (String, String),
    /// Certificates name who signed them.
    names_signer: bool,
    /// When certificates end, in seconds; later than anybody cares if not set.
    not_after: Option<i64>,
}

/// Key identifier of the authority that signed a certificate.
fn signer(pem: &str) -> String {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let id =
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.clone(),
            _ => None,
        });
    hex::encode(id.unwrap().0)
}

#[derive(Clone, Default)]
struct Agent(Arc<Mutex<Heard>>);

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl MemberService for Agent {
    async fn request_certificates(
        &self,
        request: tonic::Request<wire::RequestCertificatesRequest>,
    ) -> Answer<wire::RequestCertificatesResponse> {
        let csr = |profile: &i32| {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::default();
            let csr = params.serialize_request(&key).unwrap().pem().unwrap();
            self.0.lock().keys.insert(*profile, key.serialize_pem());
            wire::CertificateRequest { profile: *profile, csr }
        };
        let mut profiles = request.into_inner().profiles;
        let greedy = self.0.lock().greedy;
        profiles.extend(greedy.map(i32::from));
        let requests = profiles.iter().map(csr).collect();
        Ok(Response::new(wire::RequestCertificatesResponse { requests }))
    }

    async fn apply(
        &self,
        request: tonic::Request<wire::ApplyRequest>,
    ) -> Answer<wire::ApplyResponse> {
        let spec = request.into_inner().spec.unwrap();
        let mut heard = self.0.lock();
        let last = heard.specs.last().map_or(0, |spec| spec.generation);
        if spec.generation <= last {
            return Err(Status::failed_precondition("an older generation"));
        }
        if !spec.certificates.is_empty() {
            heard.not_after = None;
        }
        for certificate in &spec.certificates {
            heard.certificates.insert(certificate.profile, certificate.pem.clone());
        }
        let generation = spec.generation;
        heard.specs.push(spec);
        Ok(Response::new(wire::ApplyResponse { generation }))
    }

    async fn get_member(
        &self,
        _: tonic::Request<wire::GetMemberRequest>,
    ) -> Answer<wire::GetMemberResponse> {
        let heard = self.0.lock();
        let generation = heard.specs.last().map_or(0, |spec| spec.generation);
        let component = |name: &&str| Component {
            name: (*name).to_owned(),
            state: ComponentState::Healthy.into(),
            ..Component::default()
        };
        let seconds = heard.not_after.unwrap_or(i64::MAX / 2);
        let far = prost_types::Timestamp { seconds, nanos: 0 };
        let certificate = |(profile, pem): (&i32, &String)| wire::CertificateStatus {
            profile: *profile,
            not_after: Some(far),
            authority_key_id: if heard.names_signer { signer(pem) } else { String::new() },
            ..wire::CertificateStatus::default()
        };
        let (cluster, node) = heard.identity.clone();
        let status = MemberStatus {
            generation,
            observed_generation: if heard.healthy.is_empty() { 0 } else { generation },
            components: heard.healthy.iter().map(component).collect(),
            certificates: heard.certificates.iter().map(certificate).collect(),
            cluster,
            node,
            obstacles: heard.obstacles.clone(),
            ..MemberStatus::default()
        };
        Ok(Response::new(wire::GetMemberResponse { messages: vec![status] }))
    }

    type WatchMemberStream = Pin<Box<dyn Stream<Item = Result<MemberStatus, Status>> + Send>>;

    async fn watch_member(
        &self,
        _: tonic::Request<wire::WatchMemberRequest>,
    ) -> Answer<Self::WatchMemberStream> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn reset(
        &self,
        request: tonic::Request<wire::ResetRequest>,
    ) -> Answer<wire::ResetResponse> {
        self.0.lock().reset.push(request.into_inner().cluster);
        Ok(Response::new(wire::ResetResponse::default()))
    }

    async fn list_etcd_members(
        &self,
        _: tonic::Request<wire::ListEtcdMembersRequest>,
    ) -> Answer<wire::ListEtcdMembersResponse> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn add_etcd_member(
        &self,
        request: tonic::Request<wire::AddEtcdMemberRequest>,
    ) -> Answer<wire::AddEtcdMemberResponse> {
        let peer = request.into_inner().peer.unwrap();
        let mut heard = self.0.lock();
        let own = EtcdPeer { name: "cp-1".into(), address: "10.0.0.1".into() };
        heard.added.push(peer.clone());
        let peers = vec![own, peer];
        Ok(Response::new(wire::AddEtcdMemberResponse { member: None, peers }))
    }

    async fn promote_etcd_member(
        &self,
        request: tonic::Request<wire::PromoteEtcdMemberRequest>,
    ) -> Answer<wire::PromoteEtcdMemberResponse> {
        let mut heard = self.0.lock();
        if heard.lags {
            return Err(Status::failed_precondition("it has not caught up"));
        }
        heard.promoted.push(request.into_inner().name);
        Ok(Response::new(wire::PromoteEtcdMemberResponse {}))
    }

    async fn remove_etcd_member(
        &self,
        _: tonic::Request<wire::RemoveEtcdMemberRequest>,
    ) -> Answer<wire::RemoveEtcdMemberResponse> {
        Ok(Response::new(wire::RemoveEtcdMemberResponse {}))
    }

    type SnapshotEtcdStream =
        Pin<Box<dyn Stream<Item = Result<wire::SnapshotEtcdResponse, Status>> + Send>>;

    async fn snapshot_etcd(
        &self,
        _: tonic::Request<wire::SnapshotEtcdRequest>,
    ) -> Answer<Self::SnapshotEtcdStream> {
        let (content, digest) = (b"etcd".to_vec(), Sha256::digest(b"etcd").to_vec());
        let pieces = [content, digest].map(|data| Ok(wire::SnapshotEtcdResponse { data }));
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn restore_etcd(
        &self,
        request: tonic::Request<tonic::Streaming<wire::RestoreEtcdRequest>>,
    ) -> Answer<wire::RestoreEtcdResponse> {
        let mut pieces = request.into_inner();
        while let Some(piece) = pieces.message().await? {
            self.0.lock().restored.extend(piece.data);
        }
        Ok(Response::new(wire::RestoreEtcdResponse {}))
    }

    async fn put_artifact(
        &self,
        _: tonic::Request<tonic::Streaming<wire::PutArtifactRequest>>,
    ) -> Answer<wire::PutArtifactResponse> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// Machines whose agents answer on sockets of a folder, by operation.
struct Fakes(PathBuf);

#[async_trait]
impl Provider for Fakes {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { disposable: false, problem: None }
    }

    async fn offers(&self, _: &str) -> Result<Vec<Offer>, provider::Error> {
        Ok(Vec::new())
    }

    async fn acquire(&self, _: &OperationId, _: &Request) -> Result<Acquired, provider::Error> {
        Err(provider::Error::NoneFree(String::new()))
    }

    async fn observe(&self, _: &OperationId) -> Result<Observed, provider::Error> {
        Err(provider::Error::Refused(String::new()))
    }

    async fn release(&self, _: &OperationId, _: Wipe) -> Result<bool, provider::Error> {
        Ok(true)
    }

    async fn connect(&self, operation: &OperationId) -> Result<Channel, provider::Error> {
        Ok(selvage_kit::dial::unix(&self.0.join(&operation.0)))
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, provider::Error> {
        Ok(Vec::new())
    }
}

struct Scene {
    driver: Members,
    keyring: Arc<Keyring>,
    vault: Arc<Vault>,
    folder: tempfile::TempDir,
    lab: Lab,
}

impl Scene {
    async fn new() -> Self {
        let lab = Lab::new().await;
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(lab.clock.clone());
        let seal = Seal::new(&[3; 32], "test").unwrap();
        let keyring = Keyring::open(lab.store.clone(), seal, clock.clone()).await.unwrap();
        let provider = Arc::new(Fakes(folder.path().to_owned()));
        let vault = Arc::new(vault(folder.path()));
        let own = Arc::clone(&keyring);
        let driver = Members::new(provider, own, Catalogue::load(None).unwrap(), clock)
            .with_vault(Arc::clone(&vault));
        Self { driver, keyring, vault, folder, lab }
    }

    /// A manager with the same keys.
    async fn manager(&self, settings: Settings) -> Manager {
        let dependencies = Dependencies {
            provider: Arc::new(Sim::default()),
            driver: Arc::new(Sim::default()),
            catalogue: Catalogue::load(None).unwrap(),
            keyring: Arc::clone(&self.keyring),
            clock: Arc::new(self.lab.clock.clone()),
            vault: Arc::clone(&self.vault),
        };
        Manager::open(self.lab.store.clone(), settings, dependencies).await.unwrap()
    }

    /// An agent for the machine of that name.
    fn agent(&self, name: &str) -> Agent {
        let agent = Agent::default();
        let listener = tokio::net::UnixListener::bind(self.folder.path().join(name)).unwrap();
        let service = MemberServiceServer::new(agent.clone());
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(UnixListenerStream::new(listener)));
        agent
    }
}

fn machine(name: &str, pool: &str, number: u32, phase: Phase) -> Machine {
    let control_plane = if pool.is_empty() { "1.36.4".to_owned() } else { String::new() };
    let wanted = Versions { control_plane, kubelet: "1.36.4".into(), ..Versions::default() };
    let mut machine = Machine {
        cluster: "demo".into(),
        name: name.into(),
        pool: pool.into(),
        operation: name.into(),
        address: format!("10.0.0.{number}"),
        index: number,
        wanted: wanted.clone(),
        ..Machine::default()
    };
    if phase == Phase::Ready {
        machine.running = wanted;
    }
    machine.enter(phase, "", 1);
    machine
}

fn cluster(machines: &[Machine]) -> Snapshot {
    Snapshot {
        cluster: Cluster {
            name: "demo".into(),
            uid: "uid".into(),
            version: "1.36.4".into(),
            control_plane: ControlPlane { count: 1, ..ControlPlane::default() },
            ..Cluster::default()
        },
        pools: Vec::new(),
        machines: machines.to_vec(),
    }
}

#[tokio::test]
async fn a_first_member_gets_its_role_and_certificates_once() {
    let scene = Scene::new().await;
    let agent = scene.agent("cp-1");
    let mut founder = machine("cp-1", "", 1, Phase::Bootstrapping);
    founder.founder = true;
    let snapshot = cluster(std::slice::from_ref(&founder));
    let first = scene.driver.configure(&snapshot, &founder).await.unwrap();
    assert!(matches!(first, Progress::Waiting(_)), "{first:?}");
    agent.0.lock().healthy = vec!["etcd"];
    let next = scene.driver.configure(&snapshot, &founder).await.unwrap();
    assert_eq!(next, Progress::Done);
    let heard = agent.0.lock();
    assert_eq!(heard.specs.len(), 1, "the same is not told twice");
    let spec = &heard.specs[0];
    assert_eq!((spec.generation, spec.node.as_str()), (1, "cp-1"));
    assert_eq!(spec.api_servers, ["10.0.0.1:6443"]);
    let plane = spec.control_plane.as_ref().unwrap();
    assert!(!plane.join_etcd && plane.etcd.len() == 1);
    assert_eq!(spec.versions.as_ref().unwrap().etcd, "3.6.8");
    assert_eq!(spec.network.as_ref().unwrap().node_pod_cidr, "10.128.1.0/24");
    assert_eq!(heard.certificates.len(), 14);
    assert!(!format!("{spec:?}").contains("PRIVATE KEY"), "a key shows in logs");
}

#[tokio::test]
async fn a_worker_gets_no_key_of_the_control_plane() {
    let scene = Scene::new().await;
    let agent = scene.agent("web-1");
    let (plane, worker) =
        (machine("cp-1", "", 1, Phase::Ready), machine("web-1", "web", 2, Phase::Bootstrapping));
    let snapshot = cluster(&[plane, worker.clone()]);
    scene.driver.configure(&snapshot, &worker).await.unwrap();
    let heard = agent.0.lock();
    let spec = &heard.specs[0];
    assert!(spec.control_plane.is_none());
    let profiles: Vec<i32> = heard.certificates.keys().copied().collect();
    let wanted = [
        Profile::KubeletClient,
        Profile::KubeletServer,
        Profile::Proxy,
        Profile::Coredns,
        Profile::Volumes,
    ];
    assert_eq!(profiles, wanted.map(i32::from));
    let route = &spec.network.as_ref().unwrap().routes[0];
    assert_eq!((route.pod_cidr.as_str(), route.address.as_str()), ("10.128.1.0/24", "10.0.0.1"));
}

#[tokio::test]
async fn another_control_plane_learns_and_then_votes() {
    let scene = Scene::new().await;
    let (first, second) = (scene.agent("cp-1"), scene.agent("cp-2"));
    let (founder, joins) =
        (machine("cp-1", "", 1, Phase::Ready), machine("cp-2", "", 2, Phase::Bootstrapping));
    let snapshot = cluster(&[founder, joins.clone()]);
    first.0.lock().lags = true;
    scene.driver.configure(&snapshot, &joins).await.unwrap();
    {
        let heard = second.0.lock();
        let plane = heard.specs[0].control_plane.as_ref().unwrap();
        assert!(plane.join_etcd);
        let names: Vec<&str> = plane.etcd.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(names, ["cp-1", "cp-2"]);
        assert!(first.0.lock().promoted.is_empty(), "it votes before etcd runs");
    }
    second.0.lock().healthy = vec!["etcd"];
    let lags = scene.driver.configure(&snapshot, &joins).await.unwrap();
    assert_eq!(lags, Progress::Waiting("etcd has not caught up".into()));
    first.0.lock().lags = false;
    assert_eq!(scene.driver.configure(&snapshot, &joins).await.unwrap(), Progress::Done);
    assert_eq!(first.0.lock().promoted, ["cp-2"]);
    assert_eq!(second.0.lock().specs.len(), 1);
}

#[tokio::test]
async fn another_version_is_another_generation() {
    let scene = Scene::new().await;
    let agent = scene.agent("web-1");
    let plane = machine("cp-1", "", 1, Phase::Ready);
    let mut worker = machine("web-1", "web", 2, Phase::Upgrading);
    let snapshot = cluster(&[plane, worker.clone()]);
    scene.driver.configure(&snapshot, &worker).await.unwrap();
    worker.wanted.kubelet = "1.37.1".into();
    scene.driver.configure(&snapshot, &worker).await.unwrap();
    let heard = agent.0.lock();
    let generations: Vec<u64> = heard.specs.iter().map(|spec| spec.generation).collect();
    assert_eq!(generations, [1, 2]);
    assert_eq!(heard.specs[1].versions.as_ref().unwrap().kubernetes, "1.37.1");
    assert!(heard.specs[1].certificates.is_empty(), "certificates that hold are kept");
}

#[tokio::test]
async fn members_hear_of_machines_that_come_and_only_then() {
    let scene = Scene::new().await;
    let agent = scene.agent("web-1");
    let (mut plane, worker) =
        (machine("cp-1", "", 1, Phase::Ready), machine("web-1", "web", 2, Phase::Ready));
    // Its agent is not there; nothing is to be said to it.
    plane.removing = true;
    let before = cluster(&[plane.clone(), worker.clone()]);
    for _ in 0..3 {
        scene.driver.sync(&before).await.unwrap();
    }
    assert_eq!(agent.0.lock().specs.len(), 1);
    let more = cluster(&[plane, worker, machine("web-2", "web", 3, Phase::Joining)]);
    scene.driver.sync(&more).await.unwrap();
    let heard = agent.0.lock();
    assert_eq!(heard.specs.len(), 2);
    assert_eq!(heard.specs[1].network.as_ref().unwrap().routes.len(), 2);
}

#[tokio::test]
async fn members_hear_of_a_change_although_one_machine_is_dead() {
    let scene = Scene::new().await;
    let names = ["cp-1", "cp-2", "cp-3", "a-1", "a-2"];
    let agents = names.map(|name| scene.agent(name));
    agents.iter().for_each(|agent| agent.0.lock().healthy = vec!["etcd"]);
    let pool = |name: &str| if name.starts_with('a') { "a" } else { "" };
    let mut machines: Vec<Machine> = (1..)
        .zip(names)
        .map(|(number, name)| machine(name, pool(name), number, Phase::Ready))
        .collect();
    for _ in 0..3 {
        scene.driver.sync(&cluster(&machines)).await.unwrap();
    }
    let specs = || agents.each_ref().map(|agent| agent.0.lock().specs.len());
    assert_eq!(specs(), [1; 5], "all have what they need");
    // The first control plane and the first worker die, another worker comes.
    for dead in [0, 3] {
        std::fs::remove_file(scene.folder.path().join(names[dead])).unwrap();
        machines[dead].enter(Phase::NotReady, "", 2);
    }
    machines.push(machine("a-3", "a", 6, Phase::Joining));
    let failed = scene.driver.sync(&cluster(&machines)).await.unwrap_err().to_string();
    assert!(failed.starts_with("a-1: ") && failed.contains("; cp-1: "), "{failed}");
    assert_eq!(specs(), [1, 2, 2, 1, 2]);
    let routes = agents[2].0.lock().specs[1].network.clone().unwrap().routes;
    assert!(routes.iter().any(|route| route.address == "10.0.0.6"), "{routes:?}");
}

#[tokio::test]
async fn a_saved_kubeconfig_outlives_the_control_plane_that_answered_first() {
    let mut scene = Scene::new().await;
    let agent = scene.agent("cp-2");
    // Where the first control plane was nobody answers; the second has the same port.
    let (dead, live) = ("127.0.0.3", "127.0.0.2");
    let listener = tokio::net::TcpListener::bind((live, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint: ApiEndpoint = format!("{{cluster}}.k8s.example:{port}").parse().unwrap();
    scene.driver = scene.driver.with_endpoint(Some(endpoint.clone()));
    let mut snapshot =
        cluster(&[machine("cp-1", "", 1, Phase::Ready), machine("cp-2", "", 2, Phase::Ready)]);
    snapshot.machines[0].removing = true;
    agent.0.lock().healthy = vec!["etcd"];
    scene.driver.sync(&snapshot).await.unwrap();
    let api = Profile::Apiserver.into();
    let (certificate, key) = {
        let heard = agent.0.lock();
        (heard.certificates[&api].clone(), heard.keys[&api].clone())
    };
    tokio::spawn(greet(listener, certificate, key));

    let manager = scene.manager(Settings { endpoint: Some(endpoint), ..Settings::default() });
    (snapshot.cluster.provisioned, snapshot.cluster.endpoint) = (true, "10.0.0.1:6443".into());
    let saved = manager.await.kubeconfig(&snapshot.cluster, "me").await.unwrap().unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    let entry = &saved["clusters"][0]["cluster"];
    let server = entry["server"].as_str().unwrap();
    assert_eq!(server, format!("https://demo.k8s.example:{port}"));
    let ca = BASE64_STANDARD.decode(entry["certificate-authority-data"].as_str().unwrap());
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&ca.unwrap()).unwrap()])
        .resolve_to_addrs(
            "demo.k8s.example",
            &[dead, live].map(|address| std::net::SocketAddr::new(address.parse().unwrap(), port)),
        );
    let answer = client.build().unwrap().get(server).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "ok");
}

/// Answers one call over TLS.
async fn greet(listener: tokio::net::TcpListener, certificate: String, key: String) {
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, key).unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let mut socket =
        tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(socket).await.unwrap();
    let _ = socket.read(&mut [0; 1024]).await.unwrap();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
    socket.write_all(answer.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_machine_that_cannot_is_given_up_and_one_that_goes_is_reset() {
    let scene = Scene::new().await;
    let agent = scene.agent("web-1");
    agent.0.lock().obstacles = vec!["this kernel has no overlay".into()];
    let mut worker = machine("web-1", "web", 2, Phase::Bootstrapping);
    worker.since = scene.lab.clock.now();
    let snapshot = cluster(&[machine("cp-1", "", 1, Phase::Ready), worker.clone()]);
    let text = "this kernel has no overlay".to_owned();
    let waits = scene.driver.configure(&snapshot, &worker).await.unwrap_err();
    assert_eq!(waits, Error::Unavailable(text.clone()), "it may have failed once");
    scene.lab.clock.advance(Duration::from_secs(60));
    let refused = scene.driver.configure(&snapshot, &worker).await.unwrap_err();
    assert_eq!(refused, Error::Refused(text));
    assert_eq!(scene.driver.reset(&snapshot, &worker).await.unwrap(), Progress::Done);
    assert_eq!(agent.0.lock().reset, ["demo"]);
    let gone = machine("web-9", "web", 9, Phase::Bootstrapping);
    let silent = scene.driver.configure(&snapshot, &gone).await.unwrap_err();
    assert!(matches!(silent, Error::Unavailable(_)), "{silent:?}");
}

#[tokio::test]
async fn a_snapshot_comes_from_a_control_plane_and_goes_to_the_founder_of_the_next() {
    let scene = Scene::new().await;
    scene.agent("cp-1");
    let snapshot = cluster(&[machine("cp-1", "", 1, Phase::Ready)]);
    let mut writer = scene.vault.create(b"keys").unwrap();
    scene.driver.save(&snapshot, &mut writer).await.unwrap();
    let written = writer.finish().unwrap();
    assert_eq!(written.size, 4 + 32);
    let about = Backup { id: "b".into(), cluster: "demo".into(), ..Backup::default() };
    scene.vault.store(written, &about).await.unwrap();

    let agent = scene.agent("cp-2");
    let mut founder = machine("cp-2", "", 2, Phase::Bootstrapping);
    founder.founder = true;
    let mut restored = cluster(std::slice::from_ref(&founder));
    restored.cluster.restored_from = "b".into();
    for _ in 0..3 {
        scene.driver.configure(&restored, &founder).await.unwrap();
    }
    let whole = [b"etcd".to_vec(), Sha256::digest(b"etcd").to_vec()].concat();
    assert_eq!(agent.0.lock().restored, whole, "once, before the machine is in a cluster");
    assert_eq!(agent.0.lock().specs.len(), 1);
    restored.cluster.restored_from = "gone".into();
    let other = scene.agent("cp-3");
    let mut founder = machine("cp-3", "", 3, Phase::Bootstrapping);
    founder.founder = true;
    let refused = scene.driver.configure(&restored, &founder).await.unwrap_err();
    assert_eq!(refused, Error::Refused("backup gone is not here".into()));
    assert!(other.0.lock().specs.is_empty(), "an empty etcd would be another cluster");
}

#[tokio::test]
async fn controllers_are_never_ahead_of_an_api_server_that_they_may_reach() {
    let scene = Scene::new().await;
    let agent = scene.agent("cp-1");
    let mut first = machine("cp-1", "", 1, Phase::Upgrading);
    (first.running, first.wanted.control_plane) = (first.wanted.clone(), "1.37.1".into());
    let mut second = machine("cp-2", "", 2, Phase::Ready);
    let mixed = cluster(&[first.clone(), second.clone()]);
    scene.driver.configure(&mixed, &first).await.unwrap();
    second.running.control_plane = "1.37.1".into();
    let same = cluster(&[first.clone(), second]);
    scene.driver.configure(&same, &first).await.unwrap();
    let heard = agent.0.lock();
    let versions: Vec<(&str, &str)> = heard
        .specs
        .iter()
        .map(|spec| {
            let controllers = &spec.control_plane.as_ref().unwrap().controllers_version;
            (spec.versions.as_ref().unwrap().kubernetes.as_str(), controllers.as_str())
        })
        .collect();
    assert_eq!(versions, [("1.37.1", "1.36.4"), ("1.37.1", "")]);
}

#[tokio::test]
async fn certificates_are_renewed_before_they_end_one_control_plane_at_a_time() {
    let scene = Scene::new().await;
    let agents = [scene.agent("cp-1"), scene.agent("cp-2")];
    let planes = [machine("cp-1", "", 1, Phase::Ready), machine("cp-2", "", 2, Phase::Ready)];
    let snapshot = cluster(&planes);
    agents.iter().for_each(|agent| agent.0.lock().healthy = vec!["etcd"]);
    let specs = || agents.each_ref().map(|agent| agent.0.lock().specs.len());
    for expected in [[1, 0], [1, 1]] {
        scene.driver.sync(&snapshot).await.unwrap();
        assert_eq!(specs(), expected, "the first certificates");
    }
    let day = Duration::from_secs(24 * 3600);
    let end = i64::try_from(scene.lab.clock.now() / 1000).unwrap() + 365 * 24 * 3600;
    agents.iter().for_each(|agent| agent.0.lock().not_after = Some(end));
    scene.lab.clock.advance(day * 240);
    scene.driver.sync(&snapshot).await.unwrap();
    assert_eq!(specs(), [1, 1], "two thirds are not over");
    scene.lab.clock.advance(day * 5);
    scene.driver.sync(&snapshot).await.unwrap();
    assert_eq!(specs(), [2, 1], "the other one waits");
    assert_eq!(agents[0].0.lock().specs[1].certificates.len(), 14);
    agents[0].0.lock().healthy.clear();
    scene.driver.sync(&snapshot).await.unwrap();
    assert_eq!(specs(), [2, 1], "the first one is not back yet");
    agents[0].0.lock().healthy = vec!["etcd"];
    scene.driver.sync(&snapshot).await.unwrap();
    assert_eq!(specs(), [2, 2]);
    scene.driver.sync(&snapshot).await.unwrap();
    assert_eq!(specs(), [2, 2], "they hold");
}

#[tokio::test]
async fn an_agent_that_lies_gets_no_certificate() {
    let scene = Scene::new().await;
    let planes = [machine("cp-1", "", 1, Phase::Ready)];
    let worker = machine("a-1", "a", 2, Phase::Bootstrapping);
    let snapshot = cluster(&[planes[0].clone(), worker.clone()]);
    let agent = scene.agent("a-1");
    // A worker that wants to be the control plane.
    agent.0.lock().greedy = Some(Profile::ControllerManager);
    let refused = scene.driver.configure(&snapshot, &worker).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("no right to"), "{refused}");
    assert!(agent.0.lock().specs.is_empty(), "it got a spec");
    // One that is a node of somebody else's cluster.
    agent.0.lock().greedy = None;
    scene.driver.configure(&snapshot, &worker).await.unwrap();
    agent.0.lock().identity = ("other".into(), "a-1".into());
    for lie in [("other", "a-1"), ("demo", "cp-1")] {
        agent.0.lock().identity = (lie.0.into(), lie.1.into());
        let refused = scene.driver.configure(&snapshot, &worker).await.unwrap_err();
        let text = format!("node {:?} of cluster {:?}", lie.1, lie.0);
        assert!(refused.to_string().contains(&text), "{refused}");
    }
    agent.0.lock().identity = ("demo".into(), "a-1".into());
    scene.driver.configure(&snapshot, &worker).await.unwrap();
}

#[tokio::test]
async fn certificates_are_signed_anew_by_other_authorities_once() {
    let scene = Scene::new().await;
    let agent = scene.agent("cp-1");
    let mut founder = machine("cp-1", "", 1, Phase::Bootstrapping);
    founder.founder = true;
    let mut snapshot = cluster(std::slice::from_ref(&founder));
    agent.0.lock().names_signer = true;
    scene.driver.configure(&snapshot, &founder).await.unwrap();
    let specs = || agent.0.lock().specs.len();
    scene.driver.configure(&snapshot, &founder).await.unwrap();
    assert_eq!(specs(), 1, "nothing changed");
    let etcd = |agent: &Agent| signer(&agent.0.lock().certificates[&Profile::EtcdPeer.into()]);
    let before = etcd(&agent);
    scene.keyring.prepare(&snapshot.cluster).await.unwrap();
    let stage = |founder: &mut Machine, snapshot: &mut Snapshot, stage| {
        founder.wanted.authority_stage = stage;
        snapshot.cluster.authorities.stage = stage;
        snapshot.machines = vec![founder.clone()];
    };
    stage(&mut founder, &mut snapshot, 1);
    scene.driver.configure(&snapshot, &founder).await.unwrap();
    assert_eq!((specs(), etcd(&agent)), (2, before.clone()), "trusted, and not used yet");
    let trusted = agent.0.lock().specs[1].authorities.clone().unwrap();
    for bundle in [&trusted.kubernetes, &trusted.etcd, &trusted.front_proxy] {
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
    }
    assert!(agent.0.lock().specs[1].certificates.is_empty());
    stage(&mut founder, &mut snapshot, 2);
    scene.driver.configure(&snapshot, &founder).await.unwrap();
    assert_ne!(etcd(&agent), before);
    let signed = agent.0.lock().specs[2].certificates.len();
    assert_eq!(signed, agent.0.lock().certificates.len(), "all of them");
    stage(&mut founder, &mut snapshot, 3);
    scene.driver.configure(&snapshot, &founder).await.unwrap();
    let last = agent.0.lock().specs[3].clone();
    assert!(last.certificates.is_empty());
    let alone = last.authorities.unwrap().etcd;
    assert_eq!(alone.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(trusted.etcd.contains(alone.trim()));
}
