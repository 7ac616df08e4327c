//! The operation `DeleteClusterInst`: first the Apps that go with the cluster,
//! then the cluster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::edgeproto::{App, AppInst, AppKey, ClusterInst, DeleteType, TrackedState};
use selvage_store::Transaction;
use selvage_work::{Failure, Next, Operation, Scope, Subject};

use super::cluster_work::{ClusterWork, read_row};
use super::core::{Begun, Core, Initiator, InstanceRequest};
use super::error::{Error, Refusal};
use super::kind::Instance;
use super::plan::cluster as plan;
use super::state::{Verb, state_of};
use super::steps::Work;
use super::usage;
use crate::controller::Mode;
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::{Row, StoredObject, index};

/// Pause before a busy AppInst is tried again when its cluster is deleted.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct DeleteClusterInst(pub(super) Arc<Core>);

const APPS: &str = "apps";
const CLUSTER: &str = "cluster";

#[async_trait]
impl Operation for DeleteClusterInst {
    const KIND: &'static str = "DeleteClusterInst";
    type State = ClusterWork;

    fn steps(&self, _: &ClusterWork) -> Vec<&'static str> {
        vec![APPS, CLUSTER]
    }

    /// A crm that was asked to delete something cannot be asked to keep it.
    fn cancellable(&self, step: &str, _: &ClusterWork) -> bool {
        step == APPS
    }

    async fn run(
        &self,
        step: &str,
        work: &mut ClusterWork,
        scope: &Scope,
    ) -> Result<Next, Failure> {
        match step {
            APPS => self.delete_apps(work, scope).await?,
            _ => self.delete_cluster(work, scope).await?,
        }
        Ok(Next::Done)
    }

    async fn undo(&self, step: &str, work: &mut ClusterWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.key();
        let state = self.0.state_now::<ClusterInst>(&key).await?;
        let untouched = state == TrackedState::DeletePrepare;
        // What was only prepared goes back quietly, with the first step.
        if (step == APPS) != untouched || state == TrackedState::NotPresent {
            return Ok(());
        }
        let before = state_of(work.before);
        let restored =
            self.0.restore::<ClusterInst>(scope, &key, before, &work.errors_before).await?;
        if restored && !untouched {
            scope.say("Recreating ClusterInst due to failure");
        }
        Ok(())
    }
}

impl DeleteClusterInst {
    /// Deletes the AppInsts whose Apps want to go with their cluster.
    async fn delete_apps(&self, work: &ClusterWork, scope: &Scope) -> Result<(), Failure> {
        let deadline = scope.now().saturating_add(millis(self.0.timeout(Verb::Delete)));
        let insts = self.0.tables.find::<AppInst>(index::CLUSTER_INST, &work.key());
        for held in insts {
            let inst = &held.value.0;
            let app = &inst.object_key().app_or_empty().name;
            scope.say(format!("Autodeleting appinst {app}"));
            self.delete_app(inst, work.crm_override, deadline, scope).await.map_err(|failure| {
                match failure.interrupt() {
                    Some(_) => failure,
                    None => Error::AutoDelete {
                        cluster: work.cluster_key().cluster_or_empty().name.clone(),
                        reason: failure.to_string(),
                    }
                    .into(),
                }
            })?;
        }
        Ok(())
    }

    async fn delete_app(
        &self,
        inst: &AppInst,
        crm_override: i32,
        deadline: u64,
        scope: &Scope,
    ) -> Result<(), Failure> {
        let request = AppInst { key: inst.key.clone(), crm_override, ..Default::default() };
        let (engine, who) = (&scope.engine(), &scope.started_by());
        let by = Initiator { engine, who, mode: Mode::Real };
        loop {
            let begun = self.0.begin_delete_app(by, &request).await;
            let error = match begun {
                Ok(begun) => return super::relay(scope, begun).await,
                Err(refusal) => refusal.error,
            };
            match error {
                Error::KeyNotFound => return Ok(()),
                Error::AppInstBusyDelete if scope.now() < deadline => {
                    scope.pause(BUSY_PAUSE).await?;
                }
                error => return Err(error.into()),
            }
        }
    }

    async fn delete_cluster(&self, work: &ClusterWork, scope: &Scope) -> Result<(), Failure> {
        let key = work.key();
        let changes = self.0.tables.cluster_insts.subscribe_key(&key);
        let Some(asked_now) = self.request_deletion(work).await? else {
            return Ok(());
        };
        if work.ignores_crm() {
            return Ok(());
        }
        let pending = asked_now.then_some(changes);
        self.0.ask::<ClusterInst>(scope, &key, Verb::Delete, work.over(), pending).await?;
        Ok(())
    }

    /// Asks the crm, or removes the row if that is not to be asked. Says
    /// whether it was asked now or before; nothing if the row is gone.
    async fn request_deletion(&self, work: &ClusterWork) -> Result<Option<bool>, Failure> {
        let (key, over) = (&*work.key(), work.over());
        let committed = self
            .0
            .count(Mode::Real, work.cluster_key().cloudlet_or_empty(), |tx| async move {
                let found = tx.get::<Row<ClusterInst>>(key).await?;
                let Some(Row(mut inst)) = found else { return Ok(None) };
                match inst.state() {
                    TrackedState::DeletePrepare => {}
                    // By a run of this step that was cut short.
                    TrackedState::DeleteRequested | TrackedState::Deleting => {
                        return Ok(Some(false));
                    }
                    _ => return Err(Error::NotPrepared),
                }
                if over.ignores_crm() {
                    inst.remove(&tx).await?;
                } else {
                    inst.set_state(TrackedState::DeleteRequested);
                    tx.put(&Row(inst))?;
                }
                Ok(Some(true))
            })
            .await?;
        self.0.caught_up::<ClusterInst>(committed.revision).await?;
        Ok(committed.value)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Core {
    pub(crate) async fn begin_delete_cluster(
        &self,
        by: Initiator<'_>,
        request: &ClusterInst,
    ) -> Result<Begun, Refusal> {
        let cloudlet = request.object_key().cloudlet_or_empty();
        let asked = InstanceRequest { verb: Verb::Delete, request, cloudlet };
        self.begin::<DeleteClusterInst, ClusterInst, _, _>(by, asked, |tx| async move {
            let (existing, info) = read_row(&tx, request).await?;
            let in_use = is_in_use(&tx, request, None).await?;
            plan::delete(request, existing.as_ref(), info.as_ref(), in_use)?;
            let state = ClusterWork::of(request, existing.as_ref());
            if let Some(mut inst) = existing {
                inst.set_state(TrackedState::DeletePrepare);
                usage::put(&tx, inst)?;
            }
            Ok((state, Vec::new()))
        })
        .await
    }
}

/// Returns true if Apps run in a cluster that do not go with it. One App may be
/// left out of account. An App that is not there any more counts: nobody said
/// that it may go.
pub(super) async fn is_in_use(
    tx: &Transaction,
    cluster: &ClusterInst,
    besides: Option<&AppKey>,
) -> Result<bool, Error> {
    let refs = usage::cluster_refs(tx, cluster.object_key()).await?;
    for key in refs.apps.iter().filter(|key| Some(*key) != besides) {
        let app = usage::get::<App>(tx, &key.text()).await?;
        if app.is_none_or(|app| app.del_opt != i32::from(DeleteType::AutoDelete)) {
            return Ok(true);
        }
    }
    Ok(false)
}
