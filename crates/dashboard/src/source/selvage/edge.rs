//! The controller: cloudlets, instances, clusters, operations.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use selvage_api::{
    edgeproto::{self as wire},
    edgeproto::{
        AppInst, AppInstKey, CloudletInfo, CloudletKey, CloudletState, ClusterInst, ClusterInstKey,
        app_inst_api_client::AppInstApiClient, cloudlet_api_client::CloudletApiClient,
        cloudlet_info_api_client::CloudletInfoApiClient,
        cluster_inst_api_client::ClusterInstApiClient,
    },
    selvage::{
        dashboard::Object,
        operations::{ListOperationsRequest, operation_service_client::OperationServiceClient},
    },
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::{Streaming, transport::Channel};

use super::{Failure, Probe, failure, time};
use crate::facts::{Cloudlet, Cluster, Data, Instance, Operation, Section};

/// Replies of a large installation.
const LARGEST: usize = 256 << 20;
/// Over so long a replaced container counts as a restart.
const RESTARTS_OVER: Duration = Duration::from_secs(600);

async fn all<T>(
    stream: Result<tonic::Response<Streaming<T>>, tonic::Status>,
) -> Result<Vec<T>, Failure> {
    let mut stream = stream.map_err(|status| failure(&status))?.into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| failure(&status))? {
        found.push(message);
    }
    Ok(found)
}

fn cloudlet_name(key: Option<&CloudletKey>) -> (String, String) {
    let operator = key.and_then(|key| key.operator_key.as_ref()).map_or("", |key| &key.name);
    let name = key.map_or("", |key| &key.name);
    (operator.to_owned(), format!("{operator}/{name}"))
}

fn cloudlet_key(key: Option<&CloudletKey>) -> Value {
    let operator = key.and_then(|key| key.operator_key.as_ref()).map_or("", |key| &key.name);
    json!({"operator_key": {"name": operator}, "name": key.map_or("", |key| &key.name)})
}

fn cluster_key(key: &ClusterInstKey) -> Value {
    let cluster = key.cluster_key.as_ref().map_or("", |key| &key.name);
    json!({
        "cluster_key": {"name": cluster},
        "cloudlet_key": cloudlet_key(key.cloudlet_key.as_ref()),
        "developer": key.developer,
    })
}

fn cluster_name(key: &ClusterInstKey) -> String {
    let cluster = key.cluster_key.as_ref().map_or("", |key| &key.name);
    format!("{}/{cluster}", cloudlet_name(key.cloudlet_key.as_ref()).1)
}

fn instance_object(key: &AppInstKey) -> Object {
    let app = key.app_key.clone().unwrap_or_default();
    let developer = app.developer_key.map(|key| key.name).unwrap_or_default();
    let place = key.cluster_inst_key.clone().unwrap_or_default();
    let json = json!({
        "app_key": {"developer_key": {"name": developer}, "name": app.name, "version": app.version},
        "cluster_inst_key": cluster_key(&place),
    });
    Object {
        kind: "appinst".into(),
        name: format!("{developer}/{}:{}@{}", app.name, app.version, cluster_name(&place)),
        key: json.to_string(),
        organisation: developer,
    }
}

pub(super) struct Cloudlets {
    cloudlets: CloudletApiClient<Channel>,
    infos: CloudletInfoApiClient<Channel>,
    every: Duration,
}

impl Cloudlets {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        Self {
            cloudlets: CloudletApiClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            infos: CloudletInfoApiClient::new(channel).max_decoding_message_size(LARGEST),
            every,
        }
    }
}

#[async_trait]
impl Probe for Cloudlets {
    fn section(&self) -> Section {
        Section::Cloudlets
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let cloudlets = all(self.cloudlets.show_cloudlet(wire::Cloudlet::default()).await).await?;
        let infos = all(self.infos.show_cloudlet_info(CloudletInfo::default()).await).await?;
        let mut infos: HashMap<String, CloudletInfo> =
            infos.into_iter().map(|info| (cloudlet_name(info.key.as_ref()).1, info)).collect();
        let mut found: Vec<Cloudlet> = cloudlets
            .into_iter()
            .map(|cloudlet| {
                let info = infos.remove(&cloudlet_name(cloudlet.key.as_ref()).1);
                joined(cloudlet, info)
            })
            .collect();
        found.sort_by(|a, b| a.object.name.cmp(&b.object.name));
        Ok(Data::Cloudlets(found.into()))
    }
}

fn joined(cloudlet: wire::Cloudlet, info: Option<CloudletInfo>) -> Cloudlet {
    let (operator, name) = cloudlet_name(cloudlet.key.as_ref());
    let object = Object {
        kind: "cloudlet".into(),
        name,
        key: cloudlet_key(cloudlet.key.as_ref()).to_string(),
        organisation: operator,
    };
    // No word of its agent yet: it is not there.
    let state = info.as_ref().map_or(CloudletState::NotPresent, CloudletInfo::state);
    Cloudlet {
        object,
        location: cloudlet.location.map(|place| (place.latitude, place.longitude)),
        state,
        errors: info.map(|info| info.errors).unwrap_or_default(),
    }
}

