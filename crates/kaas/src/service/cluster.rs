//! `cnct.kaas.api`.

use selvage_api::cnct::kaas::api::{
    AddNodePoolMsg, AddNodePoolReply, ClusterDetailItem, ClusterItem, ClusterStatus,
    CreateClusterMsg, CreateClusterReply, DeleteClusterMsg, DeleteClusterReply, DeleteNodePoolMsg,
    DeleteNodePoolReply, GetClusterListMsg, GetClusterListReply, GetClusterMsg,
    GetClusterNodesStatusMsg, GetClusterNodesStatusReply, GetClusterReply,
    GetUpgradeClusterInformationMsg, GetUpgradeClusterInformationReply, GetVersionMsg,
    GetVersionReply, ScaleNodePoolMsg, ScaleNodePoolReply, UpgradeClusterMsg, UpgradeClusterReply,
    cluster_server::{Cluster, ClusterServer},
    get_version_reply::VersionInformation,
};
use tonic::{Request, Response, Status};

use super::{caller, describe, header, origin};
use crate::{Caller, Compat, Error, Manager, conditions, plan::Snapshot, validate};

/// Headers by which a long list is asked for in pages, and of the next page.
const PAGE_SIZE: &str = "x-page-size";
const PAGE_TOKEN: &str = "x-page-token";
const NEXT_PAGE: &str = "x-next-page-token";
/// Header of the reasons why newer versions are not reached.
const MISSING_VERSIONS: &str = "x-missing-versions";

/// The published contract.
#[derive(Debug)]
pub struct ClusterApi {
    manager: Manager,
    compat: Compat,
}

impl ClusterApi {
    pub fn new(manager: Manager, compat: Compat) -> Self {
        Self { manager, compat }
    }

    pub(crate) fn service(manager: Manager, compat: Compat) -> ClusterServer<Self> {
        ClusterServer::new(Self::new(manager, compat))
    }

    fn item(&self, snapshot: &Snapshot) -> ClusterItem {
        let cluster = &snapshot.cluster;
        ClusterItem {
            name: cluster.name.clone(),
            status_message: self.manager.message(snapshot),
            status: conditions::status(&self.manager.conditions(snapshot)).into(),
        }
    }

    /// The cluster, if the caller may look at it.
    fn seen(&self, caller: &Caller, name: &str) -> Result<Snapshot, Error> {
        let snapshot = self.manager.find(name)?;
        caller.check_sees(&snapshot.cluster)?;
        Ok(snapshot)
    }

    async fn get(&self, caller: &Caller, name: &str) -> Result<ClusterDetailItem, Error> {
        let snapshot = self.seen(caller, name)?;
        let ClusterItem { name, status_message, status } = self.item(&snapshot);
        // Those who may only look get no key.
        let config = match caller.owns(&snapshot.cluster) {
            true => self.manager.kubeconfig(&snapshot.cluster, &caller.name).await?,
            false => None,
        };
        let kubeconfig = config.map(|config| config.to_string()).unwrap_or_default();
        Ok(ClusterDetailItem { name, status_message, kubeconfig, status })
    }

    fn refuse(&self) -> impl Fn(Error) -> Status {
        let compat = self.compat;
        move |error| compat.status(error)
    }
}

#[tonic::async_trait]
impl Cluster for ClusterApi {
    async fn create_cluster(
        &self,
        request: Request<CreateClusterMsg>,
    ) -> Result<Response<CreateClusterReply>, Status> {
        let (caller, origin) = (caller(&request), origin(&request));
        let created = self.manager.create(&caller, &origin, request.get_ref()).await;
        let snapshot = created.map_err(self.refuse())?;
        // Whatever became of it since: this is the answer to who asks for it.
        let status = ClusterStatus::Provisioning.into();
        let mut item = ClusterItem { status, ..self.item(&snapshot) };
        if let Some(warning) = validate::warning(&snapshot.cluster.control_plane) {
            item.status_message.push_str(&format!(" Warning: {warning}."));
        }
        Ok(Response::new(CreateClusterReply { ok: true, cluster: Some(item) }))
    }

    async fn get_cluster(
        &self,
        request: Request<GetClusterMsg>,
    ) -> Result<Response<GetClusterReply>, Status> {
        let caller = caller(&request);
        let item = self.get(&caller, &request.get_ref().name).await.map_err(self.refuse())?;
        Ok(Response::new(GetClusterReply { ok: true, cluster: Some(item) }))
    }

    async fn delete_cluster(
        &self,
        request: Request<DeleteClusterMsg>,
    ) -> Result<Response<DeleteClusterReply>, Status> {
        let caller = caller(&request);
        let deleted = self.manager.delete(&caller, &request.get_ref().name).await;
        deleted.map_err(self.refuse())?;
        let status = self.compat.deleting().to_owned();
        Ok(Response::new(DeleteClusterReply { ok: true, status }))
    }

