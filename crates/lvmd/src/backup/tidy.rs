//! What work on backups left behind.

use super::{BACKUP_TAG, Backups, Kind, RESTORE_TAG, Shared, record::State};
use crate::{PENDING_TAG, Volume};

/// A volume of ours that no job knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) reason: &'static str,
    /// Nobody but us can have made it, and it is of no use.
    removable: bool,
}

impl Shared {
    fn is_running(&self, kind: Kind, operation: &str) -> bool {
        let found = self.jobs.by_index(super::record::OPERATION, operation);
        found.iter().any(|job| job.value.kind() == kind && job.value.state() == State::Running)
    }

    fn is_kept(&self, group: &str, name: &str) -> bool {
        let parents = self.parents.list();
        parents.iter().any(|parent| parent.value.group == group && parent.value.kept == name)
    }

    fn judge(&self, group: &str, volume: &Volume) -> Option<Left> {
        let marked = |mark: &str| volume.tags.iter().find_map(|tag| tag.strip_prefix(mark));
        let (reason, removable) = if let Some(operation) = marked(BACKUP_TAG) {
            if self.is_running(Kind::Backup, operation) || self.is_kept(group, &volume.name) {
                return None;
            }
            ("the snapshot of a backup that has ended", true)
        } else if let Some(operation) = marked(RESTORE_TAG) {
            if self.is_running(Kind::Restore, operation) {
                return None;
            }
            ("part of a restore that has ended", !self.config.keep_failed_restore)
        } else if volume.tags.iter().any(|tag| tag == PENDING_TAG) {
            ("its content is not complete, and nobody works on it", false)
        } else {
            return None;
        };
        Some(Left { group: group.to_owned(), name: volume.name.clone(), reason, removable })
    }
}

impl Backups {
    /// Volumes of ours that no job knows.
    pub(crate) fn orphans(&self) -> Vec<Left> {
        let groups = self.shared.volumes.groups();
        let judge = |name, volume| self.shared.judge(name, volume);
        groups
            .iter()
            .flat_map(|(name, group)| group.volumes.values().filter_map(move |v| judge(name, v)))
            .collect()
    }

    /// Removes those that are of no use, and forgets what was kept for
    /// volumes that are gone.
    pub(crate) async fn remove_orphans(&self) {
        for left in self.orphans().into_iter().filter(|left| left.removable) {
            let Left { group, name, reason, .. } = &left;
            tracing::warn!(group, volume = name, reason, "removing an orphan");
            let removed = match super::pick::class_of(&self.shared.volumes, group) {
                Ok(class) => self.shared.remove_volume(&class, name).await,
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(volume = name, error = error.text(), "it stays");
            }
        }
        self.forget_lost_volumes().await;
    }

    /// A snapshot that is kept for a volume goes with the volume.
    pub(crate) async fn forget_lost_volumes(&self) {
        let groups = self.shared.volumes.groups();
        for parent in self.shared.parents.list() {
            let parent = &parent.value;
            // A group that is away may come back.
            let Some(group) = groups.get(&parent.group) else { continue };
            if group.volumes.contains_key(&parent.volume) {
                continue;
            }
            if let Err(error) = self.shared.forget_parent(parent).await {
                tracing::warn!(volume = %parent.volume, error = error.text(), "a snapshot stays");
            }
        }
    }
}
