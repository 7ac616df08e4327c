//! Certificate authorities of clusters that are replaced.

use selvage_api::cnct::kaas::api::ClusterStatus;

use super::{
    Manager,
    change::{check_awake, check_present},
};
use crate::{
    Caller, Error, Result, conditions,
    pki::STAGES,
    plan::Snapshot,
    record::{AuthorityRecord, Cluster},
};

impl Manager {
    /// Begins to replace the authorities of a cluster. Asking again while that goes on
    /// changes nothing.
    pub async fn rotate(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        let snapshot = self.owned(caller, name)?;
        if snapshot.cluster.authorities.is_rotating() {
            return Ok(snapshot);
        }
        check_rotatable(&snapshot)?;
        // The new ones are stored before anything refers to them.
        self.inner.dependencies.keyring.prepare(&snapshot.cluster).await?;
        let who = &caller.name;
        self.edit(name, |snapshot, now| {
            if snapshot.cluster.authorities.is_rotating() {
                return Ok(());
            }
            check_rotatable(snapshot)?;
            let cluster = &mut snapshot.cluster;
            let AuthorityRecord { generation, stage, .. } = cluster.authorities;
            cluster.authorities =
                AuthorityRecord { generation, stage: stage + 1, target: stage + STAGES };
            let text = format!("{who} asked for new certificate authorities");
            cluster.add_event(now, text);
            Ok(())
        })
        .await
    }

    /// Forgets the authorities that were replaced.
    pub(super) async fn end_rotation(&self, snapshot: &Snapshot) -> Result<()> {
        let generation = snapshot.cluster.authorities.generation + 1;
        let keyring = &self.inner.dependencies.keyring;
        keyring.advance(&snapshot.cluster, generation).await?;
        let now = self.now();
        let ended = |cluster: &mut Cluster| {
            if cluster.authorities.generation + 1 == generation {
                cluster.authorities = AuthorityRecord::settled(generation);
                let text = "the old certificate authorities are gone: fetch kubeconfigs anew";
                cluster.add_event(now, text);
            }
            Ok::<_, selvage_store::Error>(())
        };
        self.inner.clusters.update(&snapshot.cluster.name, ended).await?;
        Ok(())
    }
}

fn check_rotatable(snapshot: &Snapshot) -> Result<()> {
    check_present(snapshot)?;
    check_awake(snapshot)?;
    let status = conditions::status(&snapshot.cluster.conditions);
    if status == ClusterStatus::Running && !snapshot.cluster.paused {
        return Ok(());
    }
    let (name, status) = (&snapshot.cluster.name, status.as_str_name());
    let status = if snapshot.cluster.paused { "paused" } else { status };
    let text =
        format!("cluster {name:?} is {status}: its certificates can be rotated when it is RUNNING");
    Err(Error::Precondition(text))
}