pub(super) struct Instances {
    client: AppInstApiClient<Channel>,
    every: Duration,
    /// The containers that each instance had, and when it got others.
    containers: BTreeMap<String, Replaced>,
}

#[derive(Default)]
struct Replaced {
    now: Vec<String>,
    at: VecDeque<Instant>,
}

impl Replaced {
    /// Notes the containers of now; how often they were replaced of late.
    fn note(&mut self, containers: Vec<String>, at: Instant) -> u32 {
        if !self.now.is_empty() && !containers.is_empty() && self.now != containers {
            self.at.push_back(at);
        }
        if !containers.is_empty() {
            self.now = containers;
        }
        while self.at.front().is_some_and(|first| at.duration_since(*first) > RESTARTS_OVER) {
            self.at.pop_front();
        }
        u32::try_from(self.at.len()).unwrap_or(u32::MAX)
    }
}

impl Instances {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = AppInstApiClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every, containers: BTreeMap::new() }
    }
}

#[async_trait]
impl Probe for Instances {
    fn section(&self) -> Section {
        Section::Instances
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let shown = all(self.client.show_app_inst(AppInst::default()).await).await?;
        let now = Instant::now();
        let mut containers = std::mem::take(&mut self.containers);
        let mut found = Vec::with_capacity(shown.len());
        for instance in shown {
            let state = instance.state();
            let AppInst { key, errors, runtime_info, revision, .. } = instance;
            let key = key.unwrap_or_default();
            let object = instance_object(&key);
            let place = key.cluster_inst_key.and_then(|key| key.cloudlet_key);
            let runtime = runtime_info.unwrap_or_default();
            let mut replaced = containers.remove(&object.name).unwrap_or_default();
            let restarts = replaced.note(runtime.container_ids, now);
            self.containers.insert(object.name.clone(), replaced);
            let cloudlet = cloudlet_name(place.as_ref()).1;
            let unhealthy = runtime.unhealthy;
            found.push(Instance {
                object,
                cloudlet,
                state,
                errors,
                unhealthy,
                restarts,
                started_again: runtime.restarts,
                last_reason: runtime.last_reason,
                revision,
            });
        }
        found.sort_by(|a, b| a.object.name.cmp(&b.object.name));
        Ok(Data::Instances(found.into()))
    }
}

pub(super) struct Clusters {
    client: ClusterInstApiClient<Channel>,
    every: Duration,
}

impl Clusters {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = ClusterInstApiClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every }
    }
}

#[async_trait]
impl Probe for Clusters {
    fn section(&self) -> Section {
        Section::Clusters
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let shown = all(self.client.show_cluster_inst(ClusterInst::default()).await).await?;
        let describe = |cluster: ClusterInst| {
            let key = cluster.key.clone().unwrap_or_default();
            let object = Object {
                kind: "clusterinst".into(),
                name: cluster_name(&key),
                key: cluster_key(&key).to_string(),
                organisation: key.developer,
            };
            Cluster { object, state: cluster.state(), errors: cluster.errors }
        };
        let mut found: Vec<Cluster> = shown.into_iter().map(describe).collect();
        found.sort_by(|a, b| a.object.name.cmp(&b.object.name));
        Ok(Data::Clusters(found.into()))
    }
}

/// Operations of lvmd. Their progress is in their jobs, so that a long step is
/// no sign that one is stuck.
const BACKUP_JOBS: [&str; 4] =
    ["BackUpVolume", "RestoreVolume", "VerifyRepository", "PruneRepository"];

pub(super) struct Operations {
    client: OperationServiceClient<Channel>,
    every: Duration,
}

impl Operations {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = OperationServiceClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every }
    }
}

#[async_trait]
impl Probe for Operations {
    fn section(&self) -> Section {
        Section::Operations
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let request = ListOperationsRequest { active: true, ..ListOperationsRequest::default() };
        let listed = self.client.list_operations(request).await;
        let listed = listed.map_err(|status| failure(&status))?.into_inner().operations;
        let describe = |operation: selvage_api::selvage::operations::Operation| Operation {
            object: Object {
                kind: "operation".into(),
                name: operation.id,
                key: operation.key,
                organisation: operation.organisation,
            },
            kind: operation.kind,
            step: operation.step,
            updated: time(operation.updated_at),
        };
        let own = listed.into_iter().filter(|one| !BACKUP_JOBS.contains(&one.kind.as_str()));
        let found: Vec<Operation> = own.map(describe).collect();
        Ok(Data::Operations(found.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn replaced_containers_are_counted_for_ten_minutes() {
        let mut replaced = Replaced::default();
        let names = |name: &str| vec![name.to_owned()];
        assert_eq!(replaced.note(names("a"), Instant::now()), 0);
        assert_eq!(replaced.note(names("a"), Instant::now()), 0);
        // While it is away nothing was replaced.
        assert_eq!(replaced.note(Vec::new(), Instant::now()), 0);
        assert_eq!(replaced.note(names("b"), Instant::now()), 1);
        tokio::time::advance(RESTARTS_OVER / 2).await;
        assert_eq!(replaced.note(names("c"), Instant::now()), 2);
        tokio::time::advance(RESTARTS_OVER / 2 + Duration::from_secs(1)).await;
        assert_eq!(replaced.note(names("c"), Instant::now()), 1);
    }
}
