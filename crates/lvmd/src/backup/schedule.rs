//! Backups that are made again and again.
//!
//! Time is divided into periods from 1970 on. A schedule has dealt with a
//! period once it has begun a backup in it; what was missed while nobody was
//! there is not made up for more than once. A backup that fails is tried again
//! within its period, some times and less and less often.

use std::time::Duration;

use jiff::Timestamp;
use selvage_api::selvage::volumes::Schedule as Described;
use tokio_util::sync::CancellationToken;

use super::{
    Access, Backups, Error, Keep, Origin, Pruning, Result, StoredLocation,
    describe::timestamp,
    own_hostname,
    record::{Job, Schedule, State},
};

/// Interval at which schedules are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of looks after which leftovers of jobs, and volumes that are gone, are looked for.
const POLLS_PER_CLEANUP: u32 = 20;
/// The shortest period, in seconds.
const SHORTEST: u64 = 60;
/// Name under which schedules start jobs.
const WHO: &str = "schedule";
/// Number of times that the backup of a period is tried.
const ATTEMPTS: u32 = 5;
/// Factor by which the pause after a failure is longer than the one before.
const LONGER: u64 = 4;

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

    /// Returns when the backup of this period, which has failed, is tried again, in
    /// milliseconds since 1970; none if it is not. The first pause is `pause` milliseconds.
    fn retry_at(&self, pause: u64) -> Option<u64> {
        let failures = Some(self.failures).filter(|it| (1..ATTEMPTS).contains(it))?;
        let pause = pause.saturating_mul(LONGER.saturating_pow(failures - 1));
        let at = self.failed_at.saturating_add(pause);
        (self.period_at(at) <= self.period).then_some(at)
    }

    /// Counts a backup that failed, or could not be begun.
    fn count_failure(&mut self, now: u64, reason: &str, again: bool) {
        self.failures = if again { self.failures.saturating_add(1) } else { ATTEMPTS };
        self.failed_at = now;
        reason.clone_into(&mut self.error);
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
        let next = schedule.begins(schedule.period + 1).saturating_mul(1000);
        let has_ended = job.as_ref().is_none_or(|job| job.value.operation == schedule.seen);
        let retry = schedule.retry_at(self.retry_pause()).filter(|_| has_ended);
        Described {
            name: schedule.name.clone(),
            volume: schedule.handle.clone(),
            repository: Some(schedule.location.describe()),
            every_seconds: schedule.every,
            offset_seconds: schedule.offset,
            keep: schedule.keep.map(Into::into),
            last_job: job.map(|job| job.value.operation.clone()).unwrap_or_default(),
            next_at: timestamp(retry.unwrap_or(next)),
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
                    self.record_error(&schedule, &error).await;
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
        if let Some(job) = job.as_ref().filter(|job| job.operation != schedule.seen) {
            return self.note_end(schedule, job).await;
        }
        let now = self.shared.clock.now();
        if schedule.is_ahead(now) {
            let period = schedule.period_at(now);
            tracing::warn!(schedule = %schedule.name, "the clock was put back: it is counted anew");
            let anew = |schedule: &mut Schedule| {
                (schedule.period, schedule.failures) = (period, 0);
            };
            return self.note_schedule(schedule, anew).await;
        }
        let done = job.filter(|job| job.state() == State::Complete);
        if let (Some(keep), Some(job)) = (schedule.keep, &done)
            && !schedule.pruned
            && self.prune_after(schedule, keep, job, now).await?
        {
            return Ok(());
        }
        match self.verify_after(schedule, done.is_some(), now).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // A backup that is due does not wait for it.
            Err(error) => self.record_error(schedule, &error).await,
        }
        let again = schedule.retry_at(self.retry_pause()).is_some_and(|at| now >= at);
        if (schedule.is_due(now) || again)
            && let Err(error) = self.begin_backup(schedule, now).await
        {
            return self.record_failure(schedule, &error, now).await;
        }
        Ok(())
    }

    /// Milliseconds between the first failure of a backup and the next attempt.
    fn retry_pause(&self) -> u64 {
        u64::try_from(self.shared.config.error_hold().as_millis()).unwrap_or(u64::MAX)
    }

    /// Begins the backup of the present period, or the next attempt at it.
    async fn begin_backup(&self, schedule: &Schedule, now: u64) -> Result<()> {
        let period = schedule.period_at(now);
        let failures = if period == schedule.period { schedule.failures } else { 0 };
        let name = schedule.backup_name(period);
        let access = Access::new(schedule.location.describe(), &self.shared.config)?;
        let stored_location = Some(schedule.location.clone());
        // An attempt has one backup, also if this process ends before it is
        // written down that it has begun.
        let request = if failures == 0 { name.clone() } else { format!("{name}/{failures}") };
        let origin = Origin::Schedule(&request);
        let job =
            self.backup(&name, &schedule.handle, access, stored_location, origin, WHO).await?;
        let key = selvage_store::Record::key(&job);
        self.note_schedule(schedule, |schedule| {
            schedule.job.clone_from(&key);
            (schedule.period, schedule.failures, schedule.pruned) = (period, failures, false);
            schedule.prune.clear();
        })
        .await
    }

    /// Writes down how a backup ended: a schedule tells why the last one failed until one
    /// has succeeded.
    async fn note_end(&self, schedule: &Schedule, job: &Job) -> Result<()> {
        // Whoever stopped it does not want it at once again.
        let again = job.code != tonic::Code::Cancelled as i32;
        self.note_schedule(schedule, |schedule| {
            schedule.seen.clone_from(&job.operation);
            if job.state() == State::Complete {
                schedule.failures = 0;
                schedule.error.clear();
            } else {
                schedule.count_failure(job.ended_at, &job.error, again);
            }
        })
        .await
    }

    /// Removes what need not be kept any more, and tries again for as long as
    /// that fails. Tells whether there is nothing else to do now.
    async fn prune_after(
        &self,
        schedule: &Schedule,
        keep: Keep,
        backup: &Job,
        now: u64,
    ) -> Result<bool> {
        if let Ok(job) = self.find(&schedule.prune) {
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
                    let error_text = format!("prune failed, and is tried again: {}", job.error);
                    if schedule.error != error_text {
                        self.note_schedule(schedule, |it| it.error.clone_from(&error_text)).await?;
                    }
                    // A backup that is due does not wait for it.
                    let waits = job.ended_within(now, self.retry_pause());
                    if waits || schedule.is_due(now) {
                        return Ok(false);
                    }
                }
            }
        }
        let access = Access::new(schedule.location.describe(), &self.shared.config)?;
        let stored_location = Some(schedule.location.clone());
        // Others that use the repository may have volumes of that name, and other rules.
        let (volume, hostname) = (backup.full_name(), own_hostname());
        let what =
            Pruning { keep: Some(keep), volume: &volume, hostname: &hostname, dry_run: false };
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

    /// Says why a backup could not be begun.
    async fn record_failure(&self, schedule: &Schedule, error: &Error, now: u64) -> Result<()> {
        let text = error.text();
        tracing::warn!(schedule = %schedule.name, error = text, "a backup was not begun");
        let period = schedule.period_at(now);
        self.note_schedule(schedule, |schedule| {
            if schedule.period != period {
                schedule.failures = 0;
            }
            (schedule.period, schedule.pruned) = (period, true);
            schedule.count_failure(now, &text, true);
        })
        .await
    }

    /// Says once why something else could not be begun, which waits for the next backup.
    async fn record_error(&self, schedule: &Schedule, error: &Error) {
        let text = error.text();
        if schedule.pruned && schedule.error == text {
            return;
        }
        tracing::warn!(schedule = %schedule.name, error = text, "a schedule cannot go on");
        let noted = self.note_schedule(schedule, |schedule| {
            schedule.error.clone_from(&text);
            schedule.pruned = true;
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
    fn a_backup_that_fails_is_tried_again_less_and_less_often_and_not_for_ever() {
        let minute = 60_000;
        let mut schedule = nightly();
        let now = (100 * DAY + 7_200) * 1000;
        schedule.period = schedule.period_at(now);
        assert_eq!(schedule.retry_at(minute), None, "it did not fail");
        let pauses = [1, 4, 16, 64].map(|minutes| now + minutes * minute);
        for at in pauses {
            schedule.count_failure(now, "locked", true);
            assert_eq!(schedule.retry_at(minute), Some(at));
        }
        schedule.count_failure(now, "locked", true);
        assert_eq!(schedule.retry_at(minute), None, "it waits for the next night");
        schedule.failures = 0;
        schedule.count_failure(now, "cancelled", false);
        assert_eq!(schedule.retry_at(minute), None);
        // The next period has a backup of its own.
        let late = (101 * DAY + 7_200) * 1000 - 1;
        schedule.failures = 0;
        schedule.count_failure(late, "locked", true);
        assert_eq!(schedule.retry_at(minute), None);
    }

    #[test]
    fn a_backup_is_named_after_its_period() {
        assert_eq!(nightly().backup_name(20_000), "nightly-20241004T020000Z");
    }
}
