//! Reconcilers of many objects.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kit::tasks::Backoff;
use selvage_work::clock::ManualClock;
use selvage_work::{Failure, KeyQueue, KeyedReconcile, Summary};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Records each run and waits for leave to end it.
struct Recorder {
    runs: mpsc::UnboundedSender<String>,
    leave: Semaphore,
    /// Results of runs by key, the first one last.
    results: Mutex<HashMap<String, Vec<Result<Summary, Failure>>>>,
}

#[async_trait]
impl KeyedReconcile for Recorder {
    fn name(&self) -> &str {
        "recorded"
    }

    async fn run(&self, key: &String) -> Result<Summary, Failure> {
        self.runs.send(key.clone()).unwrap();
        self.leave.acquire().await.unwrap().forget();
        if key == "panics" {
            panic!("on purpose");
        }
        let result = self.results.lock().get_mut(key).and_then(Vec::pop);
        result.unwrap_or_else(|| Ok(Summary::default()))
    }
}

struct Scene {
    queue: KeyQueue,
    clock: ManualClock,
    recorder: Arc<Recorder>,
    runs: mpsc::UnboundedReceiver<String>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

const SECOND: Duration = Duration::from_secs(1);

fn scene(parallel: usize) -> Scene {
    let clock = ManualClock::new(1000);
    let backoff = Backoff { first: SECOND, longest: SECOND, healthy_after: SECOND };
    run(clock.clone(), KeyQueue::new(Arc::new(clock), parallel, backoff))
}

fn run(clock: ManualClock, queue: KeyQueue) -> Scene {
    let (sender, runs) = mpsc::unbounded_channel();
    let (leave, results) = (Semaphore::new(0), Mutex::default());
    let recorder = Arc::new(Recorder { runs: sender, leave, results });
    let stop = CancellationToken::new();
    let (running, reconciler, token) = (queue.clone(), Arc::clone(&recorder), stop.clone());
    let task = tokio::spawn(async move { running.run(reconciler, token).await });
    Scene { queue, clock, recorder, runs, stop, task }
}

impl Scene {
    async fn next(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(30), self.runs.recv()).await.unwrap().unwrap()
    }

    async fn idle(&self) {
        while !self.queue.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    async fn rest(&self) {
        while self.queue.running() > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_key_added_during_its_run_is_run_once_more() {
    let mut scene = scene(4);
    scene.queue.add("a");
    assert_eq!(scene.next().await, "a");
    for _ in 0..5 {
        scene.queue.add("a");
    }
    scene.recorder.leave.add_permits(1);
    assert_eq!(scene.next().await, "a");
    scene.recorder.leave.add_permits(1);
    scene.idle().await;
    assert!(scene.runs.try_recv().is_err(), "a third run");
    scene.end().await;
}

#[tokio::test]
async fn keys_run_in_parallel_up_to_the_limit() {
    let mut scene = scene(2);
    for key in ["a", "b", "c"] {
        scene.queue.add(key);
    }
    let mut first = [scene.next().await, scene.next().await];
    first.sort();
    tokio::task::yield_now().await;
    assert!(scene.runs.try_recv().is_err(), "a third at once");
    scene.recorder.leave.add_permits(1);
    let third = scene.next().await;
    assert!(!first.contains(&third), "{third} is still running");
    scene.recorder.leave.add_permits(2);
    scene.idle().await;
    scene.end().await;
}

#[tokio::test]
async fn a_failure_or_panic_holds_up_nobody_else_and_is_tried_again_later() {
    let mut scene = scene(4);
    scene.recorder.leave.add_permits(100);
    let failure = Err(Failure::new(Code::Unavailable, "not now"));
    scene.recorder.results.lock().insert("fails".into(), vec![failure]);
    for key in ["fails", "panics", "works"] {
        scene.queue.add(key);
    }
    let mut seen = [scene.next().await, scene.next().await, scene.next().await];
    seen.sort();
    assert_eq!(seen, ["fails", "panics", "works"]);
    scene.rest().await;
    assert_eq!(scene.queue.len(), 2);
    // No key is due before its time.
    assert!(scene.runs.try_recv().is_err());
    scene.clock.advance(SECOND);
    let mut again = [scene.next().await, scene.next().await];
    again.sort();
    assert_eq!(again, ["fails", "panics"]);
    scene.end().await;
}

#[tokio::test]
async fn without_retries_a_failed_key_runs_when_it_is_added_again_and_not_before() {
    let clock = ManualClock::new(1000);
    let queue = KeyQueue::without_retries(Arc::new(clock.clone()));
    let mut scene = run(clock, queue);
    let failure = || Err(Failure::new(Code::Unavailable, "not now"));
    scene.recorder.results.lock().insert("a".into(), vec![failure(), failure()]);
    scene.queue.add("a");
    assert_eq!(scene.next().await, "a");
    // Added while a run goes on that will fail.
    scene.queue.add("a");
    scene.recorder.leave.add_permits(1);
    assert_eq!(scene.next().await, "a");
    scene.recorder.leave.add_permits(1);
    scene.idle().await;
    let status = scene.queue.status("apps");
    assert_eq!((status.runs, status.failures, status.failing, status.queue), (2, 2, 2, 0));
    assert_eq!(status.last_error.as_deref(), Some("a: not now"));
    scene.clock.advance(SECOND * 3600);
    tokio::task::yield_now().await;
    assert!(scene.runs.try_recv().is_err(), "tried again by itself");
    scene.recorder.leave.add_permits(1);
    scene.queue.add("a");
    assert_eq!(scene.next().await, "a");
    scene.idle().await;
    assert_eq!(scene.queue.status("apps").failing, 0);
    scene.end().await;
}

#[tokio::test]
async fn a_run_may_ask_for_the_next() {
    let mut scene = scene(4);
    scene.recorder.leave.add_permits(100);
    let more = Summary { again: Some(SECOND), ..Summary::default() };
    scene.recorder.results.lock().insert("a".into(), vec![Ok(more)]);
    scene.queue.add("a");
    assert_eq!(scene.next().await, "a");
    scene.rest().await;
    scene.clock.advance(SECOND);
    assert_eq!(scene.next().await, "a");
    scene.idle().await;
    scene.end().await;
}
