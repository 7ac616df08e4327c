//! Snapshots of clusters' etcd: taken, kept for a while, made clusters of.

use std::time::Duration;

use selvage_store::{clock::Millis, transact};

use super::{Manager, Origin, versions_of};
use crate::{
    Caller, Error, Result,
    caller::check_cluster_name,
    catalogue::Version,
    error::violation,
    plan::Snapshot,
    record::{AuthorityRecord, BY_CLUSTER, Backup, BackupTrigger, Cluster, Pki, Pool},
    validate::{self, NewCluster},
};

/// Between an attempt that failed and the next.
const RETRY: Duration = Duration::from_secs(30);

impl Manager {
    /// Takes a snapshot because somebody asked for it.
    pub async fn backup(&self, caller: &Caller, name: &str) -> Result<Backup> {
        let snapshot = self.find(name)?;
        caller.check_owns(&snapshot.cluster)?;
        let reason = format!("{} asked for it", caller.name);
        self.take_backup(&snapshot, BackupTrigger::Asked, reason).await
    }

    /// Snapshots that the caller may know of, of one cluster or of all, oldest
    /// first.
    pub fn backups(&self, caller: &Caller, name: &str) -> Vec<Backup> {
        let stored = match name {
            "" => self.inner.backups.list(),
            name => self.inner.backups.by_index(BY_CLUSTER, name),
        };
        let backups = stored.iter().map(|stored| stored.value.clone());
        let mut backups: Vec<Backup> =
            backups.filter(|backup| caller.sees(&owner_of(backup))).collect();
        backups.sort_by(|a, b| (a.taken_at, &a.id).cmp(&(b.taken_at, &b.id)));
        backups
    }

    /// Removes a snapshot.
    pub async fn delete_backup(&self, caller: &Caller, id: &str) -> Result<()> {
        let backup = self.owned_backup(caller, id)?;
        self.remove_backup(&backup).await
    }

    fn owned_backup(&self, caller: &Caller, id: &str) -> Result<Backup> {
        let missing = || Error::BackupNotFound(id.to_owned());
        let backup = self.inner.backups.get(id).ok_or_else(missing)?.value.clone();
        match caller.check_owns(&owner_of(&backup)) {
            Err(Error::ClusterNotFound(_)) => Err(missing()),
            other => other.map(|()| backup),
        }
    }

    /// Removes a snapshot from its repository, then from what is known.
    async fn remove_backup(&self, backup: &Backup) -> Result<()> {
        let vault = &self.inner.dependencies.vault;
        if backup.repository == vault.id().await? {
            vault.remove(&backup.snapshot).await?;
            self.inner.pruning.lock().removed = true;
        }
        self.forget_backup(&backup.id).await
    }

