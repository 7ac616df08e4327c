//! Specs of members, as agents get them.

use selvage_api::selvage::kubernetes::{
    Authorities, Certificate, CertificateRequest, ClusterNetwork, ControlPlane, EtcdPeer,
    MemberSpec, Profile, Route, Versions, Worker,
};

use crate::{
    catalogue::{Catalogue, Version},
    pki::{self, Authority, ClusterPki, Member, Use, leaf},
    plan::Snapshot,
    record::{Machine, Phase},
};

/// Addresses of all pods: 8192 machines with 254 each.
const PODS: &str = "10.128.0.0/11";
const PODS_FIRST: u32 = 128;
/// Addresses of services, the first of them and that of the DNS.
const SERVICES: &str = "10.96.0.0/16";
const FIRST_SERVICE: &str = "10.96.0.1";
const DNS: &str = "10.96.0.10";
/// Port of API servers.
pub(super) const API_PORT: u16 = 6443;

/// Addresses of the pods of a machine.
fn pods_of(machine: &Machine) -> String {
    format!("10.{}.{}.0/24", PODS_FIRST + machine.index / 256, machine.index % 256)
}

/// Returns what a machine is to be, without certificates and generation.
pub(super) fn member(
    snapshot: &Snapshot,
    machine: &Machine,
    keys: &ClusterPki,
    catalogue: &Catalogue,
) -> Result<MemberSpec, String> {
    let control_plane = machine.is_control_plane().then(|| ControlPlane {
        etcd: vec![EtcdPeer { name: machine.name.clone(), address: machine.address.clone() }],
        service_account_key: keys.service_account_key.to_string(),
        controllers_version: controllers_version(snapshot, machine),
        ..ControlPlane::default()
    });
    let stage = machine.wanted.authority_stage;
    let trusted = |which: fn(&pki::Authorities) -> &Authority| {
        keys.trusted(stage, which).map_err(|error| error.to_string())
    };
    let authorities = Authorities {
        kubernetes: trusted(|all| &all.kubernetes)?,
        etcd: trusted(|all| &all.etcd)?,
        front_proxy: trusted(|all| &all.front_proxy)?,
    };
    Ok(MemberSpec {
        cluster: snapshot.cluster.name.clone(),
        node: machine.name.clone(),
        address: machine.address.clone(),
        versions: Some(versions(machine, catalogue)?),
        control_plane,
        worker: Some(Worker { labels: machine.labels.clone(), ..Worker::default() }),
        network: Some(network(snapshot, machine)),
        api_servers: api_servers(snapshot, machine),
        authorities: Some(authorities),
        ..MemberSpec::default()
    })
}

/// Version of controller manager and scheduler, where it is not the API server's:
/// they may reach every API server, and must not be ahead of any.
fn controllers_version(snapshot: &Snapshot, machine: &Machine) -> String {
    let read = |text: &str| text.parse::<Version>().ok();
    let others = snapshot.machines.iter().filter(|other| {
        other.is_control_plane() && other.name != machine.name && other.phase() != Phase::Removing
    });
    let oldest = others.filter_map(|other| read(&other.running.control_plane)).min();
    match (oldest, read(&machine.wanted.control_plane)) {
        (Some(oldest), Some(own)) if oldest < own => oldest.to_string(),
        _ => String::new(),
    }
}

fn versions(machine: &Machine, catalogue: &Catalogue) -> Result<Versions, String> {
    let kubelet = &machine.wanted.kubelet;
    let kubernetes = match machine.wanted.control_plane.as_str() {
        "" => kubelet,
        control_plane => control_plane,
    };
    let version: Version =
        kubernetes.parse().map_err(|error: crate::catalogue::NotAVersion| error.to_string())?;
    let release = catalogue.find(version);
    let release = release.ok_or_else(|| format!("{version} is no longer on offer"))?;
    Ok(Versions {
        kubernetes: kubernetes.to_owned(),
        etcd: release.etcd.clone(),
        coredns: release.coredns.clone(),
        containerd: release.containerd.clone(),
        cni: release.cni.clone(),
        kubelet: if kubelet == kubernetes { String::new() } else { kubelet.clone() },
    })
}

