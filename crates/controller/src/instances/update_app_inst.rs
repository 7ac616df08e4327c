//! The operation `UpdateAppInst`.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto::AppInst;
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::app_work::{AppWork, read_row};
use super::core::{Begun, Core, Initiator, InstanceRequest};
use super::error::Refusal;
use super::plan::app as plan;
use super::revisions::{self, Cause};
use super::state::{Verb, state_of};
use super::usage;
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts};

pub(crate) struct UpdateAppInst(pub(super) Arc<Core>);

#[async_trait]
impl Operation for UpdateAppInst {
    const KIND: &'static str = "UpdateAppInst";
    type State = AppWork;

    fn steps(&self, _: &AppWork) -> Vec<&'static str> {
        vec!["update"]
    }

    async fn run(&self, _: &str, work: &mut AppWork, scope: &Scope) -> Result<Next, Failure> {
        self.0.ask_for(work, Verb::Update, scope).await?;
        Ok(Next::Done)
    }

    async fn undo(&self, _: &str, work: &mut AppWork, scope: &Scope) -> Result<(), Failure> {
        self.0.leave_failed::<AppInst>(scope, &work.key(), Verb::Update).await?;
        self.0.fail_revision(scope, work.app_inst_key()).await
    }
}

impl Core {
    pub(crate) async fn begin_update_app(
        &self,
        by: Initiator<'_>,
        request: &AppInst,
    ) -> Result<Begun, Refusal> {
        self.begin_revision(by, request, None).await
    }

    /// Begins to let an instance run an earlier revision; 0 is the one of before.
    pub(crate) async fn begin_roll_back(
        &self,
        by: Initiator<'_>,
        request: &AppInst,
        revision: u64,
    ) -> Result<Begun, Refusal> {
        self.begin_revision(by, request, Some(revision)).await
    }

    async fn begin_revision(
        &self,
        by: Initiator<'_>,
        request: &AppInst,
        back_to: Option<u64>,
    ) -> Result<Begun, Refusal> {
        let key = &plan::meant_key(request);
        let cause = &Cause { who: by.who, at: self.now(), back_to };
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty();
        let asked = InstanceRequest { verb: Verb::Update, request, cloudlet };
        self.begin::<UpdateAppInst, AppInst, _, _>(by, asked, |tx| async move {
            let (existing, _, info) = read_row(&tx, key).await?;
            let work = AppWork::of(request, key, existing.as_ref());
            let (mut after, notes) = plan::update(request, key, existing, info.as_ref())?;
            revisions::begin(&tx, &mut after, state_of(work.before), cause).await?;
            let limits = info.as_ref().filter(|_| self.settings.enforce_resources);
            usage::resize_volumes(&tx, &mut after, limits).await?;
            usage::resize_app(&tx, after, limits).await?;
            Ok((work, notes))
        })
        .await
    }
}
