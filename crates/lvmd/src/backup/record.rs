//! Stored records of work on backups. Times are milliseconds since 1970.
//!
//! Nothing that opens a repository is in here: of credentials only the name
//! is kept, where they have one.

use selvage_store::Record;

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unknown = 0,
    Backup = 1,
    Restore = 2,
    Verify = 3,
    Prune = 4,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum State {
    Unknown = 0,
    Running = 1,
    Complete = 2,
    Failed = 3,
}

/// Numbers of backups to keep.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Keep {
    #[prost(uint32, tag = "1")]
    pub(crate) last: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) hourly: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) daily: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) weekly: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) monthly: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) yearly: u32,
}

/// Location of a repository, without what opens it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StoredLocation {
    #[prost(string, tag = "1")]
    pub(crate) path: String,
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(bool, tag = "3")]
    pub(crate) skip_tls_verify: bool,
    #[prost(string, tag = "4")]
    pub(crate) http_proxy: String,
    #[prost(string, tag = "5")]
    pub(crate) https_proxy: String,
    /// The name of credentials that the machine has; empty if somebody
    /// brought them.
    #[prost(string, tag = "6")]
    pub(crate) credentials: String,
}

/// A job.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Job {
    #[prost(enumeration = "Kind", tag = "1")]
    pub(crate) kind: i32,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// The volume as it was asked for.
    #[prost(string, tag = "3")]
    pub(crate) handle: String,
    /// The operation that does it.
    #[prost(string, tag = "4")]
    pub(crate) operation: String,
    #[prost(enumeration = "State", tag = "5")]
    pub(crate) state: i32,
    #[prost(string, tag = "6")]
    pub(crate) group: String,
    #[prost(string, tag = "7")]
    pub(crate) class: String,
    #[prost(string, tag = "8")]
    pub(crate) volume: String,
    /// Of a volume to make.
    #[prost(uint64, tag = "9")]
    pub(crate) size: u64,
    #[prost(string, repeated, tag = "10")]
    pub(crate) tags: Vec<String>,
    /// In words.
    #[prost(string, tag = "11")]
    pub(crate) repository: String,
    /// Set where the machine has the credentials.
    #[prost(message, optional, tag = "12")]
    pub(crate) stored_location: Option<StoredLocation>,
    #[prost(string, tag = "13")]
    pub(crate) snapshot: String,
    /// Summary of what it did.
    #[prost(string, tag = "14")]
    pub(crate) message: String,
    #[prost(string, tag = "15")]
    pub(crate) error: String,
    /// gRPC's code of the error.
    #[prost(int32, tag = "16")]
    pub(crate) code: i32,
    #[prost(uint64, tag = "17")]
    pub(crate) started_at: u64,
    #[prost(uint64, tag = "18")]
    pub(crate) ended_at: u64,
    /// When the volume was frozen.
    #[prost(uint64, tag = "19")]
    pub(crate) frozen_at: u64,
    #[prost(uint64, tag = "20")]
    pub(crate) bytes: u64,
    #[prost(uint64, tag = "21")]
    pub(crate) read: u64,
    #[prost(uint64, tag = "22")]
    pub(crate) new: u64,
    #[prost(uint64, tag = "23")]
    pub(crate) stored: u64,
    #[prost(uint64, tag = "24")]
    pub(crate) uploaded: u64,
    #[prost(uint64, tag = "25")]
    pub(crate) downloaded: u64,
    #[prost(message, optional, tag = "26")]
    pub(crate) keep: Option<Keep>,
    #[prost(uint32, tag = "27")]
    pub(crate) read_percent: u32,
    #[prost(bool, tag = "28")]
    pub(crate) dry_run: bool,
    /// Selector of the request: `#snapshot` or `@name`, as it was written.
    #[prost(string, tag = "29")]
    pub(crate) selector: String,
    /// Difference from others of its kind and name: what was asked for.
    #[prost(string, tag = "30")]
    pub(crate) variant: String,
    /// Volume that the backup is of that is restored; empty if none was named.
    #[prost(string, tag = "31")]
    pub(crate) source_volume: String,
    /// The client's id of the request that began it.
    #[prost(string, tag = "32")]
    pub(crate) request_id: String,
    /// Which volume of that name it was; empty where volumes have no ids.
    #[prost(string, tag = "33")]
    pub(crate) volume_id: String,
    /// Only backups that were made on this machine, in a restore or a prune.
    #[prost(string, tag = "34")]
    pub(crate) hostname: String,
    /// The volume that the backup is of that is restored.
    #[prost(string, tag = "36")]
    pub(crate) restored_volume: String,
    /// True if the volume is read where it is, for there is no room for a snapshot.
    #[prost(bool, tag = "37")]
    pub(crate) in_place: bool,
    /// True if a restore writes over a volume that is there.
    #[prost(bool, tag = "38")]
    pub(crate) replace: bool,
    /// Snapshot of the volume as it was before that.
    #[prost(string, tag = "39")]
    pub(crate) safety_snapshot: String,
    /// True if it may have been stored already.
    #[prost(bool, tag = "41")]
    pub(crate) storing: bool,
    /// Backups that a prune is to remove, and those that it has removed before it was
    /// interrupted.
    #[prost(message, repeated, tag = "42")]
    pub(crate) planned: Vec<Forgotten>,
    /// True if a schedule began it: nobody is there who knows where the repository is.
    #[prost(bool, tag = "40")]
    pub(crate) scheduled: bool,
    /// Backups that went, or would go.
    #[prost(message, repeated, tag = "35")]
    pub(crate) forgotten: Vec<Forgotten>,
}