fn network(snapshot: &Snapshot, machine: &Machine) -> ClusterNetwork {
    let others = snapshot.machines.iter().filter(|other| {
        other.name != machine.name && !other.address.is_empty() && other.phase().is_member()
    });
    let route =
        |other: &Machine| Route { pod_cidr: pods_of(other), address: other.address.clone() };
    ClusterNetwork {
        pod_cidr: PODS.into(),
        service_cidr: SERVICES.into(),
        dns_address: DNS.into(),
        node_pod_cidr: pods_of(machine),
        routes: others.map(route).collect(),
        ..ClusterNetwork::default()
    }
}

/// API servers that answer, and the machine's own.
fn api_servers(snapshot: &Snapshot, machine: &Machine) -> Vec<String> {
    let serves = |other: &&Machine| {
        let own = other.name == machine.name;
        let runs = !other.running.control_plane.is_empty() && other.phase() != Phase::Removing;
        other.is_control_plane() && !other.address.is_empty() && (own || runs)
    };
    let serving = snapshot.machines.iter().filter(serves);
    serving.map(|other| format!("{}:{API_PORT}", other.address)).collect()
}

const CONTROL_PLANE: [Profile; 9] = [
    Profile::Apiserver,
    Profile::ApiserverKubeletClient,
    Profile::ApiserverEtcdClient,
    Profile::FrontProxyClient,
    Profile::EtcdServer,
    Profile::EtcdPeer,
    Profile::EtcdHealthcheckClient,
    Profile::ControllerManager,
    Profile::Scheduler,
];
const WORKER: [Profile; 5] = [
    Profile::KubeletClient,
    Profile::KubeletServer,
    Profile::Proxy,
    Profile::Coredns,
    Profile::Volumes,
];

/// Profiles that a machine needs certificates for.
pub(super) fn profiles(spec: &MemberSpec) -> Vec<Profile> {
    let mut profiles = Vec::new();
    if spec.control_plane.is_some() {
        profiles.extend(CONTROL_PLANE);
    }
    if spec.worker.is_some() {
        profiles.extend(WORKER);
    }
    profiles
}

/// Signs a request of a machine, for what the profile says.
pub(super) fn sign(
    signer: &pki::Authorities,
    spec: &MemberSpec,
    api_names: &[String],
    request: &CertificateRequest,
    now: u64,
) -> Result<Certificate, pki::Error> {
    let profile = request.profile();
    let Some(meant) = meaning(profile) else {
        return Err(pki::Error::Request(format!("{} is not known", profile.as_str_name())));
    };
    let member = Member {
        node: &spec.node,
        address: &spec.address,
        service_address: FIRST_SERVICE,
        api_names,
    };
    let pem = authority(signer, profile).sign(&request.csr, &leaf(meant, &member), now)?;
    Ok(Certificate { profile: profile.into(), pem })
}

/// Authority that signs certificates of a profile.
pub(super) fn authority(signer: &pki::Authorities, profile: Profile) -> &Authority {
    match profile {
        Profile::ApiserverEtcdClient
        | Profile::EtcdServer
        | Profile::EtcdPeer
        | Profile::EtcdHealthcheckClient => &signer.etcd,
        Profile::FrontProxyClient => &signer.front_proxy,
        _ => &signer.kubernetes,
    }
}

fn meaning(profile: Profile) -> Option<Use> {
    Some(match profile {
        Profile::Apiserver => Use::ApiServer,
        Profile::ApiserverKubeletClient => Use::ApiServerKubeletClient,
        Profile::ApiserverEtcdClient => Use::ApiServerEtcdClient,
        Profile::FrontProxyClient => Use::FrontProxyClient,
        Profile::EtcdServer => Use::EtcdServer,
        Profile::EtcdPeer => Use::EtcdPeer,
        Profile::EtcdHealthcheckClient => Use::EtcdHealthcheckClient,
        Profile::ControllerManager => Use::ControllerManager,
        Profile::Scheduler => Use::Scheduler,
        Profile::KubeletClient => Use::KubeletClient,
        Profile::KubeletServer => Use::KubeletServer,
        Profile::Proxy => Use::Proxy,
        Profile::Coredns => Use::CoreDns,
        Profile::Volumes => Use::Volumes,
        Profile::Unspecified => return None,
    })
}
