//! Reconcilers: by signal, by period, through failure and panic.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_kit::tasks::Tasks;
use selvage_store::clock::ManualClock;
use selvage_work::{Failure, Reconcile, ReconcilerStatus, Reconcilers, Schedule, Summary};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::support::soon;

#[derive(Clone)]
struct Counter {
    begun: watch::Sender<u64>,
    /// A run takes one of these.
    leave: Arc<Semaphore>,
    /// Result of the run of that number.
    fault: fn(u64) -> Result<Summary, Failure>,
}

impl Counter {
    fn new(permits: usize, fault: fn(u64) -> Result<Summary, Failure>) -> Self {
        Self { begun: watch::Sender::new(0), leave: Arc::new(Semaphore::new(permits)), fault }
    }

    async fn begun(&self, count: u64) {
        let mut begun = self.begun.subscribe();
        soon("a run", begun.wait_for(|begun| *begun >= count)).await.unwrap();
    }
}

#[async_trait]
impl Reconcile for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        let mut number = 0;
        self.begun.send_modify(|begun| {
            *begun += 1;
            number = *begun;
        });
        self.leave.acquire().await.unwrap().forget();
        (self.fault)(number)
    }
}

struct Bed {
    clock: ManualClock,
    tasks: Tasks,
    reconcilers: Reconcilers,
}

fn bed() -> Bed {
    let clock = ManualClock::new(1_000_000);
    let tasks = Tasks::new(CancellationToken::new());
    let reconcilers = Reconcilers::new(tasks.clone(), Arc::new(clock.clone()));
    Bed { clock, tasks, reconcilers }
}

impl Bed {
    async fn status(&self, test: impl Fn(&ReconcilerStatus) -> bool) -> ReconcilerStatus {
        soon("a status", async {
            loop {
                let status = self.reconcilers.list().remove(0);
                if test(&status) {
                    return status;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn fine(_: u64) -> Result<Summary, Failure> {
    Ok(Summary { changes: 1, ..Summary::default() })
}

#[tokio::test]
async fn it_runs_at_once_then_by_signal_and_by_period() {
    let bed = bed();
    let counter = Counter::new(100, fine);
    let trigger = bed.reconcilers.add(counter.clone(), Schedule::every(MINUTE));
    bed.status(|status| status.runs == 1 && !status.running).await;
    trigger.wake();
    bed.status(|status| status.runs == 2 && !status.running).await;
    let third = async {
        while bed.reconcilers.list()[0].runs < 3 {
            bed.clock.advance(MINUTE);
            tokio::task::yield_now().await;
        }
    };
    soon("the period", third).await;
    let status = bed.reconcilers.list().remove(0);
    assert_eq!(status.last_summary.unwrap().changes, 1);
    assert_eq!((status.failures, status.last_error), (0, None));
    assert!(status.last_start >= Some(1_000_000) && status.last_finish >= status.last_start);
    bed.tasks.shutdown(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test]
async fn signals_during_a_run_lead_to_one_more() {
    let bed = bed();
    let counter = Counter::new(0, fine);
    let trigger = bed.reconcilers.add(counter.clone(), Schedule::every(MINUTE));
    counter.begun(1).await;
    for _ in 0..10 {
        trigger.wake();
    }
    assert!(bed.reconcilers.wake("counter"));
    assert!(!bed.reconcilers.wake("nobody"));
    assert_eq!(*counter.begun.borrow(), 1, "two runs at the same time");
    counter.leave.add_permits(100);
    bed.status(|status| status.runs == 2 && !status.running).await;
    bed.tasks.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(*counter.begun.borrow(), 2);
}

#[tokio::test]
async fn failures_and_panics_are_shown_and_tried_again() {
    fn troubled(number: u64) -> Result<Summary, Failure> {
        match number {
            1 => Err(Failure::new(Code::Unavailable, "nobody answers")),
            2 => panic!("oh no"),
            _ => fine(number),
        }
    }
    let bed = bed();
    let counter = Counter::new(100, troubled);
    let trigger = bed.reconcilers.add(counter.clone(), Schedule::every(MINUTE));
    let status = bed.status(|status| status.runs == 1 && !status.running).await;
    assert_eq!((status.failing, status.last_error.as_deref()), (1, Some("nobody answers")));
    trigger.wake();
    let status = bed.status(|status| status.runs == 2 && !status.running).await;
    assert_eq!((status.failing, status.last_error.as_deref()), (2, Some("panicked: oh no")));
    // Well within the period.
    let third = async {
        while bed.reconcilers.list()[0].runs < 3 {
            bed.clock.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    };
    soon("another try", third).await;
    let status = bed.status(|status| !status.running).await;
    assert_eq!((status.failing, status.failures), (0, 2));
    assert!(status.last_start < Some(1_060_000));
}

#[tokio::test]
async fn a_name_is_given_once() {
    let bed = bed();
    let (first, second) = (Counter::new(100, fine), Counter::new(100, fine));
    bed.reconcilers.add(first.clone(), Schedule::every(MINUTE));
    bed.reconcilers.add(second.clone(), Schedule::every(MINUTE));
    first.begun(1).await;
    bed.tasks.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!((bed.reconcilers.list().len(), *second.begun.borrow()), (1, 0));
}
