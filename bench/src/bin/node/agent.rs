//! The agent: `selvage node`, as it is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use selvage_api::{
    os::{MemoryResponse, ProcessInfo, Stat, StatsRequest, os_service_client::OsServiceClient},
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

fn command(selvage: &Path, folder: &Path) -> (Command, PathBuf) {
    let ready = folder.join("ready.json");
    let mut command = Command::new(selvage);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELVAGE_")) {
        command.env_remove(name);
    }
    command.args(["node", "--port", "0", "--data"]).arg(folder.join("data"));
    command.arg("--ready-file").arg(&ready);
    (command, ready)
}

impl Agent {
    /// One that looks at this containerd, over TLS, with an administrator
    /// logged in.
    pub(crate) async fn start(selvage: &Path, folder: &Path, containerd: &Path) -> Result<Self> {
        let (mut command, ready) = command(selvage, folder);
        let socket = containerd.display();
        for name in ["containerd", "system_containerd", "cri"] {
            command.arg("--set").arg(format!("node.{name}={socket}"));
        }
        Self::begin("agent", &mut command, &ready).await
    }

    /// One of many, without TLS, that looks at no containers.
    pub(crate) async fn plain(selvage: &Path, folder: &Path, number: usize) -> Result<Self> {
        let (mut command, ready) = command(selvage, folder);
        command.arg("--insecure");
        for name in ["containerd", "system_containerd", "cri"] {
            command.args(["--set", &format!("node.{name}=/nonexistent/sock")]);
        }
        Self::begin(&format!("agent{number}"), &mut command, &ready).await
    }

    async fn begin(name: &str, command: &mut Command, ready: &Path) -> Result<Self> {
        let daemon = Daemon::start(name, command)?;
        let said = answer(name, || async { fs::read(ready).ok() }).await?;
        let said: serde_json::Value = serde_json::from_slice(&said)?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let endpoint = text(&said["endpoint"]).context("no endpoint")?;
        let ca = text(&said["ca"]).map(fs::read).transpose()?;
        let channel = Endpoint::from_shared(endpoint.clone())?.tcp_nodelay(true);
        let channel = match &ca {
            Some(ca) => {
                let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
                channel.tls_config(tls)?
            }
            None => channel,
        };
        let channel = channel.connect().await?;
        let token = match &ca {
            Some(_) => {
                let file = text(&said["admin"]["password_file"]).context("no password")?;
                Some(log_in(channel.clone(), Path::new(&file)).await?)
            }
            None => None,
        };
        Ok(Self { daemon, endpoint, ca, token, channel })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.split_once("://").map_or(&self.endpoint, |(_, address)| address)
    }

    fn request<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        Ok(request)
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
