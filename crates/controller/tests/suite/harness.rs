//! A controller that serves, and short ways to say what tests say often.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt;
use selvage_api::Code;
use selvage_api::distributed_match_engine::Loc;
use selvage_api::edgeproto as wire;
use selvage_controller::controller::Instances;
use selvage_controller::keys::KeyText;
use selvage_controller::row::{Row, StoredObject};
use selvage_controller::tables::HasTable;
use selvage_controller::{Controller, Dependencies, Foundation, Progress, Settings, Tables};
use selvage_kit::serve::{Limits, Server, Services, Socket, Trust};
use selvage_kit::telemetry::Metrics;
use selvage_store::SharedStore;
use selvage_store::embedded::{Embedded, Options};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

pub(crate) struct House {
    pub(crate) controller: Arc<Controller>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) ended: tokio::task::JoinHandle<()>,
    /// Folder of the socket that agents connect to.
    pub(crate) agents: tempfile::TempDir,
    channel: Channel,
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) async fn memory() -> SharedStore {
    Embedded::in_memory(Options::default()).await.unwrap()
}

/// A controller on an empty store.
pub(crate) async fn house() -> House {
    house_on(memory().await, |_| {}).await
}

pub(crate) async fn house_on(store: SharedStore, change: impl FnOnce(&mut Settings)) -> House {
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = socket.address().unwrap();
    let mut settings = Settings { external_address: address.to_string(), ..Settings::default() };
    change(&mut settings);
    // What comes again to agents must not depend on how busy the machine is.
    let dependencies = Dependencies { recall: Duration::from_secs(60), ..Dependencies::default() };
    let foundation = Foundation::open(store, settings, dependencies).await.unwrap();
    let instances = Arc::new(AtOnce(foundation.state.tables.clone()));
    let controller = Controller::open(foundation, instances).await.unwrap();
    let mut services = Services::default();
    controller.add_to(&mut services);
    let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let server = server.web_socket(selvage_controller::WEB_SOCKET, controller.shell_page());
    let stop = CancellationToken::new();
    let agents = tempfile::tempdir().unwrap();
    let local = Socket::unix(&agents.path().join("agents")).await.unwrap();
    tokio::spawn(server.clone().run(local, Trust::Socket, stop.clone()));
    tokio::spawn(server.run(socket, Trust::Everybody, stop.clone()));
    let running = Arc::clone(&controller).run(stop.clone());
    let ended = tokio::spawn(async move { running.await.unwrap() });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();
    House { controller, address, stop, ended, agents, channel }
}

macro_rules! clients {
    ($($name:ident: $module:ident::$client:ident,)+) => {
        impl House {
            $(pub(crate) fn $name(&self) -> wire::$module::$client<Channel> {
                wire::$module::$client::new(self.channel.clone())
            })+
        }
    };
}

clients! {
    developers: developer_api_client::DeveloperApiClient,
    operators: operator_api_client::OperatorApiClient,
    flavors: flavor_api_client::FlavorApiClient,
    clusters: cluster_api_client::ClusterApiClient,
    cloudlets: cloudlet_api_client::CloudletApiClient,
    cloudlet_infos: cloudlet_info_api_client::CloudletInfoApiClient,
    apps: app_api_client::AppApiClient,
    app_inst_infos: app_inst_info_api_client::AppInstInfoApiClient,
    cluster_inst_infos: cluster_inst_info_api_client::ClusterInstInfoApiClient,
    app_inst_metrics: app_inst_metrics_api_client::AppInstMetricsApiClient,
    cloudlet_metrics: cloudlet_metrics_api_client::CloudletMetricsApiClient,
    controllers: controller_api_client::ControllerApiClient,
    nodes: node_api_client::NodeApiClient,
    exec: exec_api_client::ExecApiClient,
}

impl House {
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Writes an object past all rules.
    pub(crate) async fn plant<M: HasTable>(&self, object: M) {
        self.controller.tables.of::<M>().put(Row(object)).await.unwrap();
    }

    pub(crate) async fn uproot<M: HasTable>(&self, object: &M) {
        self.controller.tables.of::<M>().delete(&object.key_text()).await.unwrap();
    }

    pub(crate) fn stored<M: HasTable>(&self, key: &M::Key) -> Option<M> {
        self.controller.tables.get::<M>(key).map(|held| held.value.0.clone())
    }

    /// The flavor, operator, developer and cloudlet that most tests need.
    pub(crate) async fn furnish(&self) {
        self.flavors().create_flavor(flavor("x1.small")).await.unwrap();
        self.operators().create_operator(operator("tmus")).await.unwrap();
        self.developers().create_developer(developer("Acme")).await.unwrap();
        drain(self.cloudlets().create_cloudlet(cloudlet("tmus", "west")).await).await.unwrap();
    }
}

/// Deletes instances as if their agents were quick.
struct AtOnce(Tables);

#[async_trait]
impl Instances for AtOnce {
    async fn delete_app_inst(
        &self,
        key: &wire::AppInstKey,
        progress: &Progress,
    ) -> selvage_controller::Result<()> {
        progress.say("Deleted AppInst successfully");
        self.0.app_insts.delete(&key.text()).await?;
        Ok(())
    }

    async fn delete_cluster_inst(
        &self,
        key: &wire::ClusterInstKey,
        progress: &Progress,
    ) -> selvage_controller::Result<()> {
        progress.say("Deleted ClusterInst successfully");
        self.0.cluster_insts.delete(&key.text()).await?;
        Ok(())
    }

