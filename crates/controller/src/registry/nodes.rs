//! The agents that are connected, to this controller or to any.

use futures::TryStreamExt;
use futures::future::join_all;
use selvage_api::edgeproto as wire;
use selvage_api::object::Filter;

use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::row::Kept;

/// Metadata of a reply that names the controllers that did not answer.
pub const UNREACHABLE: &str = "x-selvage-unreachable";

/// Agents of all controllers that answered.
#[derive(Debug, Default)]
pub struct Nodes {
    pub found: Vec<wire::Node>,
    /// Addresses of the controllers that did not answer.
    pub unreachable: Vec<String>,
}

impl Controller {
    /// The agents that are connected to this controller.
    pub fn local_nodes(&self, filter: &wire::Node) -> Result<Vec<wire::Node>> {
        let filter = Filter::of(filter)?;
        let nodes = self.memory.nodes.list();
        Ok(nodes.iter().filter(|node| filter.matches(&***node)).map(|n| (**n).clone()).collect())
    }

    /// The agents of all controllers, asked at the same time.
    pub async fn all_nodes(&self, filter: &wire::Node) -> Result<Nodes> {
        let own = &self.settings.external_address;
        let mut nodes = Nodes { found: self.local_nodes(filter)?, unreachable: Vec::new() };
        let controllers = self.tables.controllers.list();
        let others = controllers.iter().map(|held| held.value.0.object_key().addr.as_str());
        let answers = join_all(
            others.filter(|address| address != own).map(|address| self.ask_nodes(address, filter)),
        )
        .await;
        for (address, answer) in answers {
            match answer {
                Ok(found) => nodes.found.extend(found),
                Err(error) => {
                    tracing::warn!(address, %error, "a controller does not tell its agents");
                    nodes.unreachable.push(address.to_owned());
                }
            }
        }
        nodes.found.sort_by_cached_key(|node| node.key.clone().unwrap_or_default().text());
        Ok(nodes)
    }

    async fn ask_nodes<'a>(
        &self,
        address: &'a str,
        filter: &wire::Node,
    ) -> (&'a str, Result<Vec<wire::Node>>) {
        let asking = async {
            let channel = self.connect_peer(address).await?;
            let mut client = wire::node_api_client::NodeApiClient::new(channel);
            let peer = |source: tonic::Status| Error::Peer {
                address: address.to_owned(),
                source: Box::new(source),
            };
            let stream = client.show_node_local(filter.clone()).await.map_err(peer)?.into_inner();
            stream.try_collect().await.map_err(peer)
        };
        let answer = tokio::time::timeout(self.peer_timeout(), asking).await;
        (address, answer.unwrap_or_else(|_| Err(Error::unavailable("no answer in time"))))
    }
}
