//! The operation `DeleteAppInst`: first the instance, then the auto-cluster
//! that nobody else uses.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto::{AppInst, TrackedState};
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::app_work::{AppWork, read_row};
use super::core::{self, Begun, Core, Initiator};
use super::error::Refusal;
use super::kind::Instance;
use super::plan::app as plan;
use super::state::{Verb, state_of};
use super::steps::{CrmOutcome, Work};
use super::usage;
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts};

pub(crate) struct DeleteAppInst(pub(super) Arc<Core>);

const APP: &str = "app";
const CLUSTER: &str = "cluster";

#[async_trait]
impl Operation for DeleteAppInst {
    const KIND: &'static str = "DeleteAppInst";
    type State = AppWork;

    fn steps(&self, _: &AppWork) -> Vec<&'static str> {
        vec![APP, CLUSTER]
    }

    /// A crm that was asked to delete something cannot be asked to keep it.
    fn cancellable(&self, _: &str, _: &AppWork) -> bool {
        false
    }

    async fn run(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<Next, Failure> {
        if step == CLUSTER {
            self.0.drop_unused_cluster(work, "DELETING auto-cluster inst", scope).await?;
            return Ok(Next::Done);
        }
        match self.0.ask_for(work, Verb::Delete, scope).await? {
            CrmOutcome::Done => Ok(Next::Done),
            CrmOutcome::LeftBusy => Ok(Next::Finish),
        }
    }

    async fn undo(&self, step: &str, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        if step == CLUSTER {
            return Ok(());
        }
        let (key, before) = (work.key(), state_of(work.before));
        let restored = self.0.restore::<AppInst>(scope, &key, before, &work.errors_before).await?;
        match self.0.state_now::<AppInst>(&key).await? {
            // The crm was faster: then its cluster goes as well.
            TrackedState::NotPresent if !self.0.is_taken_over(scope.id()) => {
                self.0.drop_unused_cluster(work, "DELETING auto-cluster inst", scope).await?;
            }
            TrackedState::Ready if restored => {
                scope.say("Recreating AppInst due to failure");
                scope.say("Created successfully");
            }
            _ if restored => scope.say("Recreating AppInst due to failure"),
            _ => {}
        }
        Ok(())
    }
}

impl Core {
    pub(crate) async fn begin_delete_app(
        &self,
        by: Initiator<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        let key = &plan::meant_key(request);
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty();
        let asked = core::InstanceRequest { verb: Verb::Delete, request, cloudlet };
        self.begin::<DeleteAppInst, AppInst, _, _>(by, asked, |tx| async move {
            let (existing, cloudlet, info) = read_row(&tx, key).await?;
            plan::delete(request, key, existing.as_ref(), cloudlet.as_ref(), info.as_ref())?;
            let work = AppWork::of(request, key, existing.as_ref());
            if let Some(mut inst) = existing {
                if work.ignores_crm() {
                    inst.remove(&tx).await?;
                } else {
                    inst.set_state(TrackedState::DeleteRequested);
                    usage::put(&tx, inst)?;
                }
            }
            Ok((work, Vec::new()))
        })
        .await
    }
}
