//! Each operation, with every step repeated, failing and crashing.

use super::support::*;
use crate::controller::Mode;
use crate::instances::core::{Begun, Core, Initiator};
use crate::instances::create_app_inst::CreateAppInst;
use crate::instances::create_cluster_inst::CreateClusterInst;
use crate::instances::delete_app_inst::DeleteAppInst;
use crate::instances::delete_cluster_inst::DeleteClusterInst;
use crate::instances::error::Refusal;
use crate::instances::plan::Origin;
use crate::instances::update_app_inst::UpdateAppInst;
use crate::instances::update_cluster_inst::UpdateClusterInst;
use async_trait::async_trait;
use selvage_api::edgeproto::{AppInst, ClusterInst, CrmOverride, DeleteType};
use selvage_store::SharedStore;
use selvage_store::clock::ManualClock;
use selvage_work::testing::{Environment, check};
use selvage_work::{Engine, Error, Handle, Operation, Options};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Case of one verb on one instance.
trait Case: Send + Sync + 'static {
    type Operation: Operation;
    fn operation(core: Arc<Core>) -> Self::Operation;
    /// Of others that the operation starts.
    fn register_others(_: &Arc<Core>, _: &Engine) -> Result<(), Error> {
        Ok(())
    }
    fn begin(core: &Core, engine: &Engine) -> impl Future<Output = Result<Begun, Refusal>> + Send;
}

struct Proof<C> {
    world: World,
    /// Contents of tables that never had the instance.
    gone: Vec<String>,
    case: PhantomData<fn() -> C>,
}

/// Everything that could be left behind.
async fn residue(world: &World) -> String {
    let tables = &world.controller.tables;
    let clusters = tables.cluster_insts.list();
    let apps = tables.app_insts.list();
    let refs = tables.cloudlet_refs.list();
    let mut lines: Vec<_> = clusters.iter().map(|held| format!("{:?}", held.value.0)).collect();
    lines.extend(apps.iter().map(|held| {
        let inst = AppInst { created_at: None, ..held.value.0.clone() };
        format!("{inst:?}")
    }));
    let unused = |refs: &selvage_api::edgeproto::CloudletRefs| {
        let bare =
            selvage_api::edgeproto::CloudletRefs { key: refs.key.clone(), ..Default::default() };
        *refs == bare
    };
    let used = refs.iter().filter(|held| !unused(&held.value.0));
    lines.extend(used.map(|held| format!("{:?}", held.value.0)));
    lines.extend(tables.cluster_refs.list().iter().map(|held| format!("{:?}", held.value.0)));
    let store = Arc::clone(&world.controller.store);
    let claims = selvage_store::Table::<crate::guard::Claim>::open(store).await.unwrap();
    lines.extend(claims.list().iter().map(|held| format!("{:?}", held.value)));
    lines.extend(world.crm.script.lock().reality.iter().cloned());
    lines.join("\n")
}

impl<C: Case> Proof<C> {
    /// `before` brings the world to where the operation starts.
    async fn new(before: impl AsyncFn(&World)) -> Self {
        let clock = ManualClock::new(1_000_000_000_000);
        let store = memory_store(&clock).await;
        let script = Arc::default();
        let world =
            World::on(Arc::clone(&store), clock.clone(), Arc::clone(&script), settings()).await;
        for (name, ram, vcpus, disk) in FLAVORS {
            world.put(flavor(name, *ram, *vcpus, *disk)).await;
        }
        world.add_cloudlet("tmus", "cloud-1", 254).await;
        world.add_app(app("app", "tcp:80,http:443")).await;
        world.add_app(over(&app("side", ""), |app| app.set_del_opt(DeleteType::AutoDelete))).await;
        let mut gone = vec![residue(&world).await];
        world.create_cluster(&cluster("base")).await.ok();
        gone.push(residue(&world).await);
        before(&world).await;
        drop(world);
        let world = World::idle_on(store, clock, script, settings()).await;
        Self { world, gone, case: PhantomData }
    }
}

#[async_trait]
impl<C: Case> Environment for Proof<C> {
    type Operation = C::Operation;

    fn store(&self) -> SharedStore {
        Arc::clone(&self.world.controller.store)
    }

    fn operation(&self) -> C::Operation {
        C::operation(Arc::clone(&self.world.service.core))
    }

    fn register_others(&self, engine: &Engine) -> Result<(), Error> {
        C::register_others(&self.world.service.core, engine)
    }

    fn state(&self) -> <C::Operation as Operation>::State {
        unreachable!("it is started together with a write of its own")
    }

    async fn start(&self, engine: &Engine) -> Result<Handle, Error> {
        let begun = C::begin(&self.world.service.core, engine).await;
        Ok(begun.unwrap().handle.unwrap())
    }