/// A backup that a prune removed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Forgotten {
    #[prost(string, tag = "1")]
    pub(crate) snapshot: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) volume: String,
    #[prost(string, tag = "4")]
    pub(crate) hostname: String,
    #[prost(uint64, tag = "5")]
    pub(crate) time: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) size: u64,
    #[prost(string, tag = "7")]
    pub(crate) group: String,
}

pub(crate) const OPERATION: &str = "operation";

/// The key of a job: what it does, to what, and under which name.
pub(crate) fn job_key(kind: Kind, handle: &str, name: &str) -> String {
    serde_json::json!([kind as i32, handle, name]).to_string()
}

/// The same where several of that name are told apart by what they are to do.
fn variant_key(kind: Kind, handle: &str, name: &str, variant: &str) -> String {
    match variant {
        "" => job_key(kind, handle, name),
        variant => serde_json::json!([kind as i32, handle, name, variant]).to_string(),
    }
}

/// Returns the kind of a job by its key.
pub(super) fn kind_of(key: &str) -> Option<Kind> {
    let parts: Vec<serde_json::Value> = serde_json::from_str(key).ok()?;
    let kind = i32::try_from(parts.first()?.as_i64()?).ok()?;
    Kind::try_from(kind).ok()
}

impl Job {
    /// Returns the name of the snapshot that its operation makes.
    pub(crate) fn snapshot_volume(&self) -> String {
        format!("snap-{}", self.operation)
    }

    /// Returns whether it ended in the last so many milliseconds. An end that is still to come
    /// was written down while the clock was wrong, and tells nothing.
    pub(crate) fn ended_within(&self, now: u64, milliseconds: u64) -> bool {
        self.ended_at <= now && now < self.ended_at.saturating_add(milliseconds)
    }

    /// Returns whether nobody else may work in the repository meanwhile.
    pub(crate) fn works_alone(&self) -> bool {
        let heals = self.kind() == Kind::Verify && !self.volume.is_empty();
        heals || self.kind() == Kind::Prune
    }

    /// The volume in words.
    pub(crate) fn full_name(&self) -> String {
        match (self.kind(), self.group.as_str()) {
            (Kind::Verify | Kind::Prune, "") => self.volume.clone(),
            (_, "") => self.handle.clone(),
            (_, group) => format!("{group}/{}", self.volume),
        }
    }
}

impl Record for Job {
    const KIND: &'static str = "volume-job";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        variant_key(self.kind(), &self.handle, &self.name, &self.variant)
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![(OPERATION, self.operation.clone())]
    }
}

