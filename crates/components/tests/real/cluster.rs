//! A cluster as a controller drives it, by the contract alone.

use std::{fs, path::PathBuf, process::Command};

use selvage_api::selvage::kubernetes::{
    ApplyRequest, ClusterNetwork, ComponentState, ControlPlane, EtcdPeer, MemberSpec, Profile,
    RequestCertificatesRequest, Route, Versions, Worker,
};

use crate::{
    authority::Authorities,
    lab::{Agent, Lab, VERSION, kubectl, until},
};

pub(crate) const NAME: &str = "trial";

/// First three numbers of the addresses of a machine's pods.
pub(crate) fn pods_of(agent: &Agent) -> String {
    format!("10.244.{}", agent.address.octets()[3])
}

pub(crate) struct Cluster {
    pub(crate) authorities: Authorities,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

impl Cluster {
    pub(crate) fn new(lab: &Lab, server: &str) -> Self {
        let authorities = Authorities::new();
        let kubeconfig = lab.folder.path().join("kubeconfig");
        fs::write(&kubeconfig, authorities.admin(server)).unwrap();
        Self { authorities, kubectl: kubectl(&lab.artifacts), kubeconfig }
    }

    /// Lets kubectl speak to another API server.
    pub(crate) fn point_at(&self, server: &str) {
        fs::write(&self.kubeconfig, self.authorities.admin(server)).unwrap();
    }

    /// Spec of a machine; certificates come later.
    pub(crate) fn spec(&self, agent: &Agent, planes: &[&Agent], all: &[&Agent]) -> MemberSpec {
        let pods = |agent: &Agent| format!("{}.0/24", pods_of(agent));
        let others = all.iter().filter(|other| other.name != agent.name);
        let routes =
            others.map(|other| Route { pod_cidr: pods(other), address: other.address.to_string() });
        let peer = |plane: &&Agent| EtcdPeer {
            name: plane.name.clone(),
            address: plane.address.to_string(),
        };
        let is_plane = planes.iter().any(|plane| plane.name == agent.name);
        MemberSpec {
            generation: 1,
            cluster: NAME.into(),
            node: agent.name.clone(),
            address: agent.address.to_string(),
            versions: Some(Versions {
                kubernetes: VERSION.into(),
                etcd: "3.6.8".into(),
                coredns: "1.14.2".into(),
                ..Versions::default()
            }),
            control_plane: is_plane.then(|| ControlPlane {
                etcd: planes.iter().map(peer).collect(),
                service_account_key: self.authorities.service_account_key.clone(),
                ..ControlPlane::default()
            }),
            worker: Some(Worker::default()),
            network: Some(ClusterNetwork {
                pod_cidr: "10.244.0.0/16".into(),
                service_cidr: "10.96.0.0/16".into(),
                dns_address: "10.96.0.10".into(),
                node_pod_cidr: pods(agent),
                routes: routes.collect(),
                ..ClusterNetwork::default()
            }),
            api_servers: planes.iter().map(|one| format!("{}:6443", one.address)).collect(),
            authorities: Some(self.authorities.message()),
            ..MemberSpec::default()
        }
    }

    /// Has certificates made for a machine and tells it what to be.
    pub(crate) async fn apply(&self, agent: &Agent, mut spec: MemberSpec) {
        let mut client = agent.connect().await;
        let last = Profile::Coredns as i32;
        let profiles: Vec<i32> = match spec.control_plane {
            Some(_) => (1..=last).collect(),
            None => (Profile::KubeletClient as i32..=last).collect(),
        };
        let request = RequestCertificatesRequest { cluster: NAME.into(), profiles, renew: false };
        let answer = client.request_certificates(request).await.unwrap().into_inner();
        let sign = |request| self.authorities.sign(request, &spec.node, &spec.address);
        spec.certificates = answer.requests.iter().map(sign).collect();
        client.apply(ApplyRequest { spec: Some(spec) }).await.unwrap();
    }

    /// Runs kubectl; what it prints, or what went wrong.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--request-timeout", "20s"])
            .arg("--cache-dir")
            .arg(self.kubeconfig.with_extension("cache"))
            .args(arguments)
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Gives CoreDNS the rights that a controller gives it.
    pub(crate) async fn let_dns_read(&self) {
        self.make(&[
            "create",
            "clusterrole",
            "coredns",
            "--verb=list,watch",
            "--resource=services,pods,namespaces,endpointslices.discovery.k8s.io",
        ])
        .await;
        self.make(&[
            "create",
            "clusterrolebinding",
            "coredns",
            "--clusterrole=coredns",
            "--user=system:coredns",
        ])
        .await;
    }

    /// Makes something, as soon as the cluster lets us.
    pub(crate) async fn make(&self, arguments: &[&str]) {
        until("something new", async || match self.kubectl(arguments) {
            Err(error) if !error.contains("already exists") => Err(error),
            _ => Ok(()),
        })
        .await;
    }

    pub(crate) async fn node_is_ready(&self, node: &str) {
        let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        until("a node that is ready", async || {
            match self.kubectl(&["get", "node", node, "-o", path])?.as_str() {
                "True" => Ok(()),
                other => Err(other.to_owned()),
            }
        })
        .await;
    }

    pub(crate) async fn pod_runs(&self, pod: &str) -> String {
        until("a pod that runs", async || {
            let path = "jsonpath={.status.phase} {.status.containerStatuses[0].containerID}";
            let said = self.kubectl(&["get", "pod", pod, "-o", path])?;
            match said.split_once(' ') {
                Some(("Running", id)) if !id.is_empty() => Ok(id.to_owned()),
                _ => Err(format!(
                    "{said}: {}",
                    self.kubectl(&["get", "events"]).unwrap_or_else(|error| error)
                )),
            }
        })
        .await
    }
}

/// Waits until a machine is what it has to be.
pub(crate) async fn is_so(lab: &Lab, agent: &Agent, generation: u64) {
    until("a machine that is what it has to be", async || {
        let status = agent.status().await;
        let well = status.components.iter().all(|one| one.state() == ComponentState::Healthy);
        if status.observed_generation == generation && well && !status.components.is_empty() {
            return Ok(());
        }
        let lines = status
            .components
            .iter()
            .map(|one| format!("{} {} {}", one.name, one.state().as_str_name(), one.message));
        let log = lab.log(agent);
        let log: Vec<&str> = log.lines().rev().take(20).collect();
        Err(format!("{:?} {:#?}\n{}", status.obstacles, lines.collect::<Vec<_>>(), log.join("\n")))
    })
    .await;
}
