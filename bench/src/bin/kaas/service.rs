//! The cluster service: `selvage up` in a process of its own, and a connection to
//! it.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use selvage_api::{
    cnct::kaas::api::{
        AddNodePoolMsg, ClusterStatus, ControlPlaneMachineSpec, CreateClusterMsg, DeleteClusterMsg,
        GetClusterListMsg, GetClusterMsg, MachineSpec, UpgradeClusterMsg,
        cluster_client::ClusterClient,
    },
    selvage::clusters::{
        Backup, BackupClusterRequest, Cluster, GetClusterRequest, RestoreClusterRequest,
        cluster_service_client::ClusterServiceClient,
    },
    services::auth::{LoginRequest, auth_service_client::AuthServiceClient},
};
use selvage_bench::cost::{Group, Memory};
use tonic::{
    Request,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// Longest that something may take to come up.
const LIMIT: Duration = Duration::from_secs(600);
const LARGEST: usize = 64 << 20;

/// The service, which ends when this is dropped.
pub(crate) struct Service {
    child: std::process::Child,
    group: Group,
    channel: Channel,
    token: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(value: &serde_json::Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn pool(count: i32) -> MachineSpec {
    MachineSpec { name: "pool".into(), count, ..MachineSpec::default() }
}

impl Service {
    pub(crate) async fn start(selvage: &Path, folder: &Path, settings: &[&str]) -> Result<Self> {
        let ready = folder.join("ready.json");
        let mut command = Command::new(selvage);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELVAGE_")) {
            command.env_remove(name);
        }
        command.args(["up", "--port", "0", "--data"]).arg(folder.join("data"));
        command.arg("--ready-file").arg(&ready);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let group = Group::new("kaas")?;
        let child = group.spawn(&mut command)?;
        let said = until("selvage up", async || fs::read(&ready).ok()).await?;
        let said: serde_json::Value = serde_json::from_slice(&said)?;
        let endpoint = text(&said["endpoint"]).context("no endpoint")?;
        let ca = fs::read(text(&said["ca"]).context("no CA")?)?;
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        let channel = Endpoint::from_shared(endpoint)?.tcp_nodelay(true).tls_config(tls)?;
        let channel = channel.connect().await?;
        let file = text(&said["admin"]["password_file"]).context("no password")?;
        let password = fs::read_to_string(file)?.trim().to_owned();
        let request = LoginRequest { username: "admin".into(), password };
        let login = AuthServiceClient::new(channel.clone()).login(request).await?;
        Ok(Self { child, group, channel, token: login.into_inner().token })
    }

    fn request<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.token).parse()?);
        Ok(request)
    }

    fn api(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    fn extensions(&self) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    /// A cluster with one control plane and so many machines besides.
    pub(crate) async fn create(&self, name: &str, machines: i32) -> Result<()> {
        self.create_version(name, "", 1, machines).await
    }

    /// A cluster of that version.
    pub(crate) async fn create_version(
        &self,
        name: &str,
        version: &str,
        control_planes: i32,
        machines: i32,
    ) -> Result<()> {
        let count = control_planes;
        let asked = CreateClusterMsg {
            name: name.into(),
            k8s_version: version.into(),
            control_plane_nodes: Some(ControlPlaneMachineSpec { count, ..Default::default() }),
            worker_node_pools: if machines > 0 { vec![pool(machines)] } else { Vec::new() },
        };
        self.api().create_cluster(self.request(asked)?).await?;
        Ok(())
    }

    /// So many machines more for a cluster.
    pub(crate) async fn add(&self, name: &str, machines: i32) -> Result<()> {
        let worker_node_pools = vec![pool(machines)];
        let asked = AddNodePoolMsg { cluster_name: name.into(), worker_node_pools };
        self.api().add_node_pool(self.request(asked)?).await?;
        Ok(())
    }

    pub(crate) async fn upgrade(&self, name: &str, version: &str) -> Result<()> {
        let asked = UpgradeClusterMsg { name: name.into(), version: version.into() };
        self.api().upgrade_cluster(self.request(asked)?).await?;
        Ok(())
    }

    /// A cluster with its machines.
    pub(crate) async fn show(&self, name: &str) -> Result<Cluster> {
        let asked = self.request(GetClusterRequest { name: name.into() })?;
        let reply = self.extensions().get_cluster(asked).await?.into_inner();
        reply.cluster.context("no cluster")
    }

    pub(crate) async fn backup(&self, name: &str) -> Result<Backup> {
        let asked = self.request(BackupClusterRequest { name: name.into() })?;
        let reply = self.extensions().backup_cluster(asked).await?.into_inner();
        reply.backup.context("no backup")
    }

    /// Brings a cluster back from a snapshot.
    pub(crate) async fn restore(&self, id: &str) -> Result<()> {
        let asked = RestoreClusterRequest { id: id.into(), name: String::new() };
        self.extensions().restore_cluster(self.request(asked)?).await?;
        Ok(())
    }

    /// The kubeconfig of a cluster, once there is one.
    pub(crate) async fn kubeconfig(&self, name: &str) -> Result<Option<String>> {
        let asked = GetClusterMsg { name: name.into() };
        let reply = self.api().get_cluster(self.request(asked)?).await?.into_inner();
        let config = reply.cluster.map(|cluster| cluster.kubeconfig);
        Ok(config.filter(|config| !config.is_empty()))
    }

    /// Deletes a cluster and waits until nothing of it is left.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let asked = DeleteClusterMsg { name: name.into() };
        self.api().delete_cluster(self.request(asked)?).await?;
        until("a deletion", async || match self.get(name).await {
            Ok(()) => None,
            Err(_) => Some(()),
        })
        .await
    }

    /// A cluster as a client of the original gets it, with its kubeconfig.
    pub(crate) async fn get(&self, name: &str) -> Result<()> {
        let asked = GetClusterMsg { name: name.into() };
        self.api().get_cluster(self.request(asked)?).await?;
        Ok(())
    }

    /// Waits until so many clusters run.
    pub(crate) async fn until_running(&self, wanted: usize) -> Result<()> {
        until("clusters", async || {
            let asked = self.request(GetClusterListMsg {}).ok()?;
            let list = self.api().get_cluster_list(asked).await.ok()?.into_inner();
            let running = i32::from(ClusterStatus::Running);
            let count = list.clusters.iter().filter(|item| item.status == running).count();
            (count >= wanted).then_some(())
        })
        .await
    }

    /// Waits until a cluster runs with so many machines.
    pub(crate) async fn until_machines(&self, name: &str, machines: usize) -> Result<()> {
        until("machines", async || {
            let cluster = self.show(name).await.ok()?;
            (cluster.status == "RUNNING" && cluster.machines.len() == machines).then_some(())
        })
        .await
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        Memory::of(self.child.id())
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.group.cpu()
    }
}

/// Waits until something gives an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("{what}: no answer within {LIMIT:?}")
}
