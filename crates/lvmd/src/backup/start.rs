//! Beginning jobs, and finding those that were begun.

use std::sync::Arc;

use selvage_restic::{Id, Selector};
use selvage_store::{Record, transact};
use selvage_work::{Handle, Prepared};

use super::{
    Access, Backups, Error, Keep, Kind, Result, Shared, StoredLocation, pick,
    record::{Job, State},
    split, work,
};
use crate::config;

/// For how long it is taken for granted, once a backup is done, that it is in
/// its repository, in milliseconds.
const FRESH: u64 = 5 * 60 * 1000;

/// Outcome of asking for a job.
enum Started {
    New(Box<Prepared>),
    Existing(Box<Job>),
}

/// Origin of a request for a backup.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A client of lvmd, who asks with the same words how it goes.
    Poll,
    /// One of our own, by the id of its request, which may be empty.
    Request(&'a str),
    /// A schedule, by the id of its request.
    Schedule(&'a str),
}

/// When a job that is known is the answer.
#[derive(Debug, Clone)]
enum Repeat<'a> {
    /// While it runs.
    Running,
    /// While it runs, is done, or has just failed; not if it is this one, which
    /// is not true any more.
    Settled { outdated: Option<String> },
    /// If it was begun by this request, and it stands as above. Another may not be under
    /// way.
    Request { id: &'a str, outdated: Option<String> },
}

/// Options of a prune.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pruning<'a> {
    pub(crate) keep: Option<Keep>,
    /// Only backups of this volume, `NAME` or `GROUP/NAME`, are judged; of all, if it is
    /// empty.
    pub(crate) volume: &'a str,
    /// Only those that were made on this machine; on all, if it is empty.
    pub(crate) hostname: &'a str,
    pub(crate) dry_run: bool,
}

/// A volume to make of a backup.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewRestore {
    pub(crate) class: String,
    pub(crate) volume: String,
    /// 0 for that of the backup.
    pub(crate) size: u64,
    pub(crate) tags: Vec<String>,
    /// The volume that the backup is of; empty for the only one.
    pub(crate) source_volume: String,
    /// The machine that it was made on; empty for this one, or the only one.
    pub(crate) source_hostname: String,
    /// Writes over the volume of that name.
    pub(crate) replace: bool,
}

impl Backups {
    /// Begins a backup, or tells of the one that was asked for before. To those
    /// who poll, a failure that is not new begins it again.
    pub(crate) async fn backup(
        &self,
        name: &str,
        handle: &str,
        access: Access,
        stored_location: Option<StoredLocation>,
        origin: Origin<'_>,
        who: &str,
    ) -> Result<Job> {
        if name.is_empty() {
            return Err(Error::Missing("name"));
        }
        if name.chars().any(|c| c.is_control() || c == ',') {
            let reason = "a name cannot have control characters or commas".to_owned();
            return Err(Error::Invalid { field: "name", reason });
        }
        let mut job = self.new_job(Kind::Backup, name, handle, &access, stored_location);
        self.until_cancelled(&job.key()).await;
        let known = self.shared.jobs.get(&job.key()).map(|stored| stored.value.clone());
        let picked = pick::volume(&self.shared.volumes, handle);
        if let Ok(picked) = &picked {
            (job.group, job.class) = (picked.group.clone(), picked.class.clone());
            job.volume.clone_from(&picked.volume.name);
            job.volume_id.clone_from(&picked.volume.id);
        }
        let is_outdated = match (&known, origin) {
            (None, _) => false,
            // Keys that were put right are used at once.
            (Some(known), Origin::Poll) if known.state() == State::Failed => {
                self.shared.keychain.failed_with_others(&job.key(), &access)
            }
            (Some(known), Origin::Request(id) | Origin::Schedule(id))
                if id.is_empty() || known.request_id != id =>
            {
                false
            }
            (Some(known), _) => self.is_outdated(known, &job, &access).await?,
        };
        let outdated = known.as_ref().filter(|_| is_outdated).map(|known| known.operation.clone());
        let repeat = match origin {
            Origin::Request(id) | Origin::Schedule(id) => {
                id.clone_into(&mut job.request_id);
                job.scheduled = matches!(origin, Origin::Schedule(_));
                Repeat::Request { id, outdated }
            }
            Origin::Poll => Repeat::Settled { outdated },
        };
        // What was done stays done, also when the volume is gone.
        let stands = known.as_ref().is_some_and(|known| repeat.stands(&self.shared, known));
        match picked {
            Err(error) if !stands => Err(error),
            _ => self.begin(job, access, &repeat, who).await,
        }
    }

