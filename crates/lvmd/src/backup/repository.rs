//! Looking after a repository: its locks, keys and figures, and how two backups
//! differ.

use selvage_api::selvage::volumes as wire;
use selvage_restic::{
    KeyInfo, Location, LockInfo, Repository, Secret, Selector, SnapshotFilter, VolumeStats,
};

use super::{Access, Backups, Error, Result, describe::timestamp, stored, wanted};

impl Backups {
    async fn repository(&self, access: &Access) -> Result<Repository> {
        access.open(&self.shared.config, &self.shared.limits, None).await
    }

    /// Removes locks that nobody holds any more, or all.
    pub(crate) async fn unlock(
        &self,
        access: &Access,
        all: bool,
    ) -> Result<wire::UnlockRepositoryResponse> {
        let unlocked = self.repository(access).await?.unlock(all).await?;
        for lock in &unlocked.removed {
            let (host, pid) = (&lock.lock.hostname, lock.lock.pid);
            let repository = access.repository_name();
            tracing::info!(repository, host, pid, "a lock was removed");
        }
        Ok(wire::UnlockRepositoryResponse {
            removed: unlocked.removed.iter().map(lock).collect(),
            left: unlocked.left.iter().map(lock).collect(),
        })
    }

    /// Counts what is in a repository.
    pub(crate) async fn stats(&self, access: &Access) -> Result<wire::RepositoryStats> {
        let stats = self.repository(access).await?.stats().await?;
        Ok(wire::RepositoryStats {
            backups: stats.snapshots,
            packs: stats.packs,
            stored_bytes: stats.stored,
            chunks: stats.chunks,
            chunk_bytes: stats.chunk_bytes,
            volume_bytes: stats.volume_bytes,
            volumes: stats.volumes.into_iter().map(volume_stats).collect(),
        })
    }

    /// Returns the keys that open a repository.
    pub(crate) async fn keys(&self, access: &Access) -> Result<Vec<wire::RepositoryKey>> {
        let keys = self.repository(access).await?.keys().await?;
        Ok(keys.into_iter().map(key).collect())
    }

    /// Adds a key to a repository.
    pub(crate) async fn add_key(
        &self,
        access: &Access,
        password: String,
    ) -> Result<wire::RepositoryKey> {
        let password = Secret::new(password);
        if password.is_empty() {
            return Err(Error::Missing("new_encryption_key"));
        }
        let added = self.repository(access).await?.add_key(&password).await?;
        tracing::info!(repository = access.repository_name(), key = %added.id.short(), "key added");
        Ok(key(added))
    }

    /// Removes a key from a repository.
    pub(crate) async fn delete_key(
        &self,
        access: &Access,
        id: &str,
    ) -> Result<wire::RepositoryKey> {
        if id.is_empty() {
            return Err(Error::Missing("id"));
        }
        let gone = self.repository(access).await?.remove_key(id).await?;
        tracing::info!(repository = access.repository_name(), key = %gone.id.short(), "key removed");
        Ok(key(gone))
    }

    /// Compares two backups of a volume.
    pub(crate) async fn diff(
        &self,
        access: &Access,
        older: &str,
        volume: &str,
        hostname: &str,
    ) -> Result<wire::DiffBackupsResponse> {
        if older.is_empty() {
            return Err(Error::Missing("older"));
        }
        let invalid = |reason: String| Error::Invalid { field: "older", reason };
        let named: Location = format!("any/repository{older}")
            .parse()
            .map_err(|error: selvage_restic::Error| invalid(error.to_string()))?;
        let Some(older) = named.snapshot else {
            return Err(invalid("put # before a snapshot, or @ before a name".to_owned()));
        };
        let given = named.volume.as_deref().unwrap_or(volume);
        let volume = access.source_volume(given)?.unwrap_or_default();
        let latest = Selector::Id("latest".into());
        let newer = access.location.snapshot.as_ref().unwrap_or(&latest);
        let repository = self.repository(access).await?;
        let asked = wanted(&volume, hostname);
        let newer = repository.select(newer, asked).await?;
        // Both are of one volume of one machine, also if only one of them says so.
        let by_id = matches!(&older, Selector::Id(id) if id != "latest");
        let same = SnapshotFilter {
            volume: asked.volume.or(newer.volume()),
            group: asked.group.or(newer.group().filter(|_| !by_id)),
            hostname: asked.hostname.or(Some(&*newer.hostname).filter(|_| !by_id)),
        };
        let older = repository.select(&older, same).await?;
        let changed = repository.diff(&older, &newer).await?;
        Ok(wire::DiffBackupsResponse {
            older: Some(stored(&older)),
            newer: Some(stored(&newer)),
            changed_bytes: changed.iter().map(|range| range.end - range.start).sum(),
            changed: changed
                .into_iter()
                .map(|range| wire::ByteRange {
                    offset: range.start,
                    length: range.end - range.start,
                })
                .collect(),
        })
    }
}

fn time(time: jiff::Timestamp) -> Option<prost_types::Timestamp> {
    timestamp(u64::try_from(time.as_millisecond()).unwrap_or_default())
}

fn lock(info: &LockInfo) -> wire::RepositoryLock {
    wire::RepositoryLock {
        id: info.id.to_string(),
        hostname: info.lock.hostname.clone(),
        username: info.lock.username.clone(),
        pid: info.lock.pid,
        exclusive: info.lock.exclusive,
        time: time(info.lock.time),
    }
}

fn key(info: KeyInfo) -> wire::RepositoryKey {
    wire::RepositoryKey {
        id: info.id.to_string(),
        hostname: info.hostname,
        username: info.username,
        created: info.created.and_then(time),
        current: info.current,
    }
}

fn volume_stats(from: VolumeStats) -> wire::VolumeStats {
    wire::VolumeStats {
        volume: from.volume,
        hostname: from.hostname,
        backups: from.snapshots,
        size_bytes: from.size,
        oldest: time(from.oldest),
        newest: time(from.newest),
        group: from.group.unwrap_or_default(),
    }
}
