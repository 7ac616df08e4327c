//! Sources of data. A [`Source`] is a set of probes; each probe is asked
//! in the background at its own pace, and a probe that hangs or fails holds up
//! nobody: the board keeps what it told last, with its age.

pub mod ceph;
mod http;
pub mod prometheus;
pub mod rook;
pub mod selvage;

pub use self::http::BadOptions;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kit::tasks::Tasks;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    board::Board,
    facts::{Data, Section},
};

/// A probe that takes long is asked so much less often that it costs at most
/// this part of its time.
pub(crate) const SHARE: u32 = 20;
/// The longest pause after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Reason why a probe has no data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such thing here: no fault, the section is dropped.
    #[error("not there")]
    Absent,
    /// It should have answered; worth trying again soon.
    #[error("{0}")]
    Failed(String),
    /// It answered in a way that asking again makes worse, such as a password
    /// that is wrong.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// Time until the next attempt.
        retry: Duration,
    },
}

/// One section of one source.
#[async_trait]
pub trait Probe: Send + 'static {
    /// Section that it fills.
    fn section(&self) -> Section;

    /// The pause between two questions.
    fn every(&self) -> Duration;

    /// The pause after an answer is so many times what the answer took, or longer.
    fn share(&self) -> u32 {
        SHARE
    }

    /// Timeout of one answer.
    fn timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// After how long without an answer its data is stale.
    fn stale_after(&self) -> Duration {
        self.every() * 3 + Duration::from_secs(5)
    }

    /// Asks.
    async fn fetch(&mut self) -> Result<Data, Failure>;

    /// Waits until it is worth asking again: by default for the pause.
    async fn changed(&mut self, pause: Duration) {
        tokio::time::sleep(pause).await;
    }
}

/// A set of probes under one name.
pub trait Source {
    /// Name that callers see.
    fn name(&self) -> &'static str;

    /// Its probes.
    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>>;
}

/// Sum of counts that others report: as large as it can be rather than a panic
/// where they make no sense.
pub(crate) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Starts all probes of a source.
pub(crate) fn spawn(source: Box<dyn Source>, board: &Arc<Board>, tasks: &Tasks) {
    let name = source.name();
    for probe in source.probes() {
        board.expect(name, probe.section(), probe.stale_after());
        let task = format!("dashboard: {name} {}", probe.section().name());
        tasks.spawn(task, run_probe(name, probe, Arc::clone(board), tasks.token().clone()));
    }
}

async fn run_probe(
    name: &'static str,
    mut probe: Box<dyn Probe>,
    board: Arc<Board>,
    stop: CancellationToken,
) {
    let mut failures = 0_u32;
    loop {
        let asked = Instant::now();
        let limit = probe.timeout();
        let Some(answer) =
            stop.run_until_cancelled(tokio::time::timeout(limit, probe.fetch())).await
        else {
            return;
        };
        let answer = answer.unwrap_or_else(|_| {
            Err(Failure::Failed(format!("no answer within {} s", limit.as_secs())))
        });
        failures = if answer.is_ok() { 0 } else { failures.saturating_add(1) };
        let pause = pause(probe.every(), asked.elapsed() * probe.share(), &answer, failures);
        board.report(name, probe.section(), answer);
        if stop.run_until_cancelled(probe.changed(pause)).await.is_none() {
            return;
        }
    }
}

fn pause(
    every: Duration,
    rest: Duration,
    answer: &Result<Data, Failure>,
    failures: u32,
) -> Duration {
    match answer {
        Ok(_) => every.max(rest),
        Err(Failure::Refused { retry, .. }) => *retry,
        Err(Failure::Absent) => every.max(MAX_BACKOFF),
        Err(Failure::Failed(_)) => {
            let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(8));
            every.saturating_mul(doubled).min(MAX_BACKOFF).max(every)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_source_is_asked_less_often_and_a_broken_one_not_in_a_loop() {
        let second = Duration::from_secs(1);
        let fine = Ok(Data::Nodes(Vec::new().into()));
        assert_eq!(pause(second, Duration::from_millis(3), &fine, 0), second);
        assert_eq!(pause(second, second * 7, &fine, 0), second * 7);
        let failed = Err(Failure::Failed("x".into()));
        let pauses: Vec<u64> =
            (1..8).map(|count| pause(second, second, &failed, count).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        let refused = Err(Failure::Refused { reason: "x".into(), retry: second * 900 });
        assert_eq!(pause(second, second, &refused, 1), second * 900);
    }
}
