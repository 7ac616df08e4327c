//! A Prometheus that is there already: alerts that fire, and machines on which
//! a node_exporter runs, ours or another's.

mod answer;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::{Client, Url};
use selvage_kit::identity::Secret;

use super::{
    Failure, Probe, Source,
    http::{self, BadOptions},
};
use crate::facts::{Data, Section};

/// Answers about thousands of machines take a few megabytes.
const LARGEST: usize = 16 << 20;
/// Room and memory, by one question.
const ROOM: &str = r#"{__name__=~"node_memory_(MemTotal|MemAvailable)_bytes|node_filesystem_(size|avail)_bytes",fstype!~"tmpfs|ramfs|devtmpfs|overlay|squashfs|iso9660|proc|sysfs"}"#;
const CPU: &str =
    r#"100 * (1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[5m])))"#;

/// Address of a Prometheus and our credentials there.
#[derive(Debug, Clone)]
pub struct PrometheusOptions {
    /// Such as `https://prometheus.example:9090`, with its path where it has
    /// one.
    pub url: String,
    /// Sent as a bearer token.
    pub token: Option<Secret>,
    /// PEM file of the CA that signed its certificate.
    pub ca: Option<PathBuf>,
}

/// A Prometheus as a source.
pub struct Prometheus {
    asked: Arc<Endpoint>,
    every: Duration,
}

struct Endpoint {
    client: Client,
    url: Url,
    token: Option<Secret>,
}

impl Prometheus {
    /// A source that asks so often.
    pub fn new(options: PrometheusOptions, every: Duration) -> Result<Self, BadOptions> {
        let url = http::address("url", &options.url)?;
        let client = http::client(options.ca.as_deref(), false)?;
        Ok(Self { asked: Arc::new(Endpoint { client, url, token: options.token }), every })
    }
}

impl Endpoint {
    /// Its address as others may see it.
    fn base(&self) -> String {
        let mut shown = self.url.clone();
        // An address that has no place for these has none of them.
        let _ = (shown.set_username(""), shown.set_password(None));
        shown.as_str().trim_end_matches('/').to_owned()
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<serde_json::Value, Failure> {
        let address = format!("{}/api/v1/{path}", self.url.as_str().trim_end_matches('/'));
        let url = Url::parse_with_params(&address, query)
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        let response = request.send().await.map_err(|error| http::failed(&error))?;
        let status = response.status();
        // Errors of a query come as JSON with their reason.
        if !status.is_success() && !matches!(status.as_u16(), 400 | 422 | 503) {
            return Err(Failure::Failed(format!("Prometheus answered {status}")));
        }
        answer::data(&http::json(response, "Prometheus", LARGEST).await?)
    }
}

impl Source for Prometheus {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let alerts = Alerts { asked: Arc::clone(&self.asked), every: self.every };
        let exporters = Exporters { asked: self.asked, every: self.every };
        vec![Box::new(alerts), Box::new(exporters)]
    }
}

struct Alerts {
    asked: Arc<Endpoint>,
    every: Duration,
}

#[async_trait]
impl Probe for Alerts {
    fn section(&self) -> Section {
        Section::Alerts
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let answer = self.asked.get("alerts", &[]).await?;
        Ok(Data::Alerts(answer::alerts(&answer, &self.asked.base()).into()))
    }
}

struct Exporters {
    asked: Arc<Endpoint>,
    every: Duration,
}

#[async_trait]
impl Probe for Exporters {
    fn section(&self) -> Section {
        Section::Exporters
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let room = self.asked.get("query", &[("query", ROOM)]).await?;
        let cpu = self.asked.get("query", &[("query", CPU)]).await?;
        let found = answer::exporters(&room, &cpu);
        if found.is_empty() {
            return Err(Failure::Absent);
        }
        Ok(Data::Exporters(found.into()))
    }
}
