//! The operation `UpdateClusterInst`.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto::ClusterInst;
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::cluster_work::{ClusterWork, read_row};
use super::core::{Begun, Core, Initiator, InstanceRequest};
use super::error::Refusal;
use super::plan::cluster as plan;
use super::state::Verb;
use super::usage;
use crate::keys::ClusterInstKeyParts;
use crate::row::StoredObject;

pub(crate) struct UpdateClusterInst(pub(super) Arc<Core>);

#[async_trait]
impl Operation for UpdateClusterInst {
    const KIND: &'static str = "UpdateClusterInst";
    type State = ClusterWork;

    fn steps(&self, _: &ClusterWork) -> Vec<&'static str> {
        vec!["update"]
    }

    async fn run(&self, _: &str, work: &mut ClusterWork, scope: &Scope) -> Result<Next, Failure> {
        self.0.ask_for(work, Verb::Update, scope).await?;
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, work: &mut ClusterWork, scope: &Scope) -> Result<(), Failure> {
        self.0.leave_failed::<ClusterInst>(scope, &work.key(), Verb::Update).await
    }
}

impl Core {
    pub(crate) async fn begin_update_cluster(
        &self,
        by: Initiator<'_>,
        request: &ClusterInst,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = InstanceRequest { verb: Verb::Update, request, cloudlet };
        self.begin::<UpdateClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            let (before, info) = read_row(&tx, request).await?;
            let (after, notes) = plan::update(request, before.clone(), info.as_ref())?;
            let enforced = self.settings.enforce_resources;
            let limits = info.as_ref().filter(|_| enforced);
            if let Some(before) = &before {
                usage::resize_cluster(&tx, before, after, info.as_ref(), limits).await?;
            }
            Ok((ClusterWork::of(request, before.as_ref()), notes))
        })
        .await
    }
}
