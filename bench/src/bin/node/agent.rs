//! The agent: `selvage node`, as it is installed on a machine, and the
//! controller that such an agent belongs to.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use selvage_api::{
    os::{MemoryResponse, ProcessInfo, Stat, StatsRequest, os_service_client::OsServiceClient},
    selvage::identity::{CreateJoinTokenRequest, identity_service_client::IdentityServiceClient},
    services::auth::{LoginRequest, auth_service_client::AuthServiceClient},
};
use tonic::{
    Request,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::peers::{Daemon, answer};

/// An agent in a process of its own, and a connection to it.
pub(crate) struct Agent {
    pub(crate) daemon: Daemon,
    pub(crate) endpoint: String,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) token: Option<String>,
    channel: Channel,
}

/// A program of ours, with its things in this folder.
fn command(selvage: &Path, part: &str, folder: &Path) -> (Command, PathBuf) {
    let ready = folder.join("ready.json");
    let mut command = Command::new(selvage);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELVAGE_")) {
        command.env_remove(name);
    }
    command.args([part, "--port", "0", "--data"]).arg(folder.join("data"));
    command.arg("--ready-file").arg(&ready);
    (command, ready)
}

/// Reads the ready file of a program once it answers.
async fn readiness(name: &str, ready: &Path) -> Result<serde_json::Value> {
    let said = answer(name, || async { fs::read(ready).ok() }).await?;
    Ok(serde_json::from_slice(&said)?)
}

fn text(value: &serde_json::Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

async fn connect(endpoint: &str, ca: Option<&[u8]>) -> Result<Channel> {
    let channel = Endpoint::from_shared(endpoint.to_owned())?.tcp_nodelay(true);
    let Some(ca) = ca else { return Ok(channel.connect().await?) };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    Ok(channel.tls_config(tls)?.connect().await?)
}

fn with_token<T>(message: T, token: &str) -> Result<Request<T>> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
    Ok(request)
}

/// The controller that machines belong to, in a process of its own whose cost
/// is not the agent's.
pub(crate) struct Controller {
    _daemon: Daemon,
    address: String,
    channel: Channel,
    token: String,
}

impl Controller {
    pub(crate) async fn start(selvage: &Path, folder: &Path) -> Result<Self> {
        let (mut command, ready) = command(selvage, "controller", folder);
        let daemon = Daemon::start("controller", &mut command)?;
        let said = readiness("controller", &ready).await?;
        let endpoint = text(&said["endpoint"]).context("no endpoint")?;
        let ca = fs::read(text(&said["ca"]).context("no CA")?)?;
        let channel = connect(&endpoint, Some(&ca)).await?;
        let password = text(&said["admin"]["password_file"]).context("no password")?;
        let token = log_in(channel.clone(), Path::new(&password)).await?;
        let address = endpoint.trim_start_matches("https://").to_owned();
        Ok(Self { _daemon: daemon, address, channel, token })
    }

    /// A file with what a machine of this name joins with.
    async fn invite(&self, name: &str, folder: &Path) -> Result<PathBuf> {
        let request =
            CreateJoinTokenRequest { machine: format!("node/{name}"), ..Default::default() };
        let mut identity = IdentityServiceClient::new(self.channel.clone());
        let made = identity.create_join_token(with_token(request, &self.token)?).await?;
        let file = folder.join("join");
        fs::write(&file, made.into_inner().token)?;
        Ok(file)
    }
}

impl Agent {
    /// One that belongs to the controller and looks at this containerd, over
    /// TLS, as an administrator asks it.
    pub(crate) async fn joined(
        selvage: &Path,
        controller: &Controller,
        folder: &Path,
        containerd: &Path,
    ) -> Result<Self> {
        let invitation = controller.invite("bench", folder).await?;
        let (mut command, ready) = command(selvage, "node", folder);
        command.args(["--controller", &controller.address, "--join-file"]).arg(invitation);
        let socket = containerd.display();
        for name in ["containerd", "system_containerd", "cri"] {
            command.arg("--set").arg(format!("node.{name}={socket}"));
        }
        Self::begin("agent", &mut command, &ready, Some(controller.token.clone())).await
    }

    /// One of many, without TLS, that looks at no containers.
    pub(crate) async fn plain(selvage: &Path, folder: &Path, number: usize) -> Result<Self> {
        let (mut command, ready) = command(selvage, "node", folder);
        command.arg("--insecure");
        for name in ["containerd", "system_containerd", "cri"] {
            command.args(["--set", &format!("node.{name}=/nonexistent/sock")]);
        }
        Self::begin(&format!("agent{number}"), &mut command, &ready, None).await
    }

    async fn begin(
        name: &str,
        command: &mut Command,
        ready: &Path,
        token: Option<String>,
    ) -> Result<Self> {
        let daemon = Daemon::start(name, command)?;
        let said = readiness(name, ready).await?;
        let endpoint = text(&said["endpoint"]).context("no endpoint")?;
        let ca = text(&said["ca"]).map(fs::read).transpose()?;
        let channel = connect(&endpoint, ca.as_deref()).await?;
        Ok(Self { daemon, endpoint, ca, token, channel })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.split_once("://").map_or(&self.endpoint, |(_, address)| address)
    }

    fn request<T>(&self, message: T) -> Result<Request<T>> {
        match &self.token {
            Some(token) => with_token(message, token),
            None => Ok(Request::new(message)),
        }
    }

    fn os(&self) -> OsServiceClient<Channel> {
        OsServiceClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let reply = self.os().processes(self.request(())?).await?.into_inner();
        Ok(reply.messages.into_iter().flat_map(|message| message.processes).collect())
    }

    pub(crate) async fn stats(&self, namespace: &str) -> Result<Vec<Stat>> {
        let request = StatsRequest { namespace: namespace.into(), driver: 0 };
        let reply = self.os().stats(self.request(request)?).await?.into_inner();
        Ok(reply.messages.into_iter().flat_map(|message| message.stats).collect())
    }

    /// Of the agent itself, or of those that it is to ask.
    pub(crate) async fn memory(&self, nodes: &[String]) -> Result<MemoryResponse> {
        let mut request = self.request(())?;
        for node in nodes {
            request.metadata_mut().append("nodes", node.parse()?);
        }
        Ok(self.os().memory(request).await?.into_inner())
    }
}

async fn log_in(channel: Channel, password: &Path) -> Result<String> {
    let password = fs::read_to_string(password)?.trim().to_owned();
    let request = LoginRequest { username: "admin".into(), password };
    Ok(AuthServiceClient::new(channel).login(request).await?.into_inner().token)
}
