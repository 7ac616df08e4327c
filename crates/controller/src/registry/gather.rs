//! Knowledge that only the controller has that an agent is connected to: all of
//! them are asked, so that each gives the same answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::TryStreamExt;
use futures::future::join_all;
use prost::{Message, Name};
use selvage_api::edgeproto as wire;
use selvage_api::object::Filter;
use selvage_samples::Scope;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;

use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::memory::{Latest, Memory};
use crate::row::StoredObject;

/// Metadata of a reply that names the controllers that did not answer.
pub const UNREACHABLE: &str = "x-selvage-unreachable";
/// Metadata of a request that asks for what this one controller knows.
pub const LOCAL: &str = "x-selvage-local";

/// An object that an agent sends and that nobody stores.
pub(crate) trait AgentReport:
    Message + Name + Default + Clone + Send + Sync + 'static
{
    /// Key that tells it from others of its type.
    type Key: KeyText;

    /// The method that shows what a controller was told itself.
    const SHOW: &'static str;

    fn reported_key(&self) -> &Self::Key;

    /// The cloudlet that it speaks of.
    fn cloudlet(&self) -> &wire::CloudletKey;

    /// The connection that brought it.
    fn connection(&self) -> i64;

    fn held(memory: &Memory) -> &Latest<Self>;
}

macro_rules! agent_reports {
    ($($message:ident, $key:ident, $held:ident, $show:literal, |$of:ident| $cloudlet:expr;)+) => {$(
        impl AgentReport for wire::$message {
            type Key = wire::$key;

            const SHOW: &'static str = $show;

            fn reported_key(&self) -> &wire::$key {
                self.key.as_ref().unwrap_or(KeyText::empty())
            }

            fn cloudlet(&self) -> &wire::CloudletKey {
                let $of = self.reported_key();
                $cloudlet
            }

            fn connection(&self) -> i64 {
                self.notify_id
            }

            fn held(memory: &Memory) -> &Latest<Self> {
                &memory.$held
            }
        }
    )+};
}

agent_reports! {
    AppInstInfo, AppInstKey, app_inst_infos, "/edgeproto.AppInstInfoApi/ShowAppInstInfo",
        |key| key.cluster_inst_or_empty().cloudlet_or_empty();
    ClusterInstInfo, ClusterInstKey, cluster_inst_infos,
        "/edgeproto.ClusterInstInfoApi/ShowClusterInstInfo",
        |key| key.cloudlet_or_empty();
    Node, NodeKey, nodes, "/edgeproto.NodeApi/ShowNodeLocal",
        |key| key.cloudlet_key.as_ref().unwrap_or(KeyText::empty());
}

/// Answers of all controllers that could be reached.
#[derive(Debug)]
pub(crate) struct Gathered<T> {
    pub(crate) found: T,
    /// Addresses of the controllers that did not answer.
    pub(crate) unreachable: Vec<String>,
}

impl<T> Gathered<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Gathered<U> {
        Gathered { found: change(self.found), unreachable: self.unreachable }
    }
}

impl Controller {
    /// Reports of agents that are connected to this controller.
    pub(crate) fn reports_here<M: AgentReport>(&self, filter: &M) -> Result<Vec<Arc<M>>> {
        let filter = Filter::of(filter)?;
        let mut found = M::held(&self.memory).list();
        found.retain(|object| filter.matches(&**object));
        Ok(found)
    }

    /// Reports of agents to any controller, in the order of keys.
    pub(crate) async fn reports_anywhere<M: AgentReport>(
        &self,
        filter: &M,
    ) -> Result<Gathered<Vec<Arc<M>>>> {
        let here = self.reports_here(filter)?;
        let reports = self.gather(M::SHOW, filter, &Scope::Everything).await;
        Ok(reports.map(|mut parts: Vec<(String, Vec<Arc<M>>)>| {
            parts.push((self.settings.external_address.clone(), here));
            self.one_of_each(parts)
        }))
    }

    /// Asks all other controllers at the same time for what they know
    /// themselves, and of that for what is in the scope.
    pub(crate) async fn gather<Q, M>(
        &self,
        method: &'static str,
        question: &Q,
        scope: &Scope,
    ) -> Gathered<Vec<(String, Vec<Arc<M>>)>>
    where
        Q: Message + Clone + Send + Sync + 'static,
        M: Message + Default + Send + Sync + 'static,
    {
        let own = &self.settings.external_address;
        let controllers = self.tables.controllers.list();
        let others = controllers.iter().map(|held| held.value.0.object_key().addr.as_str());
        let asking = others.filter(|address| address != own).map(|address| async move {
            let answer = self.ask(address, method, question.clone(), scope);
            let answer = tokio::time::timeout(self.peer_timeout(), answer).await;
            (address, answer.unwrap_or_else(|_| Err(Error::unavailable("no answer in time"))))
        });
        let mut gathered = Gathered { found: Vec::new(), unreachable: Vec::new() };
        for (address, answer) in join_all(asking).await {
            match answer {
                Ok(found) => gathered.found.push((address.to_owned(), found)),
                Err(error) => {
                    tracing::warn!(address, method, %error, "a controller does not answer");
                    gathered.unreachable.push(address.to_owned());
                }
            }
        }
        gathered
    }

    async fn ask<Q, M>(
        &self,
        address: &str,
        method: &'static str,
        question: Q,
        scope: &Scope,
    ) -> Result<Vec<Arc<M>>>
    where
        Q: Message + Send + Sync + 'static,
        M: Message + Default + Send + Sync + 'static,
    {
        let failed = |source: tonic::Status| Error::Peer {
            address: address.to_owned(),
            source: Box::new(source),
        };
        let channel = self.connect_peer(address).await?;
        let mut client = tonic::client::Grpc::new(channel);
        let connect = |source| Error::Connect { address: address.to_owned(), source };
        client.ready().await.map_err(|error| connect(error.into()))?;
        let mut request = tonic::Request::new(question);
        request.metadata_mut().insert(LOCAL, MetadataValue::from_static("true"));
        scope.ask(request.metadata_mut());
        let codec = tonic_prost::ProstCodec::<Q, M>::default();
        let path = PathAndQuery::from_static(method);
        let reply = client.server_streaming(request, path, codec).await.map_err(failed)?;
        reply.into_inner().map_ok(Arc::new).try_collect().await.map_err(failed)
    }

    /// An agent that has just gone from one controller to another may be known
    /// at both. The one that has its cloudlet speaks for it.
    fn one_of_each<M: AgentReport>(&self, mut parts: Vec<(String, Vec<Arc<M>>)>) -> Vec<Arc<M>> {
        parts.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut newest: BTreeMap<String, Arc<M>> = BTreeMap::new();
        for (address, objects) in parts {
            for object in objects {
                let key = object.reported_key().text();
                if !newest.contains_key(&key) || self.has_cloudlet(&address, object.cloudlet()) {
                    newest.insert(key, object);
                }
            }
        }
        newest.into_values().collect()
    }

    /// Returns true if the agent of a cloudlet is connected to the controller
    /// at an address.
    fn has_cloudlet(&self, address: &str, cloudlet: &wire::CloudletKey) -> bool {
        let info = self.tables.get::<wire::CloudletInfo>(cloudlet);
        info.is_some_and(|info| owner_of(&info.value.0) == address)
    }
}

/// The address of the controller that an agent is connected to, which signs
/// as `host@address`.
pub(crate) fn owner_of(info: &wire::CloudletInfo) -> &str {
    info.controller.rsplit_once('@').map_or("", |(_, address)| address)
}
