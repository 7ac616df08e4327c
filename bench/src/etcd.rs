//! A single etcd node for the time of a benchmark.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use etcd_client::Client;

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Child,
    url: String,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Etcd {
    /// Starts etcd with its data below `folder`.
    pub async fn start(folder: &Path) -> Result<Self> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let process = Command::new("etcd")
            .args(["--name", "bench", "--log-level", "error", "--data-dir"])
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("bench={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting etcd")?;
        let etcd = Self { process, url };
        for _ in 0..300 {
            if let Ok(mut client) = etcd.client().await
                && client.status().await.is_ok()
            {
                return Ok(etcd);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("etcd did not become ready within 30 s")
    }

    /// A connection of its own.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([&self.url], None).await?)
    }
}
