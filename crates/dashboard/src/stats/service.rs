//! The four methods.

use std::sync::Arc;

use selvage_api::stats::{
    GetClusterNodesRequest, GetClusterNodesResponse, GetClusterRadarRequest,
    GetClusterRadarResponse, GetClusterResourcesRequest, GetClusterResourcesResponse,
    GetClusterStatsRequest, GetClusterStatsResponse,
    stats_service_server::{StatsService, StatsServiceServer},
};
use tonic::{Request, Response, Status};

use super::{cluster_stats, nodes, resources};
use crate::{
    board::Board,
    facts::Section,
    radar,
    service::{ALL, aged, arrived},
};

pub(crate) struct Stats {
    board: Arc<Board>,
}

const RESOURCES: &[Section] =
    &[Section::Objects, Section::Cloudlets, Section::Clusters, Section::Kaas, Section::Instances];
const NODES: &[Section] = &[Section::Nodes, Section::Machines, Section::Hosts];
/// Sections without which an answer would be about our own parts, where clients have
/// asked about Ceph and Kubernetes before.
const STORAGE: &[Section] = &[Section::Storage];
const KUBERNETES: &[Section] = &[Section::Nodes];
const BOTH: &[Section] = &[Section::Storage, Section::Nodes];

impl Stats {
    pub(crate) fn service(board: Arc<Board>) -> StatsServiceServer<Self> {
        StatsServiceServer::new(Self { board })
    }

    fn answer<T>(
        &self,
        sections: &[Section],
        decisive: &[Section],
        message: T,
    ) -> Result<Response<T>, Status> {
        arrived(&self.board, sections, decisive)?;
        aged(&self.board, sections, message)
    }
}

#[tonic::async_trait]
impl StatsService for Stats {
    async fn get_cluster_stats(
        &self,
        _: Request<GetClusterStatsRequest>,
    ) -> Result<Response<GetClusterStatsResponse>, Status> {
        let snapshot = self.board.snapshot();
        // Without Ceph the status goes by all problems, wherever they are found.
        let sections = if snapshot.facts.storage.is_some() { STORAGE } else { ALL };
        let stats = Some(cluster_stats(&snapshot));
        self.answer(sections, STORAGE, GetClusterStatsResponse { stats })
    }

    async fn get_cluster_resources(
        &self,
        _: Request<GetClusterResourcesRequest>,
    ) -> Result<Response<GetClusterResourcesResponse>, Status> {
        let (resources, deployments) = resources(&self.board.snapshot().facts);
        self.answer(RESOURCES, &[], GetClusterResourcesResponse { resources, deployments })
    }

    async fn get_cluster_nodes(
        &self,
        _: Request<GetClusterNodesRequest>,
    ) -> Result<Response<GetClusterNodesResponse>, Status> {
        let now = self.board.clock().now();
        let nodes = nodes(&self.board.snapshot().facts, now, self.board.thresholds());
        self.answer(NODES, KUBERNETES, GetClusterNodesResponse { nodes })
    }

    async fn get_cluster_radar(
        &self,
        _: Request<GetClusterRadarRequest>,
    ) -> Result<Response<GetClusterRadarResponse>, Status> {
        let radar = Some(radar::radar(&self.board.snapshot().overview.radar));
        // Health and stability go by all problems.
        self.answer(ALL, BOTH, GetClusterRadarResponse { radar })
    }
}