    pub(super) async fn forget_backup(&self, id: &str) -> Result<()> {
        match self.inner.backups.delete(id).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn take_backup(
        &self,
        snapshot: &Snapshot,
        occasion: BackupTrigger,
        reason: String,
    ) -> Result<Backup> {
        let cluster = &snapshot.cluster;
        if cluster.hibernated {
            return Err(Error::hibernated(cluster));
        }
        if !cluster.provisioned || cluster.deleting {
            let text = format!("cluster {:?} has no etcd to take a snapshot of", cluster.name);
            return Err(Error::Precondition(text));
        }
        let dependencies = &self.inner.dependencies;
        let (id, taken_at) = (new_id(&cluster.name, self.now()), self.now());
        let (vault, keyring) = (&dependencies.vault, &dependencies.keyring);
        let sealed_keys = keyring.sealed(cluster).await?;
        let mut writer =
            vault.create(&keyring.unseal(&cluster.name, &cluster.uid, &sealed_keys)?)?;
        let saved = dependencies.driver.save(snapshot, &mut writer).await;
        saved.map_err(|error| Error::Backup(error.to_string()))?;
        let written = writer.finish()?;
        let version = versions_of(snapshot).0.map_or_else(String::new, |found| found.to_string());
        let mut backup = Backup {
            id,
            cluster: cluster.name.clone(),
            uid: cluster.uid.clone(),
            organisation: cluster.organisation.clone(),
            taken_at,
            occasion: occasion.into(),
            reason,
            version,
            size: written.size,
            sealed_keys,
            control_plane: cluster.control_plane.clone(),
            pools: snapshot.pools.iter().filter(|pool| !pool.deleting).cloned().collect(),
            repository: vault.id().await?,
            snapshot: String::new(),
        };
        backup.snapshot = vault.store(written, &backup).await?;
        match self.inner.backups.create(backup.clone()).await {
            // Somebody looked into the repository in between.
            Ok(_) | Err(selvage_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let (cluster, size) = (&cluster.name, backup.size);
        tracing::info!(cluster, backup = backup.id, size, "snapshot of etcd taken");
        if let Err(error) = self.thin_out_backups(&backup).await {
            tracing::warn!(cluster, %error, "old backups stay for now");
        }
        Ok(backup)
    }

    /// Removes the oldest of those that were taken on the same occasion.
    async fn thin_out_backups(&self, newest: &Backup) -> Result<()> {
        let stored = self.inner.backups.by_index(BY_CLUSTER, &newest.cluster);
        let mut alike: Vec<Backup> = stored
            .iter()
            .map(|stored| stored.value.clone())
            .filter(|other| other.uid == newest.uid && other.occasion == newest.occasion)
            .collect();
        alike.sort_by_key(|backup| backup.taken_at);
        let surplus = alike.len().saturating_sub(self.inner.settings.snapshot_keep);
        for backup in &alike[..surplus] {
            self.remove_backup(backup).await?;
        }
        Ok(())
    }

    /// Takes the snapshot that an upgrade waits for; false if that failed. Before each
    /// version on its way but the first, for which it was done when the upgrade was asked
    /// for, it sees that nothing stands in the way.
    pub(super) async fn secure(&self, snapshot: &Snapshot, version: &str) -> Result<bool> {
        if !self.may_go_on(snapshot, version).await? {
            return Ok(false);
        }
        let reason = format!("before the upgrade to {version}");
        let taken = self.take_backup(snapshot, BackupTrigger::Upgrade, reason).await;
        let secured = taken.is_ok();
        self.note_backup(&snapshot.cluster.name, taken, |cluster| {
            cluster.backed_up_for = version.to_owned();
        })
        .await?;
        Ok(secured)
    }

    /// Returns whether an upgrade may go on to its next version; if not, it is asked again
    /// in a while.
    async fn may_go_on(&self, snapshot: &Snapshot, version: &str) -> Result<bool> {
        let cluster = &snapshot.cluster;
        let goes_on = cluster.path().skip(1).any(|later| later == version);
        let problem = match version.parse::<Version>() {
            Ok(to) if goes_on && !cluster.forced => {
                let checked = self.check_obstacles(snapshot, to).await;
                checked.err().map(|error| error.to_string()).unwrap_or_default()
            }
            _ => String::new(),
        };
        if problem.is_empty() && cluster.preflight_problem.is_empty() {
            return Ok(true);
        }
        let now = self.now();
        let updated = self.inner.clusters.update(&cluster.name, |cluster: &mut Cluster| {
            if !problem.is_empty() {
                cluster.backup_retry_at = now + millis(RETRY);
            }
            if cluster.preflight_problem != problem && !problem.is_empty() {
                cluster.add_event(now, format!("the upgrade waits: {problem}"));
            }
            cluster.preflight_problem.clone_from(&problem);
            Ok::<_, selvage_store::Error>(())
        });
        match updated.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(problem.is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a snapshot if it is time, and says when the next one is due.
    pub(super) async fn back_up_in_time(&self, name: &str) -> Result<Option<Duration>> {
        let interval = self.inner.settings.snapshot_interval;
        let Some(snapshot) = self.snapshot(name) else { return Ok(None) };
        let cluster = &snapshot.cluster;
        let works = cluster.provisioned && !cluster.deleting;
        if interval.is_zero() || !works || cluster.paused || cluster.hibernated {
            return Ok(None);
        }
        let stored = self.inner.backups.by_index(BY_CLUSTER, name);
        let taken = stored.iter().filter(|stored| stored.value.uid == cluster.uid);
        let last = taken.map(|stored| stored.value.taken_at).max().unwrap_or(cluster.created_at);
        let due = last.saturating_add(millis(interval)).max(cluster.backup_retry_at);
        if due > self.now() {
            return Ok(Some(self.until(due)));
        }
        let taken =
            self.take_backup(&snapshot, BackupTrigger::Schedule, "on schedule".into()).await;
        let next = if taken.is_ok() { interval } else { RETRY };
        self.note_backup(name, taken, |_| {}).await?;
        Ok(Some(next))
    }

    /// Writes down what came of a snapshot.
    async fn note_backup(
        &self,
        name: &str,
        taken: Result<Backup>,
        done: impl Fn(&mut Cluster),
    ) -> Result<()> {
        let now = self.now();
        let (problem, retry_at) = match &taken {
            Ok(_) => (String::new(), 0),
            Err(error) => (error.to_string(), now + millis(RETRY)),
        };
        let known = self.inner.clusters.get(name);
        let healthy = known.is_some_and(|known| known.value.backup_retry_at == 0);
        let scheduled = taken.as_ref().is_ok_and(|b| b.occasion() == BackupTrigger::Schedule);
        if scheduled && healthy {
            return Ok(());
        }
        let updated = self.inner.clusters.update(name, |cluster: &mut Cluster| {
            if let Ok(backup) = &taken {
                done(cluster);
                cluster
                    .add_event(now, format!("snapshot {} was taken {}", backup.id, backup.reason));
            } else if cluster.backup_problem != problem {
                cluster.add_event(now, format!("no snapshot of etcd could be taken: {problem}"));
            }
            cluster.backup_problem.clone_from(&problem);
            cluster.backup_retry_at = retry_at;
            Ok::<_, selvage_store::Error>(())
        });
        match updated.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a cluster of a snapshot: the one that it was taken of, if no other
    /// name is given.
    pub async fn restore(&self, caller: &Caller, id: &str, name: &str) -> Result<Snapshot> {
        let backup = self.owned_backup(caller, id)?;
        self.check_backup(&backup).await?;
        let version = self.runnable(&backup.version)?;
        let name = if name.is_empty() { backup.cluster.as_str() } else { name };
        let mut wrong = Vec::new();
        validate::check_name("name", name, &mut wrong);
        if !wrong.is_empty() {
            return Err(Error::Invalid(wrong));
        }
        match self.snapshot(name) {
            Some(known) if known.cluster.uid == backup.uid => {
                self.restore_in_place(caller, &backup).await
            }
            Some(_) => Err(Error::ClusterExists(name.to_owned())),
            None => self.restore_as_new(caller, &backup, name, version).await,
        }
    }

    /// Refuses a backup that is not there, before anything is given back for it.
    async fn check_backup(&self, backup: &Backup) -> Result<()> {
        let vault = &self.inner.dependencies.vault;
        let here = backup.repository == vault.id().await?;
        if here && vault.has(&backup.snapshot).await? {
            return Ok(());
        }
        let text = format!("backup {:?} is not in the repository (kaas.backup)", backup.id);
        Err(Error::Precondition(text))
    }

    /// The version, if machines can run it.
    fn runnable(&self, version: &str) -> Result<Version> {
        let parsed = version.parse::<Version>();
        let parsed =
            parsed.map_err(|error| Error::Invalid(vec![violation("id", error.to_string())]))?;
        let Some(release) = self.catalogue().find(parsed) else {
            let text = format!("the backup is of Kubernetes {version}, which is not on offer");
            return Err(Error::Precondition(text));
        };
        self.provider().lacks(release).map_or(Ok(parsed), |lack| Err(Error::Precondition(lack)))
    }

    async fn restore_in_place(&self, caller: &Caller, backup: &Backup) -> Result<Snapshot> {
        let who = &caller.name;
        self.edit(&backup.cluster, |snapshot, now| {
            super::change::check_present(snapshot)?;
            let cluster = &mut snapshot.cluster;
            cluster.add_event(now, format!("{who} asked for backup {} to be restored", backup.id));
            cluster.set_target(backup.version.clone(), Vec::new(), false);
            cluster.control_plane.clone_from(&backup.control_plane);
            cluster.restored_from.clone_from(&backup.id);
            cluster.restored_at = now;
            cluster.provisioned = false;
            cluster.paused = false;
            cluster.hibernated = false;
            cluster.endpoint.clear();
            Ok(())
        })
        .await
    }

    async fn restore_as_new(
        &self,
        caller: &Caller,
        backup: &Backup,
        name: &str,
        version: Version,
    ) -> Result<Snapshot> {
        let pools = backup.pools.iter().cloned();
        let pools = pools.map(|pool| Pool { cluster: name.to_owned(), ..pool }).collect();
        let new = NewCluster {
            name: name.to_owned(),
            version,
            control_plane: backup.control_plane.clone(),
            pools,
        };
        let organisation = backup.organisation.clone();
        check_cluster_name(&organisation, name)?;
        let new = (new, organisation);
        let mut snapshot = self.prepare(caller, &Origin::default(), new, Vec::new()).await?;
        let cluster = &mut snapshot.cluster;
        cluster.restored_from.clone_from(&backup.id);
        cluster.add_event(self.now(), format!("made of backup {}", backup.id));
        let keyring = &self.inner.dependencies.keyring;
        let (sealed, generation) = keyring.reseal(&backup.uid, &backup.sealed_keys, cluster)?;
        cluster.authorities = AuthorityRecord::settled(generation);
        let keys = Pki { uid: cluster.uid.clone(), sealed };
        let created = transact(&self.inner.store, async |tx| {
            self.reserve(&tx, &snapshot).await?;
            tx.create(&snapshot.cluster).await?;
            tx.create(&keys).await?;
            for pool in &snapshot.pools {
                tx.create(pool).await?;
            }
            Ok::<_, Error>(())
        })
        .await;
        let revision = match created {
            Ok(committed) => committed.revision,
            Err(Error::Store(selvage_store::Error::AlreadyExists { .. })) => {
                return Err(Error::ClusterExists(name.to_owned()));
            }
            Err(error) => return Err(error),
        };
        keyring.wait_for(revision).await?;
        self.inner.clusters.wait_for(revision).await?;
        self.inner.pools.wait_for(revision).await?;
        Ok(snapshot)
    }
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The cluster as far as it says whose the snapshot is.
fn owner_of(backup: &Backup) -> Cluster {
    let (name, organisation) = (backup.cluster.clone(), backup.organisation.clone());
    Cluster { name, organisation, ..Cluster::default() }
}

fn new_id(cluster: &str, now: Millis) -> String {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(now).unwrap_or(0)).unwrap_or_default();
    format!("{cluster}-{}-{:04x}", at.strftime("%Y%m%d-%H%M%S"), rand::random::<u16>())
}