    async fn app_inst_info(&self, _: wire::AppInstInfo, _: bool) {}

    async fn cluster_inst_info(&self, _: wire::ClusterInstInfo, _: bool) {}

    async fn resume_deletions(&self, _: &[wire::CloudletKey]) -> selvage_controller::Result<()> {
        Ok(())
    }
}

/// Reads a stream to its end.
pub(crate) async fn drain<M>(
    reply: Result<Response<Streaming<M>>, Status>,
) -> Result<Vec<M>, Status> {
    reply?.into_inner().try_collect().await
}

/// The messages of a stream of results.
pub(crate) async fn messages(
    reply: Result<Response<Streaming<wire::Result>>, Status>,
) -> Result<Vec<String>, Status> {
    Ok(drain(reply).await?.into_iter().map(|result| result.message).collect())
}

#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    text: &str,
) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code.grpc(), text));
}

/// Waits for something that will be; fails when it takes absurdly long.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    selvage_testkit::wait_for(what, async || holds().await.then_some(())).await;
}

pub(crate) fn developer_key(name: &str) -> wire::DeveloperKey {
    wire::DeveloperKey { name: name.into() }
}

pub(crate) fn developer(name: &str) -> wire::Developer {
    wire::Developer {
        key: Some(developer_key(name)),
        email: format!("{name}@example.com"),
        address: "1 Main Street".into(),
        ..Default::default()
    }
}

pub(crate) fn operator(name: &str) -> wire::Operator {
    wire::Operator { key: Some(wire::OperatorKey { name: name.into() }), ..Default::default() }
}

pub(crate) fn flavor_key(name: &str) -> wire::FlavorKey {
    wire::FlavorKey { name: name.into() }
}

pub(crate) fn flavor(name: &str) -> wire::Flavor {
    wire::Flavor { key: Some(flavor_key(name)), ram: 2048, vcpus: 2, disk: 2, ..Default::default() }
}

pub(crate) fn cluster(name: &str, flavor: &str) -> wire::Cluster {
    wire::Cluster {
        key: Some(wire::ClusterKey { name: name.into() }),
        default_flavor: (!flavor.is_empty()).then(|| flavor_key(flavor)),
        ..Default::default()
    }
}

pub(crate) fn cloudlet_key(operator: &str, name: &str) -> wire::CloudletKey {
    wire::CloudletKey {
        operator_key: Some(wire::OperatorKey { name: operator.into() }),
        name: name.into(),
    }
}

pub(crate) fn cloudlet(operator: &str, name: &str) -> wire::Cloudlet {
    wire::Cloudlet {
        key: Some(cloudlet_key(operator, name)),
        location: Some(Loc { latitude: 31.0, longitude: -91.0, ..Default::default() }),
        ip_support: wire::IpSupport::Dynamic.into(),
        num_dynamic_ips: 254,
        ..Default::default()
    }
}

pub(crate) fn cloudlet_info(operator: &str, name: &str) -> wire::CloudletInfo {
    wire::CloudletInfo {
        key: Some(cloudlet_key(operator, name)),
        state: wire::CloudletState::Ready.into(),
        os_max_ram: 500,
        os_max_vcores: 50,
        os_max_vol_gb: 5000,
        flavors: vec![wire::FlavorInfo {
            name: "flavor1".into(),
            vcpus: 10,
            ram: 101_024,
            disk: 500,
        }],
        ..Default::default()
    }
}

pub(crate) fn app_key(developer: &str, name: &str, version: &str) -> wire::AppKey {
    wire::AppKey {
        developer_key: Some(developer_key(developer)),
        name: name.into(),
        version: version.into(),
    }
}

pub(crate) fn app(developer: &str, name: &str) -> wire::App {
    wire::App {
        key: Some(app_key(developer, name, "1.0")),
        image_type: wire::ImageType::Docker.into(),
        access_ports: "tcp:80,http:443,udp:10002".into(),
        default_flavor: Some(flavor_key("x1.small")),
        ..Default::default()
    }
}

pub(crate) fn auto_delete(mut app: wire::App) -> wire::App {
    app.set_del_opt(wire::DeleteType::AutoDelete);
    app
}

pub(crate) fn cluster_inst(
    cloudlet: &str,
    cluster: &str,
    liveness: wire::Liveness,
) -> wire::ClusterInst {
    wire::ClusterInst {
        key: Some(wire::ClusterInstKey {
            cluster_key: Some(wire::ClusterKey { name: cluster.into() }),
            cloudlet_key: Some(cloudlet_key("tmus", cloudlet)),
            developer: "Acme".into(),
        }),
        flavor: Some(flavor_key("x1.small")),
        liveness: liveness.into(),
        state: wire::TrackedState::Ready.into(),
        ..Default::default()
    }
}

pub(crate) fn app_inst(app: &str, cloudlet: &str, liveness: wire::Liveness) -> wire::AppInst {
    wire::AppInst {
        key: Some(wire::AppInstKey {
            app_key: Some(app_key("Acme", app, "1.0")),
            cluster_inst_key: cluster_inst(cloudlet, "small", liveness).key,
        }),
        flavor: Some(flavor_key("x1.small")),
        liveness: liveness.into(),
        state: wire::TrackedState::Ready.into(),
        ..Default::default()
    }
}

/// Key texts of objects, for comparing what is shown.
pub(crate) fn keys<M: StoredObject>(objects: &[M]) -> Vec<String> {
    objects.iter().map(StoredObject::key_text).collect()
}
