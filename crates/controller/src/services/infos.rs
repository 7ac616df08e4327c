//! Objects that are only shown, and reports of agents.

use std::sync::Arc;

use futures::TryStreamExt;
use prost::{Message, Name};
use selvage_api::edgeproto as wire;
use selvage_api::object::Filter;
use selvage_api::selvage::metrics::{ListSamplesRequest, metrics_service_server::MetricsService};
use selvage_kit::identity::{Identity, Role};
use selvage_samples::{Counts, Samples, Scope, merged};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use super::streams::streamed;
use super::{Api, Reply, Streamed, caller, done, flag, unpack_request};
use crate::error::Error;
use crate::registry::{AgentReport, Gathered, LOCAL, UNREACHABLE};

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
        let caller = caller(&request);
        let filter = request.into_inner();
        // Nor can anybody find out by asking for it.
        let asked = wire::CloudletInfo { fields: filter.fields.clone(), ..in_brief(&filter) };
        let filter = if sees_all(&caller, &filter) { filter } else { asked };
        let shown = self.controller.show(&filter)?;
        Ok(streamed(shown.map_ok(move |info| match sees_all(&caller, &info) {
            true => info,
            false => in_brief(&info),
        })))
    }

    async fn inject_cloudlet_info(
        &self,
        request: Request<wire::CloudletInfo>,
    ) -> Reply<wire::Result> {
        let (info, mode) = unpack_request(request)?;
        Ok(done(self.controller.inject_cloudlet_info(info, mode).await?, mode))
    }

    async fn evict_cloudlet_info(
        &self,
        request: Request<wire::CloudletInfo>,
    ) -> Reply<wire::Result> {
        let (info, mode) = unpack_request(request)?;
        Ok(done(self.controller.evict_cloudlet_info(&info, mode).await?, mode))
    }
}

/// Returns true if a caller sees all that a crm reports: operators of the
/// cloudlet, and those who see everything.
fn sees_all(caller: &Identity, info: &wire::CloudletInfo) -> bool {
    let operator = info.key.as_ref().and_then(|key| key.operator_key.as_ref());
    let operator = operator.map_or("", |key| key.name.as_str());
    caller.has_role(Role::Admin)
        || caller.has_role(Role::Viewer)
        || caller.organisations(Role::Operator).any(|name| name == operator)
}

/// Parts of a report for those who want to run something on the cloudlet:
/// whether it is up, and the sizes that it offers.
fn in_brief(info: &wire::CloudletInfo) -> wire::CloudletInfo {
    wire::CloudletInfo {
        key: info.key.clone(),
        state: info.state,
        flavors: info.flavors.clone(),
        dns_zone: info.dns_zone.clone(),
        kind: info.kind.clone(),
        ..Default::default()
    }
}

/// Those of a snapshot, copied one by one as the caller reads. The end names
/// the controllers that are missing in it.
fn gathered<M: Message + Clone + 'static>(all: Gathered<Vec<Arc<M>>>) -> Response<Streamed<M>> {
    let end = missing(&all.unreachable).map(Err);
    let found = all.found.into_iter().map(|object| Ok((*object).clone()));
    streamed(tokio_stream::iter(found.chain(end)))
}

/// Wraps the knowledge of this controller alone.
fn only_here<T>(found: T) -> Gathered<T> {
    Gathered { found, unreachable: Vec::new() }
}

impl Api {
    /// Reports of agents, to this controller if only that is asked for, to any
    /// otherwise.
    async fn reports<M: AgentReport>(&self, request: Request<M>) -> Reply<Streamed<M>> {
        let (controller, filter) = (&self.controller, request.get_ref());
        Ok(gathered(if flag(request.metadata(), LOCAL)? {
            only_here(controller.reports_here(filter)?)
        } else {
            controller.reports_anywhere(filter).await?
        }))
    }