    /// Returns whether a backup that is done is not what a caller means who asks for it
    /// now: the volume is another one, or the backup was removed.
    async fn is_outdated(&self, known: &Job, now: &Job, access: &Access) -> Result<bool> {
        let old = !known.ended_within(self.shared.clock.now(), FRESH);
        if known.state() != State::Complete || known.repository != now.repository {
            return Ok(false);
        }
        if [&known.volume_id, &now.volume_id].iter().all(|id| !id.is_empty())
            && known.volume_id != now.volume_id
        {
            return Ok(true);
        }
        if !old {
            return Ok(false);
        }
        let Ok(id) = known.snapshot.parse::<Id>() else { return Ok(true) };
        use selvage_restic::Error::{MissingFile, NoRepository};
        let repository = match access.open(&self.shared.config, &self.shared.limits, None).await {
            Err(Error::Repository(NoRepository(_))) => return Ok(true),
            repository => repository?,
        };
        match repository.snapshot(id).await {
            Err(MissingFile(_)) => Ok(true),
            snapshot => Ok(snapshot.map(|_| false)?),
        }
    }

    /// Begins to make a volume of a backup, or tells of the job that does.
    pub(crate) async fn restore(
        &self,
        new: NewRestore,
        access: Access,
        stored_location: Option<StoredLocation>,
        who: &str,
    ) -> Result<Job> {
        let volumes = &self.shared.volumes;
        let classes = volumes.classes();
        let class = classes.find(&new.class)?;
        crate::names::check_name(&new.volume)?;
        new.tags.iter().try_for_each(|tag| crate::names::check_tag(tag))?;
        let group = class.volume_group.clone();
        let handle = format!("{group}/{}", new.volume);
        let mut job = self.new_job(Kind::Restore, "", &handle, &access, stored_location);
        self.until_cancelled(&job.key()).await;
        let running = self.running(&job.key());
        let there = volumes.find(&class.name, &new.volume);
        if running.is_none() {
            match (&there, new.replace) {
                (Ok(_), false) => {
                    return Err(crate::Error::Exists { group, name: new.volume }.into());
                }
                (Ok(volume), true) => check_replaceable(volume, &group, &new).await?,
                (Err(_), true) => return Err(crate::Error::VolumeNotFound(new.volume).into()),
                (Err(_), false) => {}
            }
        }
        job.selector = match &access.location.snapshot {
            Some(Selector::Id(id)) => format!("#{id}"),
            Some(Selector::Name(name)) => format!("@{name}"),
            None => "#latest".into(),
        };
        job.source_volume = access.source_volume(&new.source_volume)?.unwrap_or_default();
        job.hostname = new.source_hostname;
        (job.group, job.class, job.volume) = (group, class.name.clone(), new.volume);
        (job.size, job.tags) = (new.size, new.tags);
        if let Some(volume) = there.ok().filter(|_| new.replace) {
            (job.replace, job.size) = (true, volume.size);
            // What is made beside it belongs to its own class.
            let own = |it: &&config::DeviceClass| it.volume_group == job.group && it.holds(&volume);
            if let Some(own) = classes.all().iter().find(own) {
                job.class.clone_from(&own.name);
            }
        }
        // A volume of that name may have come and gone since the last time.
        self.begin(job, access, &Repeat::Running, who).await
    }

