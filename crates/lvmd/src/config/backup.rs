//! The part of the configuration that is about backups.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

/// Folder in which the original keeps its state.
const DEFAULT_WORKDIR: &str = "/var/topolvm";
/// Initial room for changes of a snapshot, in percent of its volume.
const DEFAULT_CHANGE_ROOM: u64 = 10;

/// Settings of backups. Without them there are none.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Backup {
    /// Holds the state of backups, and `credentials/NAME`.
    pub workdir: PathBuf,
    /// Folder of `file:` repositories. None: there are no such.
    pub directory: Option<PathBuf>,
    /// Refuses object stores whose certificate is not to be checked.
    pub require_tls_verify: bool,
    /// Holds the passphrase of requests without one.
    pub encryption_key_file: Option<PathBuf>,
    /// Seconds for which a failure is told before another call begins anew.
    pub error_hold: u64,
    /// Seconds for which a job tries a request again to an object store that is
    /// away.
    pub retry_for: u64,
    /// Seconds for which work of a process that ended waits for somebody who
    /// brings the credentials again.
    pub resume_hold: u64,
    /// Number of jobs that work at a time; others wait.
    pub jobs: usize,
    /// One backup in so many reads the whole volume, whatever is known to be
    /// unchanged.
    pub full_every: u32,
    /// Room for changes of a thick volume while it is backed up, in percent.
    pub change_room: u64,
    /// A volume whose restore failed stays, marked, for a closer look.
    pub keep_failed_restore: bool,
}

impl Default for Backup {
    fn default() -> Self {
        Self {
            workdir: DEFAULT_WORKDIR.into(),
            directory: None,
            require_tls_verify: false,
            encryption_key_file: None,
            error_hold: 60,
            retry_for: 15 * 60,
            resume_hold: 600,
            jobs: 2,
            full_every: 10,
            change_room: DEFAULT_CHANGE_ROOM,
            keep_failed_restore: false,
        }
    }
}

impl Backup {
    pub(crate) fn error_hold(&self) -> Duration {
        Duration::from_secs(self.error_hold)
    }

    pub(crate) fn retry_for(&self) -> Duration {
        Duration::from_secs(self.retry_for)
    }

    pub(crate) fn resume_hold(&self) -> Duration {
        Duration::from_secs(self.resume_hold)
    }

    /// Finds the first thing that is wrong.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.jobs == 0 {
            return Err("backup.jobs should be 1 or more".into());
        }
        if self.full_every == 0 {
            return Err("backup.full-every should be 1 or more".into());
        }
        if !(1..=100).contains(&self.change_room) {
            return Err("backup.change-room should be from 1 to 100".into());
        }
        if self.workdir.as_os_str().is_empty() {
            return Err("backup.workdir should not be empty".into());
        }
        Ok(())
    }
}
