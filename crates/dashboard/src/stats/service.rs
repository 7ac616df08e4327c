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
use crate::{board::Board, facts::Section, radar, service::aged};

pub(crate) struct Stats {
    board: Arc<Board>,
}

const STATS: &[Section] = &[Section::Storage, Section::Volumes, Section::Hosts, Section::Process];
const RESOURCES: &[Section] =
    &[Section::Objects, Section::Cloudlets, Section::Clusters, Section::Instances];
const NODES: &[Section] = &[Section::Nodes, Section::Machines, Section::Hosts];
const RADAR: &[Section] = &[
    Section::Storage,
    Section::Nodes,
    Section::Machines,
    Section::Volumes,
    Section::Cloudlets,
    Section::Instances,
];

impl Stats {
    pub(crate) fn service(board: Arc<Board>) -> StatsServiceServer<Self> {
        StatsServiceServer::new(Self { board })
    }
}

#[tonic::async_trait]
impl StatsService for Stats {
    async fn get_cluster_stats(
        &self,
        _: Request<GetClusterStatsRequest>,
    ) -> Result<Response<GetClusterStatsResponse>, Status> {
        let stats = Some(cluster_stats(&self.board.snapshot()));
        aged(&self.board, STATS, GetClusterStatsResponse { stats })
    }

    async fn get_cluster_resources(
        &self,
        _: Request<GetClusterResourcesRequest>,
    ) -> Result<Response<GetClusterResourcesResponse>, Status> {
        let (resources, deployments) = resources(&self.board.snapshot().facts);
        aged(&self.board, RESOURCES, GetClusterResourcesResponse { resources, deployments })
    }

    async fn get_cluster_nodes(
        &self,
        _: Request<GetClusterNodesRequest>,
    ) -> Result<Response<GetClusterNodesResponse>, Status> {
        let now = self.board.clock().now();
        let nodes = nodes(&self.board.snapshot().facts, now, self.board.thresholds());
        aged(&self.board, NODES, GetClusterNodesResponse { nodes })
    }

    async fn get_cluster_radar(
        &self,
        _: Request<GetClusterRadarRequest>,
    ) -> Result<Response<GetClusterRadarResponse>, Status> {
        let radar = Some(radar::radar(&self.board.snapshot().overview.radar));
        aged(&self.board, RADAR, GetClusterRadarResponse { radar })
    }
}
