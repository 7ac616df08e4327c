//! Jobs that have ended lately.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::record::Job;

/// Number of jobs that are kept.
const KEPT: usize = 256;

/// Another job of the same name takes over the record of one that has ended.
/// Those who follow that one are told its end all the same.
#[derive(Default)]
pub(crate) struct Ended(Mutex<VecDeque<Job>>);

impl Ended {
    pub(crate) fn push(&self, job: Job) {
        let mut jobs = self.0.lock();
        jobs.truncate(KEPT - 1);
        jobs.push_front(job);
    }

    pub(crate) fn find(&self, operation: &str) -> Option<Job> {
        self.0.lock().iter().find(|job| job.operation == operation).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let ended = Ended::default();
        for number in 0..KEPT + 1 {
            ended.push(Job { operation: number.to_string(), ..Job::default() });
        }
        assert!(ended.find("0").is_none());
        assert!(ended.find("1").is_some() && ended.find(&KEPT.to_string()).is_some());
    }
}