    async fn residue(&self) -> String {
        self.world.check();
        residue(&self.world).await
    }

    /// Something that is gone cannot be brought back.
    fn is_undone(&self, before: &str, now: &str) -> bool {
        // Nor is an update taken back: it is left as failed, or done, if the
        // crm has done it all the same.
        let settled = C::Operation::KIND.starts_with("Update")
            && !["UpdateRequested", "Updating"].iter().any(|state| now.contains(state));
        before == now || settled || self.gone.iter().any(|gone| gone == now)
    }

    fn options(&self) -> Options {
        let backoff = selvage_kit::tasks::Backoff {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(5),
            ..Default::default()
        };
        Options { backoff, ..Options::default() }
    }
}

macro_rules! case {
    (
        $name:ident, $operation:ident, $begin:ident ( $request:expr $(, $more:expr)* )
        $(, starting $($other:ident),+)?
    ) => {
        struct $name;

        impl Case for $name {
            type Operation = $operation;

            fn operation(core: Arc<Core>) -> $operation {
                $operation(core)
            }

            $(fn register_others(core: &Arc<Core>, engine: &Engine) -> Result<(), Error> {
                $(engine.register($other(Arc::clone(core)))?;)+
                Ok(())
            })?

            async fn begin(core: &Core, engine: &Engine) -> Result<Begun, Refusal> {
                let by = Initiator { engine, who: "testing", mode: Mode::Real };
                core.$begin(by, &$request $(, $more)*).await
            }
        }
    };
}

const AUTO: &str = "autocluster1";

fn grown() -> ClusterInst {
    over(&cluster("base"), |inst| {
        inst.fields = vec!["14".into()];
        inst.num_nodes = 3;
    })
}

fn ignoring() -> AppInst {
    over(&app_inst("app", "base"), |inst| inst.set_crm_override(CrmOverride::IgnoreCrm))
}

case!(CreatesCluster, CreateClusterInst, begin_create_cluster(cluster("one"), Origin::Api));
case!(DeletesCluster, DeleteClusterInst, begin_delete_cluster(cluster("base")));
case!(UpdatesCluster, UpdateClusterInst, begin_update_cluster(grown()));
case!(
    DeletesClusterAndApps, DeleteClusterInst, begin_delete_cluster(cluster("base")),
    starting DeleteAppInst
);
case!(
    CreatesAppAndCluster, CreateAppInst, begin_create_app(app_inst("app", AUTO)),
    starting CreateClusterInst, DeleteClusterInst
);
case!(
    DeletesAppAndCluster, DeleteAppInst, begin_delete_app(app_inst("app", AUTO)),
    starting DeleteClusterInst
);
case!(CreatesApp, CreateAppInst, begin_create_app(app_inst("app", "base")));
case!(CreatesAppAlone, CreateAppInst, begin_create_app(ignoring()));
case!(UpdatesApp, UpdateAppInst, begin_update_app(app_inst("app", "base")));
case!(DeletesApp, DeleteAppInst, begin_delete_app(app_inst("app", "base")));

async fn proven<C: Case>(before: impl AsyncFn(&World), steps: usize) {
    let before = &before;
    let tried = check(|| Proof::<C>::new(before)).await.unwrap();
    assert!(tried.len() > 7 * steps, "{tried:?}");
}

async fn nothing(_: &World) {}

async fn with_app(world: &World) {
    world.create_app(&app_inst("app", "base")).await.ok();
}

async fn with_side_app(world: &World) {
    world.create_app(&app_inst("side", "base")).await.ok();
}

async fn with_auto_cluster(world: &World) {
    world.create_app(&app_inst("app", AUTO)).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_cluster_keeps_the_rules() {
    proven::<CreatesCluster>(nothing, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_cluster_keeps_the_rules() {
    proven::<DeletesCluster>(nothing, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updating_a_cluster_keeps_the_rules() {
    proven::<UpdatesCluster>(nothing, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_cluster_with_its_apps_keeps_the_rules() {
    proven::<DeletesClusterAndApps>(with_side_app, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_an_app_with_its_cluster_keeps_the_rules() {
    proven::<CreatesAppAndCluster>(nothing, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_an_app_with_its_cluster_keeps_the_rules() {
    proven::<DeletesAppAndCluster>(with_auto_cluster, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_an_app_keeps_the_rules() {
    proven::<CreatesApp>(nothing, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_an_app_without_its_crm_keeps_the_rules() {
    proven::<CreatesAppAlone>(nothing, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_an_app_keeps_the_rules() {
    proven::<DeletesApp>(with_app, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updating_an_app_keeps_the_rules() {
    proven::<UpdatesApp>(with_app, 1).await;
}
