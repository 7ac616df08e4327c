//! The way to agents and back: which objects go down to them, and what is
//! done with what they say.

mod past;
mod sinks;
mod source;

use std::sync::Arc;
use std::time::Duration;

use selvage_api::edgeproto as wire;
use selvage_api::object::Object;
use selvage_notify::{Exchange, NotifyServer, ServerOptions};
use selvage_store::Revision;
use tokio_util::sync::CancellationToken;

use self::past::Past;
use self::sinks::{ExecAnswers, Handler, Metrics, ObjectSink, Receiver};
use self::source::TableSource;
use crate::controller::Instances;
use crate::error::{Error, Result};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::objects::conceal;
use crate::registry::Runs;
use crate::row::StoredObject;
use crate::state::ControllerState;
use crate::tables::{StoredRow, Tables};

/// Objects that agents get, in the order in which they are sent.
#[derive(Clone)]
pub(crate) struct Sources {
    flavors: Arc<TableSource<wire::Flavor>>,
    cloudlets: Arc<TableSource<wire::Cloudlet>>,
    /// For match engines of ours, which send nobody to a cloudlet that is
    /// down. The original's ask for none of it.
    cloudlet_infos: Arc<TableSource<wire::CloudletInfo>>,
    clusters: Arc<TableSource<wire::Cluster>>,
    cluster_insts: Arc<TableSource<wire::ClusterInst>>,
    apps: Arc<TableSource<wire::App>>,
    app_insts: Arc<TableSource<wire::AppInst>>,
}

/// Kinds of records that agents get.
const KINDS: &[&str] = &[
    wire::Flavor::KIND,
    wire::Cloudlet::KIND,
    wire::CloudletInfo::KIND,
    wire::Cluster::KIND,
    wire::ClusterInst::KIND,
    wire::App::KIND,
    wire::AppInst::KIND,
];

fn public_app(app: &wire::App) -> Option<wire::App> {
    let mut public = app.clone();
    conceal(&mut public).then_some(public)
}

fn public_app_inst(inst: &wire::AppInst) -> Option<wire::AppInst> {
    inst.pinned_app.as_ref()?;
    Some(wire::AppInst { pinned_app: None, ..inst.clone() })
}

impl Sources {
    fn open(tables: &Tables, past: &Arc<Past>) -> Result<Self> {
        Ok(Self {
            flavors: TableSource::open(&tables.flavors, past)?,
            cloudlets: TableSource::open(&tables.cloudlets, past)?,
            cloudlet_infos: TableSource::open(&tables.cloudlet_infos, past)?,
            clusters: TableSource::open(&tables.clusters, past)?,
            cluster_insts: TableSource::open(&tables.cluster_insts, past)?,
            apps: TableSource::open_secretive(&tables.apps, past, Some(public_app))?,
            app_insts: TableSource::open_secretive(&tables.app_insts, past, Some(public_app_inst))?,
        })
    }

    /// Tells of changes until told to stop.
    async fn run(self, stop: CancellationToken) {
        let cluster_inst = |held: StoredRow<wire::ClusterInst>| {
            let sources = &self;
            async move { sources.before_cluster_inst(&held).await }
        };
        let app_inst = |held: StoredRow<wire::AppInst>| {
            let sources = &self;
            async move { sources.before_app_inst(&held).await }
        };
        tokio::join!(
            self.flavors.feed(&stop, |_| std::future::ready(())),
            self.cloudlets.feed(&stop, |_| std::future::ready(())),
            self.cloudlet_infos.feed(&stop, |_| std::future::ready(())),
            self.clusters.feed(&stop, |_| std::future::ready(())),
            self.apps.feed(&stop, |_| std::future::ready(())),
            self.cluster_insts.feed(&stop, cluster_inst),
            self.app_insts.feed(&stop, app_inst),
        );
    }

    /// Each table follows the store at its own pace; what an instance refers
    /// to must be told before the instance all the same.
    async fn before_cluster_inst(&self, held: &StoredRow<wire::ClusterInst>) {
        let (inst, revision) = (&held.value.0, held.mod_revision);
        self.cloudlets.lead(inst.object_key().cloudlet_or_empty(), revision).await;
        self.flavors.lead(inst.flavor.as_ref().unwrap_or(KeyText::empty()), revision).await;
    }

    async fn before_app_inst(&self, held: &StoredRow<wire::AppInst>) {
        let (inst, revision) = (&held.value.0, held.mod_revision);
        let key = inst.object_key();
        let cluster_inst = key.cluster_inst_or_empty();
        self.apps.lead(key.app_or_empty(), revision).await;
        self.cloudlets.lead(cluster_inst.cloudlet_or_empty(), revision).await;
        self.cluster_insts.lead(cluster_inst, revision).await;
        self.flavors.lead(inst.flavor.as_ref().unwrap_or(KeyText::empty()), revision).await;
    }
}

/// The server that agents connect to, and what feeds it.
pub(crate) struct Downstream {
    pub(crate) server: NotifyServer,
    sources: Sources,
    past: Arc<Past>,
}

impl Downstream {
    /// Opens the server; an agent of it can go on at any other one of these
    /// runs.
    pub(crate) fn open(
        state: &Arc<ControllerState>,
        instances: &Arc<dyn Instances>,
        options: ServerOptions,
        recall: Duration,
        runs: Runs,
    ) -> Result<Self> {
        let peer_timeout = state.settings.timeouts.agent;
        let options = ServerOptions { lineage: Some(Arc::new(runs)), peer_timeout, ..options };
        let past = Arc::new(Past::new(Arc::clone(&state.store), KINDS, recall));
        let sources = Sources::open(&state.tables, &past)?;
        let receiver = &Receiver { state: Arc::clone(state), instances: Arc::clone(instances) };
        let exchange = Exchange::new()
            .send(sources.flavors.clone())
            .send(sources.cloudlets.clone())
            .send(sources.cloudlet_infos.clone())
            .send(sources.clusters.clone())
            .send(sources.cluster_insts.clone())
            .send(sources.apps.clone())
            .send(sources.app_insts.clone())
            .send_messages::<wire::ExecRequest>()
            .map_err(Error::Notify)?
            .receive(sink(receiver, sinks::CloudletInfos)?)
            .receive(sink::<wire::AppInstInfo, _>(receiver, sinks::InstanceInfos)?)
            .receive(sink::<wire::ClusterInstInfo, _>(receiver, sinks::InstanceInfos)?)
            .receive_messages(Arc::new(Metrics::new(Arc::clone(state))?))
            .receive(sink(receiver, sinks::Nodes)?)
            .receive_messages(Arc::new(ExecAnswers::new(Arc::clone(state))?));
        Ok(Self { server: NotifyServer::new(exchange, options), sources, past })
    }

    /// A record was written at this revision, after this was opened.
    pub(crate) fn began(&self, revision: Revision) {
        self.past.began(revision);
    }

    /// Keeps agents up to date until told to stop, and tells them then: they find
    /// another controller the sooner they know.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        self.sources.clone().run(stop).await;
        self.server.close().await;
    }
}

fn sink<M: Object + 'static, H: Handler<M>>(
    receiver: &Receiver,
    handler: H,
) -> Result<Arc<ObjectSink<M, H>>> {
    Ok(Arc::new(ObjectSink::new(receiver.clone(), handler)?))
}
