//! Kubernetes around a Rook cluster: nodes that carry its pods, its
//! deployments, and the kinds of `ceph.rook.io`. Everything is watched: one
//! list and one stream for each kind, however many objects there are.

mod judge;
mod watch;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kube::Connection;

pub use self::judge::{node, resource};
use self::watch::Watched;
use super::{Failure, Probe, Source};
use crate::facts::{Data, Objects, Section};

/// Label of the pods that make a node one that carries storage.
const STORAGE_PODS: &str = "app.kubernetes.io/component=cephclusters.ceph.rook.io";
/// Kinds of Rook that are shown.
const KINDS: [&str; 4] = ["CephCluster", "CephBlockPool", "CephFilesystem", "CephObjectStore"];
const GROUP: &str = "ceph.rook.io";

/// A Rook cluster as a source.
pub struct Rook {
    watched: Arc<Watched>,
    every: Duration,
}

impl Rook {
    /// A source that watches a namespace of the cluster that a kubeconfig
    /// leads to; found as `kubectl` finds it where not given.
    pub fn new(kubeconfig: Option<PathBuf>, namespace: &str, every: Duration) -> Self {
        let connection = Connection::from_file("dashboard.kubeconfig", kubeconfig);
        Self { watched: Arc::new(Watched::new(connection, namespace)), every }
    }
}

impl Source for Rook {
    fn name(&self) -> &'static str {
        "rook"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let every = self.every;
        let nodes = Nodes(Watch { watched: Arc::clone(&self.watched), every, streams: None });
        let objects = Rooks(Watch { watched: self.watched, every, streams: None });
        vec![Box::new(nodes), Box::new(objects)]
    }
}

/// Watched objects, and the streams that watch them for as long as the probe lives.
struct Watch {
    watched: Arc<Watched>,
    every: Duration,
    streams: Option<tokio::task::JoinSet<()>>,
}

impl Watch {
    fn begin(&mut self, kinds: &[watch::Kind]) {
        let watched = &self.watched;
        self.streams.get_or_insert_with(|| {
            let mut streams = tokio::task::JoinSet::new();
            for kind in kinds {
                streams.spawn(Arc::clone(watched).follow(kind.clone()));
            }
            streams
        });
    }

    /// Waits for a change, or for the time at which ages are told anew.
    async fn changed(&self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.watched.changed()).await;
        // Changes that come together are told together.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

struct Nodes(Watch);

#[async_trait]
impl Probe for Nodes {
    fn section(&self) -> Section {
        Section::Nodes
    }

    fn every(&self) -> Duration {
        self.0.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let (nodes, pods) = (watch::core("Node"), watch::pods(STORAGE_PODS));
        self.0.begin(&[nodes.clone(), pods.clone()]);
        let pods = self.0.watched.objects(&pods).await?;
        let carrying: std::collections::BTreeSet<String> = pods
            .iter()
            .filter_map(|pod| pod.pointer("/spec/nodeName")?.as_str().map(str::to_owned))
            .collect();
        if carrying.is_empty() {
            // A cluster without Rook's pods has no nodes that carry storage.
            return Err(Failure::Absent);
        }
        let nodes = self.0.watched.objects(&nodes).await?;
        let found: Vec<_> =
            nodes.iter().map(node).filter(|node| carrying.contains(&node.name)).collect();
        Ok(Data::Nodes(found.into()))
    }

    async fn changed(&mut self, pause: Duration) {
        self.0.changed(pause.min(self.0.every)).await;
    }
}

struct Rooks(Watch);

#[async_trait]
impl Probe for Rooks {
    fn section(&self) -> Section {
        Section::Objects
    }

    fn every(&self) -> Duration {
        self.0.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let deployments = watch::deployments();
        let kinds: Vec<watch::Kind> = KINDS.iter().map(|kind| watch::rook(GROUP, kind)).collect();
        let all: Vec<watch::Kind> = kinds.iter().cloned().chain([deployments.clone()]).collect();
        self.0.begin(&all);
        let mut objects = Objects::default();
        let mut there = false;
        for kind in &kinds {
            match self.0.watched.objects(kind).await {
                Ok(found) => {
                    there = true;
                    objects.resources.extend(found.iter().map(resource));
                }
                // A cluster without this kind.
                Err(Failure::Absent) => {}
                Err(failure) => return Err(failure),
            }
        }
        if !there {
            return Err(Failure::Absent);
        }
        let found = self.0.watched.objects(&deployments).await?;
        objects.deployments.extend(found.iter().map(resource));
        Ok(Data::Objects(objects.into()))
    }

    async fn changed(&mut self, pause: Duration) {
        self.0.changed(pause.min(self.0.every)).await;
    }
}
