//! What is only looked at, and what agents report.

use std::sync::Arc;

use prost::{Message, Name};
use selvage_api::edgeproto as wire;
use selvage_api::object::Filter;
use selvage_api::selvage::metrics::{ListSamplesRequest, metrics_service_server::MetricsService};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Status};

use super::streams::streamed;
use super::{Api, Reply, Streamed, done, taken};
use crate::error::Result;
use crate::registry::UNREACHABLE;

/// A service that shows a table.
macro_rules! shown {
    ($($module:ident::$service:ident, $message:ident, $stream:ident, $show:ident;)+) => {$(
        #[tonic::async_trait]
        impl wire::$module::$service for Api {
            type $stream = Streamed<wire::$message>;

            async fn $show(&self, request: Request<wire::$message>) -> Reply<Self::$stream> {
                Ok(streamed(self.controller.show(request.get_ref())?))
            }
        }
    )+};
}

shown! {
    cloudlet_refs_api_server::CloudletRefsApi, CloudletRefs, ShowCloudletRefsStream,
        show_cloudlet_refs;
    cluster_refs_api_server::ClusterRefsApi, ClusterRefs, ShowClusterRefsStream, show_cluster_refs;
    controller_api_server::ControllerApi, Controller, ShowControllerStream, show_controller;
}

#[tonic::async_trait]
impl wire::cloudlet_info_api_server::CloudletInfoApi for Api {
    type ShowCloudletInfoStream = Streamed<wire::CloudletInfo>;

    async fn show_cloudlet_info(
        &self,
        request: Request<wire::CloudletInfo>,
    ) -> Reply<Self::ShowCloudletInfoStream> {
        Ok(streamed(self.controller.show(request.get_ref())?))
    }

    async fn inject_cloudlet_info(
        &self,
        request: Request<wire::CloudletInfo>,
    ) -> Reply<wire::Result> {
        let (info, mode) = taken(request)?;
        Ok(done(self.controller.inject_cloudlet_info(info, mode).await?, mode))
    }

    async fn evict_cloudlet_info(
        &self,
        request: Request<wire::CloudletInfo>,
    ) -> Reply<wire::Result> {
        let (info, mode) = taken(request)?;
        Ok(done(self.controller.evict_cloudlet_info(&info, mode).await?, mode))
    }
}

/// Those of a snapshot that match, copied one by one as the caller reads.
fn matching<M>(all: Vec<Arc<M>>, filter: &M) -> Result<tonic::Response<Streamed<M>>>
where
    M: Message + Name + Clone + 'static,
{
    let filter = Filter::of(filter)?;
    let found = all.into_iter().filter(move |object| filter.matches(&**object));
    Ok(streamed(tokio_stream::iter(found.map(|object| Ok((*object).clone())))))
}

#[tonic::async_trait]
impl wire::app_inst_info_api_server::AppInstInfoApi for Api {
    type ShowAppInstInfoStream = Streamed<wire::AppInstInfo>;

    async fn show_app_inst_info(
        &self,
        request: Request<wire::AppInstInfo>,
    ) -> Reply<Self::ShowAppInstInfoStream> {
        Ok(matching(self.controller.memory.app_inst_infos.list(), request.get_ref())?)
    }
}

#[tonic::async_trait]
impl wire::cluster_inst_info_api_server::ClusterInstInfoApi for Api {
    type ShowClusterInstInfoStream = Streamed<wire::ClusterInstInfo>;

    async fn show_cluster_inst_info(
        &self,
        request: Request<wire::ClusterInstInfo>,
    ) -> Reply<Self::ShowClusterInstInfoStream> {
        Ok(matching(self.controller.memory.cluster_inst_infos.list(), request.get_ref())?)
    }
}

#[tonic::async_trait]
impl wire::app_inst_metrics_api_server::AppInstMetricsApi for Api {
    type ShowAppInstMetricsStream = Streamed<wire::AppInstMetrics>;

    /// The number is how many samples of instances are kept.
    async fn show_app_inst_metrics(
        &self,
        request: Request<wire::AppInstMetrics>,
    ) -> Reply<Self::ShowAppInstMetricsStream> {
        let kept = self.controller.memory.samples.counts().app_insts;
        Ok(matching(vec![Arc::new(wire::AppInstMetrics { something: kept })], request.get_ref())?)
    }
}

#[tonic::async_trait]
impl wire::cloudlet_metrics_api_server::CloudletMetricsApi for Api {
    type ShowCloudletMetricsStream = Streamed<wire::CloudletMetrics>;

    /// The number is how many samples of cloudlets are kept.
    async fn show_cloudlet_metrics(
        &self,
        request: Request<wire::CloudletMetrics>,
    ) -> Reply<Self::ShowCloudletMetricsStream> {
        let kept = self.controller.memory.samples.counts().cloudlets;
        Ok(matching(vec![Arc::new(wire::CloudletMetrics { foo: kept })], request.get_ref())?)
    }
}

#[tonic::async_trait]
impl MetricsService for Api {
    type ListSamplesStream = Streamed<wire::Metric>;

    async fn list_samples(
        &self,
        request: Request<ListSamplesRequest>,
    ) -> Reply<Self::ListSamplesStream> {
        let found = self.controller.memory.samples.list(request.get_ref()).into_iter();
        Ok(streamed(tokio_stream::iter(found.map(|sample| Ok((*sample).clone())))))
    }
}

#[tonic::async_trait]
impl wire::node_api_server::NodeApi for Api {
    type ShowNodeLocalStream = Streamed<wire::Node>;
    type ShowNodeStream = Streamed<wire::Node>;

    async fn show_node_local(
        &self,
        request: Request<wire::Node>,
    ) -> Reply<Self::ShowNodeLocalStream> {
        let found = self.controller.local_nodes(request.get_ref())?;
        Ok(streamed(tokio_stream::iter(found.into_iter().map(Ok))))
    }

    async fn show_node(&self, request: Request<wire::Node>) -> Reply<Self::ShowNodeStream> {
        let nodes = self.controller.all_nodes(request.get_ref()).await?;
        let end = missing(&nodes.unreachable).map(Err);
        Ok(streamed(tokio_stream::iter(nodes.found.into_iter().map(Ok).chain(end))))
    }
}

/// The end of a stream that names in its trailer those who did not answer.
fn missing(unreachable: &[String]) -> Option<Status> {
    if unreachable.is_empty() {
        return None;
    }
    let mut metadata = MetadataMap::new();
    match MetadataValue::try_from(unreachable.join(",")) {
        Ok(names) => metadata.insert(UNREACHABLE, names),
        Err(error) => {
            tracing::warn!(%error, "an address that no trailer can hold");
            return None;
        }
    };
    Some(Status::with_metadata(Code::Ok, "", metadata))
}
