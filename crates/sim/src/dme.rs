//! A match engine that only listens.

use std::sync::Arc;

use selvage_api::edgeproto::{App, AppInst, CloudletKey, Metric, Node, NodeKey, NodeType};
use selvage_notify::{Cache, ClientOptions, ClientStatus, Error, Exchange, NotifyClient};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A simulated match engine: it has what a real one would have, and answers
/// nobody. It runs until it is dropped.
#[derive(Debug)]
pub struct SimDme {
    /// All apps.
    pub apps: Arc<Cache<App>>,
    /// All instances.
    pub instances: Arc<Cache<AppInst>>,
    client: NotifyClient,
    _running: DropGuard,
}

impl SimDme {
    /// Starts one; `sim-` is put before its name. Needs a runtime.
    pub fn start(options: ClientOptions, name: &str, at: CloudletKey) -> Result<Self, Error> {
        let (apps, instances) = (Cache::new()?, Cache::new()?);
        let nodes = Cache::new()?;
        let key = NodeKey {
            name: format!("sim-{name}"),
            node_type: NodeType::NodeDme.into(),
            cloudlet_key: Some(at),
        };
        nodes.put(Node { key: Some(key), ..Node::default() })?;
        let exchange = Exchange::new()
            .send(nodes)
            .send_messages::<Metric>()?
            .receive(apps.clone())
            .receive(instances.clone());
        let client = NotifyClient::new(exchange, ClientOptions { filter: false, ..options })?;
        let token = CancellationToken::new();
        let (running, until) = (client.clone(), token.clone());
        tokio::spawn(async move { running.run(until).await });
        Ok(Self { apps, instances, client, _running: token.drop_guard() })
    }

    /// Sends a sample.
    pub fn post(&self, metric: &Metric) -> Result<usize, Error> {
        self.client.post(metric)
    }

    /// Returns the status of its connection.
    pub fn status(&self) -> ClientStatus {
        self.client.status()
    }

    /// Breaks the connection; it comes back by itself.
    pub fn break_connection(&self) {
        self.client.reconnect();
    }
}
