//! Leftovers of work on backups.

use super::{BACKUP_TAG, Backups, Kind, REPLACE_TAG, RESTORE_TAG, Shared, record::State};
use crate::{PENDING_TAG, Volume};

/// A volume of ours that no job knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orphan {
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
        parents
            .iter()
            .any(|parent| parent.value.group == group && parent.value.comparison_snapshot == name)
    }

    fn judge(&self, group: &str, volume: &Volume) -> Option<Orphan> {
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
        } else if let Some(operation) = marked(REPLACE_TAG) {
            if self.is_running(Kind::Restore, operation) {
                return None;
            }
            ("written over in part by a restore that has ended: restore it again", false)
        } else if volume.reverted_to().is_some() {
            if self.volumes.is_held(group, &volume.name) {
                return None;
            }
            ("reverted in part: unmount it, or revert it again", false)
        } else if volume.tags.iter().any(|tag| tag == PENDING_TAG) {
            ("its content is not complete, and nobody works on it", false)
        } else {
            return None;
        };
        Some(Orphan { group: group.to_owned(), name: volume.name.clone(), reason, removable })
    }
}

impl Backups {
    /// Volumes of ours that no job knows.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        let groups = self.shared.volumes.groups();
        let judge = |name, volume| self.shared.judge(name, volume);
        let known = groups
            .iter()
            .flat_map(|(name, group)| group.volumes.values().filter_map(move |v| judge(name, v)));
        let strays = self.shared.volumes.backend().strays().into_iter().map(|(group, name)| {
            let reason = "an image without a record: nobody knows what it is";
            Orphan { group, name, reason, removable: false }
        });
        known.chain(strays).collect()
    }

    /// Gives volumes their content back that a restore has written over in part,
    /// where that could not be done when it failed.
    async fn give_back_replaced(&self) {
        let groups = self.shared.volumes.groups();
        let volumes = groups.values().flat_map(|group| group.volumes.values());
        let marks = volumes.flat_map(|volume| volume.tags.iter());
        let operations = marks.filter_map(|tag| tag.strip_prefix(REPLACE_TAG));
        for job in operations.filter_map(|operation| self.find(operation).ok()) {
            if job.state() == State::Running {
                continue;
            }
            if let Err(error) = self.shared.give_back(&job).await {
                let (volume, error) = (job.full_name(), error.text());
                tracing::warn!(volume, error, "a volume does not have its content back yet");
            }
        }
    }

    /// Removes those that are of no use, and forgets what was kept for
    /// volumes that are gone.
    pub(crate) async fn remove_orphans(&self) {
        self.give_back_replaced().await;
        for left in self.orphans().into_iter().filter(|left| left.removable) {
            let Orphan { group, name, reason, .. } = &left;
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
        for good in self.shared.last_good.list() {
            let good = &good.value;
            let group = groups.get(&good.group);
            if group.is_none_or(|group| group.volumes.contains_key(&good.volume)) {
                continue;
            }
            if let Err(error) = self.shared.forget_last_good(good).await {
                tracing::warn!(volume = %good.volume, error = error.text(), "its age stays");
            }
        }
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