/// The last backup of a volume in a repository: what the next one starts from.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Parent {
    #[prost(string, tag = "1")]
    pub(crate) group: String,
    #[prost(string, tag = "2")]
    pub(crate) volume: String,
    #[prost(string, tag = "3")]
    pub(crate) repository: String,
    /// Its snapshot in the repository.
    #[prost(string, tag = "4")]
    pub(crate) snapshot: String,
    /// The volume that still is as it was then; empty if none was kept.
    #[prost(string, tag = "5")]
    pub(crate) comparison_snapshot: String,
    /// Size of it.
    #[prost(uint64, tag = "6")]
    pub(crate) size: u64,
    /// Number of backups that went by without reading everything.
    #[prost(uint32, tag = "7")]
    pub(crate) since_full: u32,
    /// The snapshot in the repository that `comparison_snapshot` is the content of.
    #[prost(string, tag = "8")]
    pub(crate) comparison_of: String,
}

pub(crate) fn parent_key(group: &str, volume: &str, repository: &str) -> String {
    serde_json::json!([group, volume, repository]).to_string()
}

impl Record for Parent {
    const KIND: &'static str = "volume-parent";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        parent_key(&self.group, &self.volume, &self.repository)
    }
}

/// The last good backup of a volume. The record of its job is taken over by the next job of
/// that name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct LastGood {
    #[prost(string, tag = "1")]
    pub(crate) group: String,
    #[prost(string, tag = "2")]
    pub(crate) volume: String,
    /// Its snapshot in the repository.
    #[prost(string, tag = "3")]
    pub(crate) snapshot: String,
    /// When the volume was frozen.
    #[prost(uint64, tag = "4")]
    pub(crate) frozen_at: u64,
}

impl Record for LastGood {
    const KIND: &'static str = "volume-last-good";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        serde_json::json!([self.group, self.volume]).to_string()
    }
}

/// A backup that is made again and again.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Schedule {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) handle: String,
    #[prost(message, required, tag = "3")]
    pub(crate) location: StoredLocation,
    #[prost(uint64, tag = "4")]
    pub(crate) every: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) offset: u64,
    #[prost(message, optional, tag = "6")]
    pub(crate) keep: Option<Keep>,
    /// The period that was dealt with last.
    #[prost(uint64, tag = "7")]
    pub(crate) period: u64,
    /// The key of the last job,
    #[prost(string, tag = "8")]
    pub(crate) job: String,
    /// and whether what need not be kept was removed after it.
    #[prost(bool, tag = "9")]
    pub(crate) pruned: bool,
    #[prost(string, tag = "10")]
    pub(crate) error: String,
    /// The operation that prunes after the last job.
    #[prost(string, tag = "11")]
    pub(crate) prune: String,
    /// Seconds between two verifies; 0 for none.
    #[prost(uint64, tag = "12")]
    pub(crate) verify_every: u64,
    /// Percentage of packs that a verify reads.
    #[prost(uint32, tag = "13")]
    pub(crate) verify_read_percent: u32,
    /// End of the last verify, well or not.
    #[prost(uint64, tag = "14")]
    pub(crate) verified_at: u64,
    /// Result of the last verify, in a sentence.
    #[prost(string, tag = "15")]
    pub(crate) verify_report: String,
    /// True if the last verify failed.
    #[prost(bool, tag = "16")]
    pub(crate) verify_failed: bool,
    /// The operation that verifies.
    #[prost(string, tag = "17")]
    pub(crate) verify: String,
    /// The operation of the last job whose end was looked at.
    #[prost(string, tag = "18")]
    pub(crate) seen: String,
    /// Number of times that the backup of the period failed,
    #[prost(uint32, tag = "19")]
    pub(crate) failures: u32,
    /// and when it did last.
    #[prost(uint64, tag = "20")]
    pub(crate) failed_at: u64,
}

impl Record for Schedule {
    const KIND: &'static str = "volume-schedule";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// Limits of bytes a second. There is one record.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Speeds {
    #[prost(uint64, tag = "1")]
    pub(crate) upload: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) download: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) read: u64,
}

impl Record for Speeds {
    const KIND: &'static str = "volume-speeds";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        "all".into()
    }
}
