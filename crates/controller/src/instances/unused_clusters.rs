//! Auto-clusters that should have gone with their AppInst and did not.

use std::future::Future;
use std::time::Duration;

use selvage_api::edgeproto::{ClusterInst, ClusterInstKey};
use selvage_store::Record;
use selvage_work::{Failure, Interrupt, Scope};

use super::app_work::AppWork;
use super::core::{Begun, Core, Initiator};
use super::error::Error;
use crate::controller::Mode;
use crate::keys::KeyText;

/// Pause before a store that did not answer is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Treatment of the crm when an auto-cluster was to go, for whoever tries
/// again. StoredObject only if that was not the usual way.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct UnusedCluster {
    #[prost(string, tag = "1")]
    pub(super) cluster: String,
    #[prost(int32, tag = "2")]
    pub(super) crm_override: i32,
}

impl Record for UnusedCluster {
    const KIND: &'static str = "instance-leftover";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.cluster.clone()
    }
}

/// Tries again for as long as nothing but the store is in the way.
async fn despite_store<T, Fut>(
    scope: &Scope,
    mut attempt: impl FnMut() -> Fut,
) -> Result<Result<T, Error>, Interrupt>
where
    Fut: Future<Output = Result<T, Error>>,
{
    loop {
        match attempt().await {
            Err(error) if error.is_of_the_store() => {
                tracing::warn!(operation = scope.id(), %error, "tried again in a moment");
                scope.pause(STORE_PAUSE).await?;
            }
            result => return Ok(result),
        }
    }
}

impl Core {
    /// Deletes an auto-cluster that nobody uses or is about to use. That it
    /// cannot be is no failure of the AppInst's operation: whoever looks after
    /// clusters without Apps tries again.
    pub(super) async fn drop_unused_cluster(
        &self,
        work: &AppWork,
        says: &str,
        scope: &Scope,
    ) -> Result<(), Failure> {
        let (key, engine) = (work.cluster_key(), scope.engine());
        let besides = Some(scope.id());
        let unused =
            despite_store(scope, || self.is_unused_auto_cluster(&engine, key, besides)).await??;
        if !unused {
            return Ok(());
        }
        scope.say(says);
        match self.drop_cluster_now(work, scope).await {
            Err(failure) if failure.interrupt().is_none() => {
                tracing::warn!(cluster = key.text(), %failure, "auto-cluster stays for now");
                let keep = || self.remember_override(key, work.crm_override);
                Ok(despite_store(scope, keep).await??)
            }
            dropped => dropped,
        }
    }

    async fn drop_cluster_now(&self, work: &AppWork, scope: &Scope) -> Result<(), Failure> {
        let request = &ClusterInst {
            key: work.key.clone().and_then(|key| key.cluster_inst_key),
            crm_override: work.crm_override,
            ..Default::default()
        };
        let (engine, who) = (&scope.engine(), &scope.started_by());
        let by = Initiator { engine, who, mode: Mode::Real };
        let begin = || async move {
            let begun = self.begin_delete_cluster(by, request).await;
            begun.map_err(|refusal| refusal.error)
        };
        let begun: Begun = match despite_store(scope, begin).await? {
            // By an attempt that the store did not answer.
            Err(Error::KeyNotFound) => return Ok(()),
            begun => begun?,
        };
        // Followers of an undo are told of its reason, not of its course.
        if scope.undoing() {
            super::outlast(scope, begun).await
        } else {
            super::relay(scope, begun).await
        }
    }

    /// Keeps for later how the crm of an auto-cluster is to be treated.
    async fn remember_override(
        &self,
        key: &ClusterInstKey,
        crm_override: i32,
    ) -> Result<(), Error> {
        if crm_override != 0 {
            self.unused_clusters.put(UnusedCluster { cluster: key.text(), crm_override }).await?;
            return Ok(());
        }
        self.forget_override(&key.text()).await
    }

    pub(super) fn remembered_override(&self, cluster: &str) -> i32 {
        self.unused_clusters.get(cluster).map_or(0, |found| found.value.crm_override)
    }

    async fn forget_override(&self, cluster: &str) -> Result<(), Error> {
        match self.unused_clusters.delete(cluster).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets those that are gone by now.
    pub(super) async fn forget_overrides(&self) -> Result<(), Error> {
        for held in self.unused_clusters.list() {
            if self.tables.cluster_insts.get(&held.key).is_none() {
                self.forget_override(&held.key).await?;
            }
        }
        Ok(())
    }
}