    /// Begins to look whether a repository is sound.
    pub(crate) async fn verify(
        &self,
        access: Access,
        stored_location: Option<StoredLocation>,
        read_percent: u32,
        heal_from: &str,
        who: &str,
    ) -> Result<Job> {
        if read_percent > 100 {
            let reason = "there are no more than 100".to_owned();
            return Err(Error::Invalid { field: "read_percent", reason });
        }
        let mut job =
            self.new_job(Kind::Verify, "", &access.repository_name(), &access, stored_location);
        if !heal_from.is_empty() {
            let picked = pick::volume(&self.shared.volumes, heal_from)?;
            (job.group, job.class) = (picked.group, picked.class);
            job.volume = picked.volume.name;
        }
        job.read_percent = read_percent;
        job.variant = serde_json::json!([read_percent, job.group, job.volume]).to_string();
        self.until_cancelled(&job.key()).await;
        self.begin(job, access, &Repeat::Running, who).await
    }

    /// Begins to remove what need not be kept. One that is asked for while
    /// another is under way waits for its turn, unless it is the same.
    pub(crate) async fn prune(
        &self,
        access: Access,
        stored_location: Option<StoredLocation>,
        what: Pruning<'_>,
        who: &str,
    ) -> Result<Job> {
        let Pruning { keep, volume, hostname, dry_run } = what;
        if keep.is_some_and(|keep| keep == Keep::default()) {
            let reason = "a rule that keeps nothing would remove every backup".to_owned();
            return Err(Error::Invalid { field: "keep", reason });
        }
        let mut job =
            self.new_job(Kind::Prune, "", &access.repository_name(), &access, stored_location);
        (job.keep, job.dry_run) = (keep, dry_run);
        let (group, name) = split(volume);
        group.unwrap_or_default().clone_into(&mut job.group);
        (job.volume, job.hostname) = (name.to_owned(), hostname.to_owned());
        let rules = keep.map(|keep| {
            let Keep { last, hourly, daily, weekly, monthly, yearly } = keep;
            [last, hourly, daily, weekly, monthly, yearly]
        });
        job.variant = serde_json::json!([volume, hostname, dry_run, rules]).to_string();
        self.until_cancelled(&job.key()).await;
        self.begin(job, access, &Repeat::Running, who).await
    }

    /// The job that an operation does, or did.
    pub(crate) fn find(&self, operation: &str) -> Result<Job> {
        let found = self.shared.jobs.by_index(super::record::OPERATION, operation);
        let found = found.first().map(|stored| stored.value.clone());
        let found = found.or_else(|| self.shared.ended.find(operation));
        found.ok_or_else(|| Error::NoJob(operation.to_owned()))
    }

    /// Follows an operation.
    pub(crate) fn attach(&self, job: &Job) -> Result<Handle> {
        Ok(self.engine.attach(&job.operation)?)
    }

