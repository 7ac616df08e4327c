//! Clusters of a cloudlet, and keys of everybody else.

use selvage_api::{
    cnct::kaas::api::{
        CreateClusterMsg, DeleteClusterMsg, GetClusterListMsg, GetClusterMsg, ScaleNodePoolMsg,
        cluster_client::ClusterClient,
    },
    selvage::clusters::{
        GetClusterRequest, WatchClusterRequest, cluster_service_client::ClusterServiceClient,
    },
};
use selvage_kit::identity::Machine;
use tonic::{Request, Status, transport::Channel};

use super::*;

const ORGANISATION: &str = "x-selvage-organisation";
const WEST: &str = "cloudlet/tmus/west";

/// Methods by which a crm reaches a cluster that it names.
const BY_NAME: [&str; 5] = [
    "/cnct.kaas.api.Cluster/GetCluster",
    "/selvage.clusters.ClusterService/GetCluster",
    "/selvage.clusters.ClusterService/WatchCluster",
    "/cnct.kaas.api.Cluster/ScaleNodePool",
    "/cnct.kaas.api.Cluster/DeleteCluster",
];
/// Those that name none: a new cluster, a list, and what all people see.
const WITHOUT_NAME: [&str; 3] = [
    "/cnct.kaas.api.Cluster/CreateCluster",
    "/cnct.kaas.api.Cluster/GetClusterList",
    "/selvage.clusters.ClusterService/ListVersions",
];

/// The same answer to every method.
fn always(code: Code) -> Vec<(&'static str, Code)> {
    BY_NAME.into_iter().map(|method| (method, code)).collect()
}

/// A method of clusters that a crm's key opens is tried on clusters of others.
#[test]
fn every_method_of_clusters_is_tried() {
    let access = Access::load().unwrap();
    let mut open: Vec<&str> = access
        .rules()
        .filter(|rule| rule.who().contains(&Who::Machine(MachineKind::Cloudlet)))
        .map(|rule| rule.path.as_str())
        .filter(|path| path.contains(".Cluster/") || path.contains(".ClusterService/"))
        .collect();
    let mut tried: Vec<&str> = BY_NAME.into_iter().chain(WITHOUT_NAME).collect();
    open.sort_unstable();
    tried.sort_unstable();
    assert_eq!(open, tried);
}

struct Keys<'a>(&'a Client);

impl Keys<'_> {
    fn api(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.0.channel.clone())
    }

    fn request<T>(&self, message: T, organisation: &str) -> Request<T> {
        let mut request = self.0.request(message);
        if !organisation.is_empty() {
            request.metadata_mut().insert(ORGANISATION, organisation.parse().unwrap());
        }
        request
    }

    async fn create_for(&self, name: &str, organisation: &str) -> Code {
        let message = CreateClusterMsg { name: name.into(), ..CreateClusterMsg::default() };
        let made = self.api().create_cluster(self.request(message, organisation)).await;
        made.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.api().get_cluster_list(self.request(GetClusterListMsg {}, "")).await;
        let listed = listed.unwrap().into_inner().clusters;
        listed.into_iter().map(|cluster| cluster.name).collect()
    }

    /// Begins a watch of a cluster; the error says why there is none.
    async fn watch(&self, name: &str) -> Result<(), Status> {
        let request = self.request(WatchClusterRequest { name: name.into() }, "");
        let mut beyond = ClusterServiceClient::new(self.0.channel.clone());
        let mut watched = beyond.watch_cluster(request).await?.into_inner();
        let first = watched.message().await?.and_then(|answer| answer.cluster);
        first.map(|_| ()).ok_or_else(|| Status::not_found("the stream ended"))
    }

    /// Codes of everything that is done to a cluster by its name, by method.
    async fn tries(&self, name: &str) -> Vec<(&'static str, Code)> {
        fn code<T>(reply: Result<T, Status>) -> Code {
            reply.map_or_else(|status| status.code(), |_| Code::Ok)
        }
        let (name, cluster_name) = (name.to_owned(), name.to_owned());
        let get = GetClusterMsg { name: name.clone() };
        let look = GetClusterRequest { name: name.clone() };
        let scale = ScaleNodePoolMsg { cluster_name, node_pools: Vec::new() };
        let delete = DeleteClusterMsg { name: name.clone() };
        let mut beyond = ClusterServiceClient::new(self.0.channel.clone());
        vec![
            (BY_NAME[0], code(self.api().get_cluster(self.request(get, "")).await)),
            (BY_NAME[1], code(beyond.get_cluster(self.request(look, "")).await)),
            (BY_NAME[2], code(self.watch(&name).await)),
            (BY_NAME[3], code(self.api().scale_node_pool(self.request(scale, "")).await)),
            (BY_NAME[4], code(self.api().delete_cluster(self.request(delete, "")).await)),
        ]
    }
}

/// A crm has the clusters that it made; to all other keys they are not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudlets_clusters_are_its_own() {
    let selvage = Selvage::up(&[
        "--set",
        "kaas.provider=sim",
        "--set",
        "kaas.max_machines_per_organisation=1",
    ]);
    let admin = Client::admin(&selvage).await;
    let (west, east) =
        (admin.stolen(&selvage, WEST).await, admin.stolen(&selvage, "cloudlet/tmus/east").await);
    let (west, east, admin_keys) = (Keys(&west), Keys(&east), Keys(&admin));
    let prefix = Machine::parse(WEST).unwrap().cluster_prefix();
    let own = format!("{prefix}demo");
    assert_eq!(admin_keys.create_for("persons", "acme").await, Code::Ok);
    assert_eq!(west.create_for(&own, "").await, Code::Ok);
    // One machine each: the limit is the cloudlet's too.
    assert_eq!(west.create_for(&format!("{prefix}more"), "").await, Code::ResourceExhausted);

    // Nobody makes clusters in the name of a cloudlet, or with its names.
    for (keys, name, organisation, code) in [
        (&admin_keys, format!("{prefix}a"), WEST, Code::PermissionDenied),
        (&admin_keys, format!("{prefix}a"), "acme", Code::InvalidArgument),
        (&east, format!("{prefix}a"), WEST, Code::PermissionDenied),
        (&east, format!("{prefix}a"), "", Code::InvalidArgument),
        (&west, format!("{prefix}a"), "acme", Code::PermissionDenied),
        (&west, "plain".to_owned(), "", Code::InvalidArgument),
    ] {
        assert_eq!(keys.create_for(&name, organisation).await, code, "{name} {organisation}");
    }

    assert_eq!(west.names().await, std::slice::from_ref(&own));
    assert_eq!(east.names().await, [] as [String; 0]);
    assert_eq!(west.tries("persons").await, always(Code::NotFound));
    assert_eq!(east.tries(&own).await, always(Code::NotFound));
    for other in ["node/rack3-7", "dme/west"] {
        let thief = admin.stolen(&selvage, other).await;
        assert_eq!(Keys(&thief).tries(&own).await, always(Code::PermissionDenied), "{other}");
    }
    assert_eq!(admin_keys.names().await.len(), 2, "nothing was deleted");
    assert_eq!(west.tries(&own).await[..3], always(Code::Ok)[..3]);
}
