//! Backups that are made again and again.
//!
//! Time is divided into periods from 1970 on. A schedule has dealt with a
//! period once it has begun a backup in it; what was missed while nobody was
//! there is not made up for more than once.

use std::time::Duration;

use jiff::Timestamp;
use selvage_api::selvage::volumes::Schedule as Described;
use tokio_util::sync::CancellationToken;

use super::{
    Access, Backups, Error, Keep, Origin, Pruning, Result, StoredLocation,
    describe::timestamp,
    record::{Schedule, State},
};

/// Interval at which schedules are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of looks after which leftovers of jobs, and volumes that are gone, are looked for.
const POLLS_PER_CLEANUP: u32 = 20;
/// The shortest period, in seconds.
const SHORTEST: u64 = 60;
/// Name under which schedules start jobs.
const WHO: &str = "schedule";

impl Schedule {
    /// The period that a moment is in, in milliseconds since 1970.
    fn period_at(&self, now: u64) -> u64 {
        (now / 1000).saturating_sub(self.offset) / self.every.max(1)
    }

    /// When a period begins, in seconds since 1970.
    fn begins(&self, period: u64) -> u64 {
        period.saturating_mul(self.every).saturating_add(self.offset)
    }

    fn is_due(&self, now: u64) -> bool {
        self.period_at(now) > self.period
    }

    /// Returns whether a period was dealt with that is yet to come: the clock was wrong
    /// then, and nothing may wait until it is right again.
    fn is_ahead(&self, now: u64) -> bool {
        self.period_at(now) < self.period
    }

    /// The name of the backup of a period.
    fn backup_name(&self, period: u64) -> String {
        let seconds = i64::try_from(self.begins(period)).unwrap_or_default();
        let when = Timestamp::from_second(seconds).unwrap_or_default();
        format!("{}-{}", self.name, when.strftime("%Y%m%dT%H%M%SZ"))
    }
}

