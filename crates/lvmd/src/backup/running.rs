//! Jobs that run in this process: how far they are, how fast, how long still.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use selvage_restic::{Job, Outage, Phase, Progress};

use crate::backend::CopyProgress;

/// Speed is measured over no less than this.
const SAMPLE: Duration = Duration::from_millis(500);
/// Weight of the newest sample.
const WEIGHT: f64 = 0.3;

/// Progress of a job, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct JobProgress {
    pub(crate) phase: &'static str,
    pub(crate) progress: Progress,
    pub(crate) rate: u64,
    pub(crate) seconds_left: u64,
    /// Reason why it waits, if it does.
    pub(crate) waiting: Option<String>,
}

impl JobProgress {
    /// As lvmd's clients read it.
    pub(crate) fn line(&self) -> String {
        let Self { phase, progress, rate, seconds_left, waiting } = self;
        let Progress { done, total, new, .. } = progress;
        let mut line = format!(
            "phase={phase} done={done} total={total} new={new} rate={rate} eta={seconds_left}"
        );
        if let Some(reason) = waiting {
            line += &format!(" waiting={reason}");
        }
        line
    }
}

/// One job.
pub(crate) struct RunningJob {
    pub(crate) job: Job,
    pub(crate) outage: Outage,
    copying: &'static str,
    /// Progress of the copy that its snapshot needs, while that is made.
    snapshot: Option<CopyProgress>,
    pace: Mutex<Pace>,
}

#[derive(Default)]
struct Pace {
    /// Phase of the job besides its own phases.
    phase: &'static str,
    sampled: Option<(Instant, u64)>,
    rate: f64,
}

impl RunningJob {
    /// `copying` is what its main phase is called.
    pub(crate) fn new(copying: &'static str) -> Self {
        let (job, outage) = (Job::new(), Outage::default());
        Self { job, outage, copying, snapshot: None, pace: Mutex::default() }
    }

    /// One that makes its snapshot.
    pub(crate) fn of_snapshot(copy: CopyProgress) -> Self {
        Self { snapshot: Some(copy), ..Self::new("snapshot") }
    }

    pub(crate) fn enter(&self, phase: &'static str) {
        self.pace.lock().phase = phase;
    }

    /// Returns its progress now.
    pub(crate) fn standing(&self) -> JobProgress {
        let progress = match self.snapshot.as_ref().map(CopyProgress::get) {
            Some((done, total)) => {
                Progress { phase: Phase::Copying, total, done, ..Progress::default() }
            }
            None => self.job.progress(),
        };
        self.at(Instant::now(), progress)
    }

    fn at(&self, now: Instant, progress: Progress) -> JobProgress {
        let mut pace = self.pace.lock();
        pace.sample(now, progress);
        let waiting = self.outage.reason();
        let phase = match (pace.phase, progress.phase) {
            _ if waiting.is_some() => "retrying",
            ("", Phase::Copying) => self.copying,
            ("", phase) => phase.name(),
            (own, _) => own,
        };
        let left = progress.total.saturating_sub(progress.done);
        let rate = pace.rate.max(0.0) as u64;
        let seconds_left = if rate == 0 { 0 } else { left.div_ceil(rate) };
        JobProgress { phase, progress, rate, seconds_left, waiting }
    }
}

impl Pace {
    fn sample(&mut self, now: Instant, progress: Progress) {
        if progress.phase != Phase::Copying {
            return;
        }
        let Some((then, before)) = self.sampled else {
            self.sampled = Some((now, progress.done));
            return;
        };
        let passed = now.saturating_duration_since(then);
        if passed < SAMPLE {
            return;
        }
        let newest = progress.done.saturating_sub(before) as f64 / passed.as_secs_f64();
        self.rate =
            if self.rate == 0.0 { newest } else { self.rate + WEIGHT * (newest - self.rate) };
        self.sampled = Some((now, progress.done));
    }
}

/// All of them, by operation, from their first step until their end is on record.
#[derive(Default)]
pub(crate) struct RunningJobs(Mutex<HashMap<String, Arc<RunningJob>>>);

/// A step of a job that goes on for as long as this is held.
pub(crate) struct RunningGuard {
    pub(crate) live: Arc<RunningJob>,
}

impl RunningJobs {
    pub(crate) fn enter(&self, operation: &str, live: RunningJob) -> RunningGuard {
        let live = Arc::new(live);
        self.0.lock().insert(operation.to_owned(), Arc::clone(&live));
        RunningGuard { live }
    }

    /// Forgets a job whose end is on record.
    pub(crate) fn remove(&self, operation: &str) {
        self.0.lock().remove(operation);
    }

    pub(crate) fn standing(&self, operation: &str) -> Option<JobProgress> {
        let live = self.0.lock().get(operation).cloned();
        live.map(|live| live.standing())
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        // Whoever drops it does not wait for the job any more. Its progress stays: a
        // watcher must not see it fall back to nothing while the job is wound up.
        self.live.job.cancel();
        self.live.enter("finishing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(done: u64) -> Progress {
        Progress { phase: Phase::Copying, total: 1000, done, ..Progress::default() }
    }

    #[test]
    fn speed_and_the_time_left_come_from_what_was_done() {
        let live = RunningJob::new("upload");
        let start = Instant::now();
        assert_eq!(live.at(start, copied(0)).rate, 0);
        let second = live.at(start + Duration::from_secs(1), copied(100));
        assert_eq!((second.rate, second.seconds_left), (100, 9));
        assert_eq!(second.line(), "phase=upload done=100 total=1000 new=0 rate=100 eta=9");
        // A look in between changes nothing.
        assert_eq!(live.at(start + Duration::from_millis(1100), copied(500)).rate, 100);
        let later = live.at(start + Duration::from_secs(2), copied(300));
        assert_eq!(later.rate, 130);
    }

    #[test]
    fn progress_stays_until_the_end_is_on_record() {
        let running = RunningJobs::default();
        let step = running.enter("op", RunningJob::new("upload"));
        assert_eq!(running.standing("op").map(|standing| standing.phase), Some("waiting"));
        drop(step);
        assert_eq!(running.standing("op").map(|standing| standing.phase), Some("finishing"));
        running.remove("op");
        assert_eq!(running.standing("op"), None);
    }

    #[test]
    fn the_copy_that_a_snapshot_needs_is_progress() {
        let running = RunningJobs::default();
        let copy = CopyProgress::default();
        let step = running.enter("op", RunningJob::of_snapshot(copy.clone()));
        copy.expect(1000);
        copy.add(250);
        let line = running.standing("op").map(|standing| standing.line());
        assert_eq!(line.as_deref(), Some("phase=snapshot done=250 total=1000 new=0 rate=0 eta=0"));
        drop(step);
    }

    #[test]
    fn what_it_waits_for_is_said() {
        let live = RunningJob::new("upload");
        live.enter("queued");
        assert!(live.standing().line().starts_with("phase=queued "));
    }
}