    /// Number of samples the caller may see, of those of all controllers.
    async fn counted<M>(
        &self,
        request: Request<M>,
        method: &'static str,
        here: fn(Counts) -> u64,
        number: fn(&mut M) -> &mut u64,
    ) -> Reply<Streamed<M>>
    where
        M: Message + Name + Default + Clone + Send + Sync + 'static,
    {
        let scope = Scope::of_call(&caller(&request), request.metadata()).map_err(Error::from)?;
        let others = if flag(request.metadata(), LOCAL)? {
            only_here(Vec::new())
        } else {
            self.controller.gather::<M, M>(method, &M::default(), &scope).await
        };
        let here = here(self.of_samples(move |samples| samples.counts(&scope)).await?);
        let filter = Filter::of(request.get_ref()).map_err(Error::from)?;
        Ok(gathered(others.map(|parts| {
            let mut sum = M::default();
            *number(&mut sum) = here;
            for part in parts.into_iter().flat_map(|(_, part)| part) {
                let there = *number(&mut (*part).clone());
                let so_far = number(&mut sum);
                *so_far = so_far.saturating_add(there);
            }
            Vec::from_iter(filter.matches(&sum).then(|| Arc::new(sum)))
        })))
    }
}

impl Api {
    /// Looks through the samples, which may be many.
    async fn of_samples<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Samples) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let controller = Arc::clone(&self.controller);
        let looking = tokio::task::spawn_blocking(move || look(&controller.memory.samples));
        looking.await.map_err(|_| Status::internal("the samples could not be looked through"))
    }
}

/// A service that shows what agents said.
macro_rules! show_reports {
    ($($module:ident::$service:ident, $message:ident, $stream:ident, $show:ident;)+) => {$(
        #[tonic::async_trait]
        impl wire::$module::$service for Api {
            type $stream = Streamed<wire::$message>;

            async fn $show(&self, request: Request<wire::$message>) -> Reply<Self::$stream> {
                self.reports(request).await
            }
        }
    )+};
}

show_reports! {
    app_inst_info_api_server::AppInstInfoApi, AppInstInfo, ShowAppInstInfoStream,
        show_app_inst_info;
    cluster_inst_info_api_server::ClusterInstInfoApi, ClusterInstInfo, ShowClusterInstInfoStream,
        show_cluster_inst_info;
}

#[tonic::async_trait]
impl wire::app_inst_metrics_api_server::AppInstMetricsApi for Api {
    type ShowAppInstMetricsStream = Streamed<wire::AppInstMetrics>;

    /// The number is how many samples of instances are kept.
    async fn show_app_inst_metrics(
        &self,
        request: Request<wire::AppInstMetrics>,
    ) -> Reply<Self::ShowAppInstMetricsStream> {
        let method = "/edgeproto.AppInstMetricsApi/ShowAppInstMetrics";
        let kept = |counts: Counts| counts.app_insts;
        self.counted(request, method, kept, |metrics| &mut metrics.something).await
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
        let method = "/edgeproto.CloudletMetricsApi/ShowCloudletMetrics";
        let kept = |counts: Counts| counts.cloudlets;
        self.counted(request, method, kept, |metrics| &mut metrics.foo).await
    }
}

#[tonic::async_trait]
impl MetricsService for Api {
    type ListSamplesStream = Streamed<wire::Metric>;

    async fn list_samples(
        &self,
        request: Request<ListSamplesRequest>,
    ) -> Reply<Self::ListSamplesStream> {
        let scope = Scope::of_call(&caller(&request), request.metadata()).map_err(Error::from)?;
        let local = flag(request.metadata(), LOCAL)?;
        let wanted = request.into_inner();
        let (of, question) = (scope.clone(), wanted.clone());
        let here = self.of_samples(move |samples| samples.list(&question, &of)).await?;
        if local {
            return Ok(gathered(only_here(here)));
        }
        let method = "/selvage.metrics.MetricsService/ListSamples";
        let there = self.controller.gather(method, &wanted, &scope).await;
        Ok(gathered(there.map(|parts| {
            let parts = parts.into_iter().map(|(_, part)| part);
            merged(std::iter::once(here).chain(parts), &wanted)
        })))
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
        Ok(gathered(only_here(self.controller.reports_here(request.get_ref())?)))
    }

    async fn show_node(&self, request: Request<wire::Node>) -> Reply<Self::ShowNodeStream> {
        self.reports(request).await
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
