//! The repository of backups: what others put there is known, what is gone is
//! forgotten, and what nobody needs is freed.

use std::collections::HashSet;

use selvage_store::clock::Millis;

use super::Manager;
use crate::{Result, record::Backup, vault::Stored};

/// Age from which a backup has to be in the repository's list.
const SETTLED: Millis = 3600 * 1000;
/// Between two times that space is freed.
const PRUNE_INTERVAL: Millis = 24 * 3600 * 1000;

/// Need to free space in the repository.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// True if backups were removed since the last time.
    pub(super) removed: bool,
    last: Option<Millis>,
}

impl Manager {
    /// Brings what is known of backups in line with the repository, if there is
    /// one. A controller that starts anew beside it finds all that an earlier one
    /// stored.
    pub async fn tend_backups(&self) -> Result<()> {
        let vault = &self.inner.dependencies.vault;
        if !vault.exists().await? {
            return Ok(());
        }
        let repository = vault.id().await?;
        let stored = vault.list().await?;
        let revision = self.inner.store.revision().await?;
        self.inner.backups.wait_for(revision).await?;
        for one in &stored {
            if self.inner.backups.get(&one.backup.id).is_none()
                && let Err(error) = self.adopt(&repository, one).await
            {
                tracing::warn!(backup = one.backup.id, %error, "cannot be used");
            }
        }
        self.forget_missing(&repository, &stored).await?;
        self.prune_in_time().await
    }

    /// Makes a backup known that another controller stored.
    async fn adopt(&self, repository: &str, found: &Stored) -> Result<()> {
        let dependencies = &self.inner.dependencies;
        let keys = dependencies.vault.keys(&found.snapshot).await?;
        let (cluster, uid) = (&found.backup.cluster, &found.backup.uid);
        let sealed_keys = dependencies.keyring.seal(cluster, uid, keys)?;
        let (repository, snapshot) = (repository.to_owned(), found.snapshot.clone());
        let backup = Backup { sealed_keys, repository, snapshot, ..found.backup.clone() };
        match self.inner.backups.create(backup).await {
            Ok(_) => tracing::info!(backup = found.backup.id, "found in the repository"),
            Err(selvage_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Forgets backups that somebody else removed.
    async fn forget_missing(&self, repository: &str, stored: &[Stored]) -> Result<()> {
        let here: HashSet<&str> = stored.iter().map(|one| one.snapshot.as_str()).collect();
        let settled = self.now().saturating_sub(SETTLED);
        for known in self.inner.backups.list() {
            let backup = &known.value;
            let expected = backup.repository == repository && backup.taken_at < settled;
            if expected && !here.contains(backup.snapshot.as_str()) {
                tracing::warn!(backup = backup.id, "is no longer in the repository");
                self.forget_backup(&backup.id).await?;
            }
        }
        Ok(())
    }

    async fn prune_in_time(&self) -> Result<()> {
        let now = self.now();
        {
            let mut pruning = self.inner.pruning.lock();
            let due = pruning.last.is_none_or(|last| now >= last + PRUNE_INTERVAL);
            if !pruning.removed || !due {
                return Ok(());
            }
            pruning.removed = false;
            pruning.last = Some(now);
        }
        Ok(self.inner.dependencies.vault.prune().await?)
    }
}