    async fn get_cluster_list(
        &self,
        request: Request<GetClusterListMsg>,
    ) -> Result<Response<GetClusterListReply>, Status> {
        let caller = caller(&request);
        let size = header(&request, PAGE_SIZE).parse::<usize>().ok().filter(|size| *size > 0);
        let after = header(&request, PAGE_TOKEN);
        let clusters = self.manager.list();
        let mut rest = clusters.iter().filter(|cluster| {
            caller.sees(cluster) && (after.is_empty() || cluster.name.as_str() > after)
        });
        let page = rest.by_ref().take(size.unwrap_or(usize::MAX));
        let snapshots = page.filter_map(|cluster| self.manager.snapshot(&cluster.name));
        let clusters: Vec<ClusterItem> = snapshots.map(|s| self.item(&s)).collect();
        let next = rest.next().and_then(|_| clusters.last()?.name.parse().ok());
        let mut response = Response::new(GetClusterListReply { ok: true, clusters });
        if let Some(next) = next {
            response.metadata_mut().insert(NEXT_PAGE, next);
        }
        Ok(response)
    }

    async fn get_cluster_nodes_status(
        &self,
        request: Request<GetClusterNodesStatusMsg>,
    ) -> Result<Response<GetClusterNodesStatusReply>, Status> {
        let caller = caller(&request);
        let name = &request.get_ref().cluster_name;
        let snapshot = self.seen(&caller, name).map_err(self.refuse())?;
        let machines = describe::in_order(&snapshot);
        let machines: Vec<_> =
            machines.into_iter().map(|m| describe::node_status(m, self.compat)).collect();
        Ok(Response::new(GetClusterNodesStatusReply {
            name: snapshot.cluster.name.clone(),
            count: i32::try_from(machines.len()).unwrap_or(i32::MAX),
            machines,
        }))
    }

    async fn get_version_information(
        &self,
        _: Request<GetVersionMsg>,
    ) -> Result<Response<GetVersionReply>, Status> {
        let build = selvage_kit::build::build();
        let version = VersionInformation {
            git_version: build.tag,
            git_commit: build.sha,
            git_tree_state: selvage_kit::build::tree_state().into(),
            build_date: build.built,
            go_version: build.go_version,
            compiler: "rustc".into(),
            platform: format!("{}/{}", build.os, build.arch),
        };
        Ok(Response::new(GetVersionReply { ok: true, version_information: Some(version) }))
    }

    async fn add_node_pool(
        &self,
        request: Request<AddNodePoolMsg>,
    ) -> Result<Response<AddNodePoolReply>, Status> {
        let caller = caller(&request);
        let added = self.manager.add_pools(&caller, request.get_ref()).await;
        added.map_err(self.refuse())?;
        Ok(Response::new(AddNodePoolReply { ok: true }))
    }

    async fn delete_node_pool(
        &self,
        request: Request<DeleteNodePoolMsg>,
    ) -> Result<Response<DeleteNodePoolReply>, Status> {
        let caller = caller(&request);
        let deleted = self.manager.delete_pools(&caller, request.get_ref()).await;
        deleted.map_err(self.refuse())?;
        Ok(Response::new(DeleteNodePoolReply { ok: true }))
    }

    async fn scale_node_pool(
        &self,
        request: Request<ScaleNodePoolMsg>,
    ) -> Result<Response<ScaleNodePoolReply>, Status> {
        let caller = caller(&request);
        let scaled = self.manager.scale(&caller, request.get_ref()).await;
        scaled.map_err(self.refuse())?;
        Ok(Response::new(ScaleNodePoolReply { ok: true }))
    }

    async fn get_upgrade_cluster_information(
        &self,
        request: Request<GetUpgradeClusterInformationMsg>,
    ) -> Result<Response<GetUpgradeClusterInformationReply>, Status> {
        let caller = caller(&request);
        let snapshot = self.seen(&caller, &request.get_ref().name).map_err(self.refuse())?;
        let versions: Vec<String> =
            self.manager.upgrades(&snapshot).iter().map(ToString::to_string).collect();
        let ok = !versions.is_empty() && self.compat == Compat::Precise;
        let missing = self.manager.obstacles_to_upgrades(&snapshot).join("; ");
        let mut response = Response::new(GetUpgradeClusterInformationReply { ok, versions });
        // A header has no place for other letters, such as those of a path.
        let missing: String = missing.chars().filter(|c| matches!(c, ' '..='~')).collect();
        if let Some(missing) = missing.parse().ok().filter(|_| !missing.is_empty()) {
            response.metadata_mut().insert(MISSING_VERSIONS, missing);
        }
        Ok(response)
    }

    async fn upgrade_cluster(
        &self,
        request: Request<UpgradeClusterMsg>,
    ) -> Result<Response<UpgradeClusterReply>, Status> {
        let (caller, origin) = (caller(&request), origin(&request));
        let UpgradeClusterMsg { name, version } = request.get_ref();
        let upgraded = self.manager.upgrade(&caller, &origin, name, version).await;
        upgraded.map_err(self.refuse())?;
        Ok(Response::new(UpgradeClusterReply { ok: true }))
    }
}