    /// Asks for a job to be stopped.
    pub(crate) async fn cancel(&self, operation: &str, who: &str) -> Result<Job> {
        let job = self.find(operation)?;
        if job.state() == State::Running {
            match self.engine.cancel(operation, who).await {
                Ok(_) | Err(selvage_work::Error::Ended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.find(operation)
    }

    fn new_job(
        &self,
        kind: Kind,
        name: &str,
        handle: &str,
        access: &Access,
        stored_location: Option<StoredLocation>,
    ) -> Job {
        Job {
            kind: kind.into(),
            name: name.to_owned(),
            handle: handle.to_owned(),
            state: State::Running.into(),
            repository: access.repository_name(),
            stored_location,
            ..Job::default()
        }
    }

    /// Waits for the end of a job that is being cancelled, whose record may say so
    /// before its operation does. Whoever asks for the same now wants it done.
    async fn until_cancelled(&self, key: &str) {
        let Some(job) = self.shared.jobs.get(key).map(|stored| stored.value.clone()) else {
            return;
        };
        let Ok(handle) = self.attach(&job) else { return };
        if job.state() != State::Running || handle.operation().cancelling {
            let _ = handle.ended().await;
        }
    }

    fn running(&self, key: &str) -> Option<Job> {
        let job = self.shared.jobs.get(key)?.value.clone();
        (job.state() == State::Running).then_some(job)
    }

    /// Begins a job unless one that is known is the answer.
    async fn begin(&self, job: Job, access: Access, repeat: &Repeat<'_>, who: &str) -> Result<Job> {
        let (key, access) = (job.key(), Arc::new(access));
        // Before it begins, so that it need not wait.
        let offered = self.shared.keychain.offer(&key, &access);
        let begun = self.write(&key, &job, who, repeat).await;
        if offered && !matches!(&begun, Ok(Started::New(_))) && self.running(&key).is_none() {
            self.shared.keychain.drop_for(&key);
        }
        match begun? {
            Started::New(prepared) => {
                if !offered {
                    self.shared.keychain.put(&key, access);
                }
                let operation = prepared.id().to_owned();
                self.engine.launch(*prepared);
                self.find(&operation)
            }
            Started::Existing(known) => Ok(*known),
        }
    }

    /// Writes a job with its operation, unless one stands.
    async fn write(&self, key: &str, job: &Job, who: &str, repeat: &Repeat<'_>) -> Result<Started> {
        let committed = transact(&self.shared.store, |tx| async move {
            if let Some(known) = tx.get::<Job>(key).await? {
                let same = known.repository == job.repository
                    && known.selector == job.selector
                    && known.source_volume == job.source_volume
                    && known.hostname == job.hostname;
                match known.state() {
                    _ if same && repeat.stands(&self.shared, &known) => {
                        return Ok(Started::Existing(Box::new(known)));
                    }
                    State::Running if same => return Err(Error::UnderWay(known.operation)),
                    State::Running => return Err(Error::Elsewhere(known.repository)),
                    // What was done elsewhere was not done here.
                    _ => {}
                }
            }
            let prepared = work::prepare(&self.engine, job, who)?;
            prepared.put(&tx).await?;
            let operation = prepared.id().to_owned();
            let started_at = self.shared.clock.now();
            tx.put(&Job { operation, started_at, ..job.clone() })?;
            Ok::<_, Error>(Started::New(Box::new(prepared)))
        });
        let committed = committed.await?;
        self.shared.jobs.wait_for(committed.revision).await?;
        Ok(committed.value)
    }
}

/// Refuses to write over a volume that is in use or not what it seems.
async fn check_replaceable(volume: &crate::Volume, group: &str, new: &NewRestore) -> Result<()> {
    let invalid = |field, reason: &str| Err(Error::Invalid { field, reason: reason.to_owned() });
    if !new.tags.is_empty() {
        return invalid("tags", "a volume that is there keeps its own");
    }
    if new.size != 0 && new.size != volume.size {
        return invalid("size_bytes", "a volume that is there keeps its size");
    }
    if volume.is_pending() || volume.read_only {
        let why = format!("logical volume {} is not complete, or for reading only", volume.name);
        return Err(crate::Error::Precondition(why).into());
    }
    volume.claim(group).await?;
    Ok(())
}

impl Repeat<'_> {
    /// Returns whether a job that is known is the answer.
    fn stands(&self, shared: &Shared, job: &Job) -> bool {
        match self {
            Self::Running => job.state() == State::Running,
            Self::Settled { outdated } => {
                outdated.as_ref() != Some(&job.operation) && shared.settled(job)
            }
            Self::Request { id, outdated } => {
                !id.is_empty()
                    && job.request_id == *id
                    && outdated.as_ref() != Some(&job.operation)
                    && shared.settled(job)
            }
        }
    }
}

impl Shared {
    /// Returns whether asking again changes nothing.
    fn settled(&self, job: &Job) -> bool {
        match job.state() {
            State::Running | State::Complete => true,
            State::Failed => {
                let held = u64::try_from(self.config.error_hold().as_millis()).unwrap_or(u64::MAX);
                job.ended_within(self.clock.now(), held)
            }
            State::Unknown => false,
        }
    }
}
