//! The operation `CreateClusterInst`.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto::{Cloudlet, Cluster, ClusterInst, Flavor};
use selvage_store::Transaction;
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::cluster_work::ClusterWork;
use super::core::{Begun, Core, Initiator, InstanceRequest};
use super::error::{Error, Refusal};
use super::plan::{Origin, cluster as plan};
use super::state::Verb;
use super::steps::Work;
use super::usage;
use crate::guard::refer;
use crate::keys::{ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;

pub(crate) struct CreateClusterInst(pub(super) Arc<Core>);

#[async_trait]
impl Operation for CreateClusterInst {
    const KIND: &'static str = "CreateClusterInst";
    type State = ClusterWork;

    fn steps(&self, _: &ClusterWork) -> Vec<&'static str> {
        vec!["create"]
    }

    async fn run(&self, _: &str, work: &mut ClusterWork, scope: &Scope) -> Result<Next, Failure> {
        self.0.ask_for(work, Verb::Create, scope).await?;
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, work: &mut ClusterWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.key();
        if work.adopted {
            return self.0.leave_failed::<ClusterInst>(scope, &key, Verb::Create).await;
        }
        let says = "DELETING ClusterInst due to failures";
        self.0.undo_create::<ClusterInst>(scope, &key, says, !work.ignores_crm()).await
    }
}

impl Core {
    pub(crate) async fn begin_create_cluster(
        &self,
        by: Initiator<'_>,
        request: &ClusterInst,
        origin: Origin,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = InstanceRequest { verb: Verb::Create, request, cloudlet };
        self.begin::<CreateClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            self.create_cluster(&tx, request, origin).await?;
            Ok((ClusterWork::of(request, None), Vec::new()))
        })
        .await
    }

    /// Checks and writes a new ClusterInst.
    pub(super) async fn create_cluster(
        &self,
        tx: &Transaction,
        request: &ClusterInst,
        origin: Origin,
    ) -> Result<ClusterInst, Refusal> {
        let settings = &self.settings;
        let world = read_world(tx, request).await?;
        let existing = world.existing.clone();
        let planned = plan::create(request, origin, world, settings)?;
        if let Some(existing) = existing {
            usage::release_cluster_but_apps(tx, &existing).await?;
        }
        let limits = settings.enforce_resources.then_some(&planned.info);
        let (flavor, cloudlet) = (&planned.flavor, &planned.cloudlet);
        Ok(usage::reserve_cluster(tx, planned.inst, flavor, cloudlet, limits).await?)
    }
}

pub(super) async fn read_world(
    tx: &Transaction,
    request: &ClusterInst,
) -> Result<plan::Inputs, Error> {
    let key = request.object_key();
    let cloudlet = key.cloudlet_or_empty().text();
    let cluster = usage::get::<Cluster>(tx, &key.cluster_or_empty().text()).await?;
    let flavor = plan::flavor_key(request, cluster.as_ref());
    Ok(plan::Inputs {
        existing: usage::get(tx, &key.text()).await?,
        cloudlet: refer::<Cloudlet>(tx, &cloudlet).await?,
        info: usage::get(tx, &cloudlet).await?,
        flavor: refer::<Flavor>(tx, &flavor.text()).await?,
        cluster,
    })
}
