//! Changes of which machines there are: records only, one transaction.

use std::collections::{BTreeMap, BTreeSet};

use selvage_store::{Transaction, clock::Millis, transact};

use super::Manager;
use crate::{
    Error, Result,
    plan::{Action, Snapshot},
    record::{Cluster, Machine, Phase, Pki, Pool, Tombstone, Versions, machine_key, pool_key},
    validate::CONTROL_PLANE,
};

/// Records that one transaction changes at most.
const AT_ONCE: usize = 40;
/// Letters and digits that are not mistaken for others.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;

impl Manager {
    /// Does what the planner says about records. False if the cluster was
    /// changed meanwhile, so that the plan no longer holds.
    pub(super) async fn change_members(
        &self,
        snapshot: &Snapshot,
        actions: &[Action],
    ) -> Result<bool> {
        if actions.contains(&Action::Finish) {
            return self.forget(snapshot).await;
        }
        let actions = &actions[..actions.len().min(AT_ONCE)];
        let now = self.now();
        let changed = transact(&self.inner.store, async |tx| {
            let Some(mut cluster) = current(&tx, snapshot).await? else { return Ok(false) };
            let mut taken: BTreeSet<u32> =
                snapshot.machines.iter().map(|machine| machine.index).collect();
            for action in actions {
                change(&tx, snapshot, action, &mut taken, now).await?;
            }
            for action in actions {
                match action {
                    Action::Replace { machine } => {
                        cluster.add_event(now, format!("{machine} is dead and is replaced"));
                    }
                    Action::SetAuthorityStage { stage } => {
                        cluster.authorities.stage = *stage;
                        cluster.add_event(now, format!("certificates: {action}"));
                    }
                    _ => {}
                }
            }
            cluster.membership += 1;
            tx.put(&cluster)?;
            Ok::<_, Error>(true)
        })
        .await?;
        self.inner.clusters.wait_for(changed.revision).await?;
        self.inner.pools.wait_for(changed.revision).await?;
        self.inner.machines.wait_for(changed.revision).await?;
        Ok(changed.value)
    }

    /// The cluster is gone; what is left says that it was there.
    async fn forget(&self, snapshot: &Snapshot) -> Result<bool> {
        let cluster = &snapshot.cluster;
        let tombstone = Tombstone {
            name: cluster.name.clone(),
            uid: cluster.uid.clone(),
            organisation: cluster.organisation.clone(),
            created_by: cluster.created_by.clone(),
            created_at: cluster.created_at,
            gone_at: self.now(),
        };
        let forgotten = transact(&self.inner.store, async |tx| {
            if current(&tx, snapshot).await?.is_none() {
                return Ok(false);
            }
            for pool in &snapshot.pools {
                let key = pool_key(&pool.cluster, &pool.name);
                if tx.get::<Pool>(&key).await?.is_some() {
                    tx.delete::<Pool>(&key).await?;
                }
            }
            if tx.get::<Pki>(&cluster.uid).await?.is_some() {
                tx.delete::<Pki>(&cluster.uid).await?;
            }
            tx.delete::<Cluster>(&cluster.name).await?;
            tx.put(&tombstone)?;
            Ok::<_, Error>(true)
        })
        .await?;
        self.inner.clusters.wait_for(forgotten.revision).await?;
        self.inner.pools.wait_for(forgotten.revision).await?;
        if forgotten.value {
            self.forget_keys(&cluster.uid);
            tracing::info!(cluster = cluster.name, "cluster is gone");
        }
        Ok(forgotten.value)
    }
}

/// The cluster, if it is still the one that was planned for.
async fn current(tx: &Transaction, planned: &Snapshot) -> Result<Option<Cluster>> {
    let planned = &planned.cluster;
    let stored = tx.get::<Cluster>(&planned.name).await?;
    Ok(stored.filter(|stored| {
        stored.uid == planned.uid
            && stored.generation == planned.generation
            && stored.membership == planned.membership
    }))
}

async fn change(
    tx: &Transaction,
    snapshot: &Snapshot,
    action: &Action,
    taken: &mut BTreeSet<u32>,
    now: Millis,
) -> Result<()> {
    let cluster = &snapshot.cluster.name;
    match action {
        Action::Add { pool, wanted } => {
            let index = (0..).find(|index| !taken.contains(index)).unwrap_or_default();
            taken.insert(index);
            let machine = Machine { index, ..new_machine(snapshot, pool, wanted, now) };
            tx.create(&machine).await?;
        }
        Action::Remove { machine } => {
            if let Some(mut record) = tx.get::<Machine>(&machine_key(cluster, machine)).await? {
                record.removing = true;
                record.retry_at = 0;
                tx.put(&record)?;
            }
        }
        Action::Replace { machine } => {
            if let Some(mut record) = tx.get::<Machine>(&machine_key(cluster, machine)).await? {
                record.fail("its agent is away and its node is not ready", now);
                tx.put(&record)?;
            }
        }
        Action::Retarget { machine, wanted } => {
            if let Some(mut record) = tx.get::<Machine>(&machine_key(cluster, machine)).await? {
                record.wanted = wanted.clone();
                tx.put(&record)?;
            }
        }
        Action::SetMachineStage { machine, stage } => {
            if let Some(mut record) = tx.get::<Machine>(&machine_key(cluster, machine)).await? {
                record.wanted.authority_stage = *stage;
                tx.put(&record)?;
            }
        }
        Action::ForgetPool { pool } => {
            let key = pool_key(cluster, pool);
            if tx.get::<Pool>(&key).await?.is_some() {
                tx.delete::<Pool>(&key).await?;
            }
        }
        Action::Finish
        | Action::Backup { .. }
        | Action::SetAuthorityStage { .. }
        | Action::ForgetAuthorities { .. }
        | Action::Step { .. } => {}
    }
    Ok(())
}

fn new_machine(snapshot: &Snapshot, pool: &str, wanted: &Versions, now: Millis) -> Machine {
    let cluster = &snapshot.cluster;
    let of_pool = snapshot.pools.iter().find(|known| known.name == pool);
    let (instance_type, mut labels) = match of_pool {
        Some(pool) => (pool.instance_type.clone(), pool.labels.clone()),
        None => (cluster.control_plane.instance_type.clone(), cluster.control_plane.labels.clone()),
    };
    own_labels(&mut labels, pool, &instance_type);
    let suffix: String =
        std::iter::repeat_with(|| char::from(LETTERS[rand::random_range(0..LETTERS.len())]))
            .take(SUFFIX)
            .collect();
    let prefix = if pool.is_empty() { CONTROL_PLANE } else { pool };
    let mut machine = Machine {
        cluster: cluster.name.clone(),
        name: format!("{prefix}-{suffix}"),
        pool: pool.to_owned(),
        instance_type,
        operation: format!("{}-{}", cluster.name, uuid::Uuid::new_v4().simple()),
        wanted: wanted.clone(),
        labels,
        created_at: now,
        ..Machine::default()
    };
    machine.enter(Phase::Requested, "", now);
    machine
}

/// Labels that every node has, whatever its owner asks for.
fn own_labels(labels: &mut BTreeMap<String, String>, pool: &str, instance_type: &str) {
    if !pool.is_empty() {
        labels.insert("node-pool".into(), pool.to_owned());
    }
    if !instance_type.is_empty() {
        for key in ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"] {
            labels.insert(key.into(), instance_type.to_owned());
        }
    }
}
