//! The life of ClusterInsts and AppInsts.
//!
//! Each operation has a file of its name: its `begin_*` reads, asks `plan`,
//! which decides, purely, and commits the change of the instance together with
//! the operation that carries it on; the rest is that operation. `app_work` and
//! `cluster_work` are what they remember, `wait` and `steps` what they share;
//! `core` is what all work with, and how they are started; `info` takes in
//! what crms report; `usage` counts what is used, `queue` keeps those apart who
//! count in the same; `revisions` keeps what instances ran; `reconcile`
//! looks after what nobody looks after; `rpc` is
//! the face of it, `follow` what its callers are told while they wait.
//!
//! Nothing is sent to a crm from here: it sees the rows through notify, and
//! its reports come back as calls of [`crate::controller::Instances`].

mod app_work;
mod cluster_work;
mod core;
mod create_app_inst;
mod create_cluster_inst;
mod delete_app_inst;
mod delete_cluster_inst;
mod error;
mod follow;
mod info;
mod kind;
mod plan;
mod queue;
mod reconcile;
mod revision_rpc;
mod revisions;
mod rpc;
pub mod state;
mod steps;
#[cfg(test)]
mod tests;
mod unused_clusters;
mod update_app_inst;
mod update_cluster_inst;
mod usage;
pub mod usage_check;
mod wait;

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::app_inst_api_server::AppInstApiServer;
use selvage_api::edgeproto::cluster_inst_api_server::ClusterInstApiServer;
use selvage_api::selvage::revisions::revision_service_server::RevisionServiceServer;
use selvage_kit::serve::Services;
use selvage_work::{Engine, Failure, Scope};

pub use self::error::Error;
pub use self::reconcile::InstanceReconciler;

use self::core::{Begun, Core, Initiator};
use crate::controller::{Foundation, Instances, Mode, Progress};

/// The instances of a controller.
pub struct InstanceService {
    core: Arc<Core>,
    engine: Engine,
}

impl std::fmt::Debug for InstanceService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InstanceService")
    }
}

impl InstanceService {
    /// Makes the operations known to the controller's engine. To be called once,
    /// before the controller runs.
    pub async fn open(foundation: &Foundation) -> crate::Result<Arc<Self>> {
        let core = Arc::new(Core::open(&foundation.state).await?);
        let engine = &foundation.engine;
        engine.register(create_cluster_inst::CreateClusterInst(Arc::clone(&core)))?;
        engine.register(update_cluster_inst::UpdateClusterInst(Arc::clone(&core)))?;
        engine.register(delete_cluster_inst::DeleteClusterInst(Arc::clone(&core)))?;
        engine.register(create_app_inst::CreateAppInst(Arc::clone(&core)))?;
        engine.register(update_app_inst::UpdateAppInst(Arc::clone(&core)))?;
        engine.register(delete_app_inst::DeleteAppInst(Arc::clone(&core)))?;
        Ok(Arc::new(Self { core, engine: engine.clone() }))
    }

    /// Returns the periodic work that takes care of instances without an
    /// operation.
    pub fn caretaker(&self) -> InstanceReconciler {
        InstanceReconciler::new(Arc::clone(&self.core), self.engine.clone())
    }

    /// Mounts the services.
    pub fn add_to(self: &Arc<Self>, services: &mut Services) {
        services.add(ClusterInstApiServer::from_arc(Arc::clone(self)));
        services.add(AppInstApiServer::from_arc(Arc::clone(self)));
        services.add(RevisionServiceServer::from_arc(Arc::clone(self)));
    }

    fn by<'a>(&'a self, who: &'a str, mode: Mode) -> Initiator<'a> {
        Initiator { engine: &self.engine, who, mode }
    }

    /// For what goes with something else.
    fn by_controller(&self) -> Initiator<'_> {
        self.by(WHO, Mode::Real)
    }
}

#[async_trait]
impl Instances for InstanceService {
    async fn delete_app_inst(
        &self,
        key: &wire::AppInstKey,
        progress: &Progress,
    ) -> crate::Result<()> {
        let request = wire::AppInst { key: Some(key.clone()), ..Default::default() };
        let begun = self.core.begin_delete_app(self.by_controller(), &request).await;
        follow(begun.map_err(|refusal| refusal.error)?, progress).await
    }

    async fn delete_cluster_inst(
        &self,
        key: &wire::ClusterInstKey,
        progress: &Progress,
    ) -> crate::Result<()> {
        let request = wire::ClusterInst { key: Some(key.clone()), ..Default::default() };
        let begun = self.core.begin_delete_cluster(self.by_controller(), &request).await;
        follow(begun.map_err(|refusal| refusal.error)?, progress).await
    }

    async fn app_inst_info(&self, info: wire::AppInstInfo, gone: bool) {
        if let Err(error) = self.core.apply::<wire::AppInst>(&info, gone).await {
            tracing::warn!(%error, ?info.key, "the report on an AppInst is lost");
        }
    }

    async fn cluster_inst_info(&self, info: wire::ClusterInstInfo, gone: bool) {
        if let Err(error) = self.core.apply::<wire::ClusterInst>(&info, gone).await {
            tracing::warn!(%error, ?info.key, "the report on a ClusterInst is lost");
        }
    }

    async fn resume_deletions(&self, cloudlets: &[wire::CloudletKey]) -> crate::Result<()> {
        self.core.resume_deletions::<wire::AppInst>(cloudlets).await?;
        self.core.resume_deletions::<wire::ClusterInst>(cloudlets).await?;
        Ok(())
    }
}

/// Name of the one who started what goes with something else.
const WHO: &str = "controller";

async fn follow(begun: Begun, progress: &Progress) -> crate::Result<()> {
    let Some(handle) = begun.handle else { return Ok(()) };
    let mut lines = handle.lines();
    while let Some(line) = lines.next().await {
        progress.say(line.map_err(Error::Other)?);
    }
    Ok(())
}

/// Passes on what another operation says until it ends.
async fn relay(scope: &Scope, begun: Begun) -> Result<(), Failure> {
    for note in begun.notes {
        scope.say(note);
    }
    let Some(handle) = begun.handle else { return Ok(()) };
    let mut lines = handle.lines();
    while let Some(line) = scope.until(lines.next()).await? {
        scope.say(line?);
    }
    Ok(())
}

/// Waits for another operation to end.
async fn outlast(scope: &Scope, begun: Begun) -> Result<(), Failure> {
    match begun.handle {
        Some(handle) => scope.until(handle.ended()).await?,
        None => Ok(()),
    }
}
