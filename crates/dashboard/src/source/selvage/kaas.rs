//! Kubernetes clusters that are made of machines.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use selvage_api::{
    cnct::kaas::api::{ClusterStatus, GetClusterListMsg, cluster_client::ClusterClient},
    selvage::{
        clusters::{GetClusterRequest, cluster_service_client::ClusterServiceClient},
        dashboard::Object,
    },
};
use tonic::{Code, transport::Channel};

use super::{Failure, Probe, failure};
use crate::facts::{Data, KaasCluster, Section};

/// Clusters that are asked for one by one in one turn.
const MOST_ASKED: usize = 200;

pub(super) struct Kaas {
    list: ClusterClient<Channel>,
    details: ClusterServiceClient<Channel>,
    /// Owners of the clusters that run.
    owners: BTreeMap<String, String>,
    every: Duration,
}

impl Kaas {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let list = ClusterClient::new(channel.clone());
        let details = ClusterServiceClient::new(channel);
        Self { list, details, owners: BTreeMap::new(), every }
    }

    /// The organisation of a cluster; `None` once it is gone.
    async fn owner(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let request = GetClusterRequest { name: name.to_owned() };
        match self.details.get_cluster(request).await {
            Ok(found) => {
                let cluster = found.into_inner().cluster.unwrap_or_default();
                Ok(Some(cluster.organisation))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failure(&status)),
        }
    }
}

#[async_trait]
impl Probe for Kaas {
    fn section(&self) -> Section {
        Section::Kaas
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let listed = self.list.get_cluster_list(GetClusterListMsg {}).await;
        let listed = listed.map_err(|status| failure(&status))?.into_inner().clusters;
        let mut before = std::mem::take(&mut self.owners);
        let (mut found, mut asked) = (Vec::new(), 0);
        for item in listed {
            let status = item.status();
            // One that has trouble is told to its owner of now, not to that of
            // an earlier cluster of the same name.
            let known = before.remove(&item.name).filter(|_| status == ClusterStatus::Running);
            let owner = match known {
                Some(owner) => Some(owner),
                None if asked < MOST_ASKED => {
                    asked += 1;
                    self.owner(&item.name).await?
                }
                None => None,
            };
            let Some(organisation) = owner else { continue };
            self.owners.insert(item.name.clone(), organisation.clone());
            let kind = "kaas".into();
            let object = Object { kind, name: item.name, organisation, ..Object::default() };
            found.push(KaasCluster { object, status, message: item.status_message });
        }
        Ok(Data::Kaas(found.into()))
    }
}
