//! Nodes: which there are, cordon, and eviction of pods.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DynamicObject, EvictParams, ListParams},
};

use crate::{Context, Objects, Pods, Result, error::ignore_not_found, resource};

/// Nodes of a cluster.
#[derive(Clone)]
pub struct Nodes {
    client: Client,
}

impl Nodes {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    pub async fn list(&self) -> Result<Vec<DynamicObject>> {
        Objects::all(&self.client, &resource("", "v1", "Node")).list(&ListParams::default()).await
    }

    /// Keeps new pods off a node.
    pub async fn cordon(&self, name: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        api.cordon(name).await.context(&format!("cordoning node {name}")).map(drop)
    }

    /// Lets new pods onto a node again.
    pub async fn uncordon(&self, name: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        api.uncordon(name).await.context(&format!("uncordoning node {name}")).map(drop)
    }
}

impl Pods {
    /// Asks for a pod's end within its disruption budget: 429
    /// ([`selvage_api::Code::Unavailable`]) means "not now, try again".
    /// A pod that is gone counts as evicted.
    pub async fn evict(&self, pod: &str) -> Result<()> {
        let evicted = ignore_not_found(self.api.evict(pod, &EvictParams::default()).await);
        evicted.context(&format!("evicting pod {pod}")).map(drop)
    }
}