impl Backups {
    /// Sets a schedule. Its first backup is due when the next period begins.
    pub(crate) async fn set_schedule(&self, from: Described) -> Result<Schedule> {
        if from.name.is_empty() {
            return Err(Error::Missing("name"));
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !from.name.bytes().all(fits) {
            let reason = "a name has letters, digits, '-', '_' and '.'".to_owned();
            return Err(Error::Invalid { field: "name", reason });
        }
        if from.every_seconds < SHORTEST {
            let reason = format!("no less than {SHORTEST} seconds");
            return Err(Error::Invalid { field: "every_seconds", reason });
        }
        if from.offset_seconds >= from.every_seconds {
            let reason = "it must be less than every_seconds".to_owned();
            return Err(Error::Invalid { field: "offset_seconds", reason });
        }
        let keep = from.keep.map(Keep::from);
        if keep.is_some_and(|keep| keep == Keep::default()) {
            let reason = "a rule that keeps nothing would remove every backup".to_owned();
            return Err(Error::Invalid { field: "keep", reason });
        }
        if from.verify_read_percent > 100 {
            let reason = "there are no more than 100".to_owned();
            return Err(Error::Invalid { field: "verify_read_percent", reason });
        }
        if from.verify_read_percent > 0 && from.verify_every_seconds == 0 {
            return Err(Error::Missing("verify_every_seconds"));
        }
        let repository = from.repository.ok_or(Error::Missing("repository"))?;
        super::check_storable(&repository)?;
        let location =
            StoredLocation::of(&repository).ok_or(Error::Missing("repository.credentials"))?;
        // What does not work now does not work at night.
        Access::new(repository, &self.shared.config)?;
        super::pick::volume(&self.shared.volumes, &from.volume)?;
        let mut schedule = Schedule {
            name: from.name,
            handle: from.volume,
            location,
            every: from.every_seconds,
            offset: from.offset_seconds,
            keep,
            pruned: true,
            verify_every: from.verify_every_seconds,
            verify_read_percent: from.verify_read_percent,
            ..Schedule::default()
        };
        schedule.period = schedule.period_at(self.shared.clock.now());
        self.shared.schedules.put(schedule.clone()).await?;
        Ok(schedule)
    }

    pub(crate) fn schedules(&self) -> Vec<Schedule> {
        self.shared.schedules.list().iter().map(|stored| stored.value.clone()).collect()
    }

    pub(crate) async fn delete_schedule(&self, name: &str) -> Result<()> {
        match self.shared.schedules.delete(name).await {
            Ok(_) => Ok(()),
            Err(selvage_store::Error::NotFound { .. }) => Err(Error::NoSchedule(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// A schedule as callers see it.
    pub(crate) fn describe_schedule(&self, schedule: &Schedule) -> Described {
        let job = self.shared.jobs.get(&schedule.job);
        Described {
            name: schedule.name.clone(),
            volume: schedule.handle.clone(),
            repository: Some(schedule.location.describe()),
            every_seconds: schedule.every,
            offset_seconds: schedule.offset,
            keep: schedule.keep.map(Into::into),
            last_job: job.map(|job| job.value.operation.clone()).unwrap_or_default(),
            next_at: timestamp(schedule.begins(schedule.period + 1).saturating_mul(1000)),
            error: schedule.error.clone(),
            verify_every_seconds: schedule.verify_every,
            verify_read_percent: schedule.verify_read_percent,
            verified_at: timestamp(schedule.verified_at),
            verify_report: schedule.verify_report.clone(),
        }
    }

    /// Begins what is due, until told to stop.
    pub(super) async fn run_schedules(self, stop: CancellationToken) {
        let mut looks = 0_u32;
        while stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            for schedule in self.schedules() {
                if let Err(error) = self.follow(&schedule).await {
                    self.record_failure(&schedule, &error).await;
                }
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(POLLS_PER_CLEANUP) {
                self.remove_orphans().await;
            }
        }
    }

    /// Makes one step of a schedule.
    async fn follow(&self, schedule: &Schedule) -> Result<()> {
        let job = self.shared.jobs.get(&schedule.job).map(|stored| stored.value.clone());
        if job.as_ref().is_some_and(|job| job.state() == State::Running) {
            return Ok(());
        }
        let now = self.shared.clock.now();
        if schedule.is_ahead(now) {
            let period = schedule.period_at(now);
            tracing::warn!(schedule = %schedule.name, "the clock was put back: it is counted anew");
            return self.note_schedule(schedule, |schedule| schedule.period = period).await;
        }
        if let Some(keep) = schedule.keep
            && !schedule.pruned
            && let Some(job) = job.as_ref().filter(|job| job.state() == State::Complete)
            && self.prune_after(schedule, keep, &job.volume, now).await?
        {
            return Ok(());
        }
        let backed_up = job.is_some_and(|job| job.state() == State::Complete);
        if self.verify_after(schedule, backed_up, now).await? || !schedule.is_due(now) {
            return Ok(());
        }
        let period = schedule.period_at(now);
        let name = schedule.backup_name(period);
        let access = Access::new(schedule.location.describe(), &self.shared.config)?;
        let stored_location = Some(schedule.location.clone());
        // A period has one backup, also if this process ends before it is
        // written down that it has begun.
        let origin = Origin::Request(&name);
        let job =
            self.backup(&name, &schedule.handle, access, stored_location, origin, WHO).await?;
        let key = selvage_store::Record::key(&job);
        self.note_schedule(schedule, |schedule| {
            schedule.job.clone_from(&key);
            (schedule.period, schedule.pruned) = (period, false);
            schedule.prune.clear();
            schedule.error.clear();
        })
        .await
    }

    /// Removes what need not be kept any more, and tries again for as long as
    /// that fails. Tells whether there is nothing else to do now.
    async fn prune_after(
        &self,
        schedule: &Schedule,
        keep: Keep,
        volume: &str,
        now: u64,
    ) -> Result<bool> {
        if let Ok(job) = self.find(&schedule.prune) {
            let hold = u64::try_from(self.shared.config.error_hold().as_millis());
            let again_at = job.ended_at.saturating_add(hold.unwrap_or(u64::MAX));
            match job.state() {
                State::Running => return Ok(true),
                State::Complete => {
                    let done = self.note_schedule(schedule, |schedule| {
                        schedule.pruned = true;
                        schedule.error.clear();
                    });
                    return done.await.map(|()| true);
                }
                State::Failed | State::Unknown => {
                    let told = format!("prune failed, and is tried again: {}", job.error);
                    if schedule.error != told {
                        self.note_schedule(schedule, |it| it.error.clone_from(&told)).await?;
                    }
                    // A backup that is due does not wait for it.
                    if now < again_at || schedule.is_due(now) {
                        return Ok(false);
                    }
                }
            }
        }
        let access = Access::new(schedule.location.describe(), &self.shared.config)?;
        let stored_location = Some(schedule.location.clone());
        let what = Pruning { keep: Some(keep), volume, ..Pruning::default() };
        let job = self.prune(access, stored_location, what, WHO).await?;
        self.note_schedule(schedule, |it| it.prune.clone_from(&job.operation)).await?;
        Ok(true)
    }

    /// Verifies the repository when that is due, once there is a backup in it, and
    /// writes down how it ended. Tells whether one was begun now.
    async fn verify_after(&self, schedule: &Schedule, backed_up: bool, now: u64) -> Result<bool> {
        if schedule.verify_every == 0 {
            return Ok(false);
        }
        if let Ok(job) = self.find(&schedule.verify) {
            let failed = match job.state() {
                State::Running => return Ok(false),
                State::Complete => false,
                State::Failed | State::Unknown => true,
            };
            let report = if failed { format!("failed: {}", job.error) } else { job.message };
            return self
                .note_schedule(schedule, |schedule| {
                    schedule.verify.clear();
                    (schedule.verified_at, schedule.verify_failed) = (job.ended_at, failed);
                    schedule.verify_report.clone_from(&report);
                })
                .await
                .map(|()| true);
        }
        let due = schedule.verified_at.saturating_add(schedule.verify_every.saturating_mul(1000));
        // Also if the clock was put back since.
        if !backed_up || (now < due && now >= schedule.verified_at) {
            return Ok(false);
        }
        let access = Access::new(schedule.location.describe(), &self.shared.config)?;
        let location = Some(schedule.location.clone());
        let job = self.verify(access, location, schedule.verify_read_percent, "", WHO).await?;
        self.note_schedule(schedule, |it| it.verify.clone_from(&job.operation)).await?;
        Ok(true)
    }

    async fn note_schedule(
        &self,
        schedule: &Schedule,
        mut change: impl FnMut(&mut Schedule),
    ) -> Result<()> {
        let noted = self.shared.schedules.update(&schedule.name, |schedule| {
            change(schedule);
            Ok::<_, selvage_store::Error>(())
        });
        match noted.await {
            // Ended meanwhile.
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says once why it cannot begin, and waits for the next period.
    async fn record_failure(&self, schedule: &Schedule, error: &Error) {
        let text = error.text();
        tracing::warn!(schedule = %schedule.name, error = text, "a backup was not begun");
        let period = schedule.period_at(self.shared.clock.now());
        let noted = self.note_schedule(schedule, |schedule| {
            schedule.error.clone_from(&text);
            (schedule.period, schedule.pruned) = (period, true);
        });
        if let Err(error) = noted.await {
            tracing::warn!(error = error.text(), "a schedule cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn nightly() -> Schedule {
        Schedule { name: "nightly".into(), every: DAY, offset: 7_200, ..Schedule::default() }
    }

    #[test]
    fn a_period_is_due_once_however_many_were_missed() {
        let mut schedule = nightly();
        schedule.period = 100;
        let begins = |period: u64| (period * DAY + 7_200) * 1000;
        assert!(!schedule.is_due(begins(100)));
        assert!(!schedule.is_due(begins(101) - 1));
        assert!(schedule.is_due(begins(101)));
        assert!(schedule.is_due(begins(150)));
        schedule.period = schedule.period_at(begins(150));
        assert_eq!(schedule.period, 150);
        assert!(!schedule.is_due(begins(151) - 1));
    }

    #[test]
    fn a_clock_that_was_wrong_is_forgotten() {
        let mut schedule = nightly();
        let begins = |period: u64| (period * DAY + 7_200) * 1000;
        schedule.period = schedule.period_at(begins(1_100));
        assert!(schedule.is_ahead(begins(100)) && !schedule.is_due(begins(100)));
        schedule.period = schedule.period_at(begins(100));
        assert!(!schedule.is_ahead(begins(100)) && schedule.is_due(begins(101)));
    }

    #[test]
    fn a_backup_is_named_after_its_period() {
        assert_eq!(nightly().backup_name(20_000), "nightly-20241004T020000Z");
    }
}
