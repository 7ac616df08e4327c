//! Supervision and signals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    future::pending,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use selvage_kit::tasks::{Backoff, Failure, SignalEvent, Signals, State, Tasks};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

fn tasks() -> Tasks {
    Tasks::new(CancellationToken::new())
}

fn explode(words: &str) {
    panic!("{words}");
}

/// Waits until the condition holds; time is paused, so that costs nothing.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("in time");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_listed_while_it_runs_and_forgotten_when_it_is_done() {
    let tasks = tasks();
    let gate = CancellationToken::new();
    for _ in 0..3 {
        let gate = gate.clone();
        tasks.spawn("worker", async move { gate.cancelled().await });
    }
    let list = tasks.list();
    assert_eq!((list.len(), list[0].running, list[0].state), (1, 3, State::Running));
    gate.cancel();
    until(|| tasks.list().is_empty()).await;
    tasks.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_kept_with_its_causes_and_the_rest_goes_on() {
    #[derive(Debug, thiserror::Error)]
    #[error("disk")]
    struct Outer(#[source] io::Error);

    let tasks = tasks();
    tasks.spawn("error", async { Err(Outer(io::Error::other("full"))) });
    tasks.spawn("panic", async { explode("oh no") });
    until(|| tasks.list().iter().filter(|status| status.state == State::Failed).count() == 2).await;
    let list = tasks.list();
    assert_eq!(list[0].last_error.as_deref(), Some("disk: full"));
    assert_eq!(list[1].last_error.as_deref(), Some("panicked: oh no"));
    assert_eq!((list[1].failures, list[1].restarts), (1, 0));
    assert!(!tasks.token().is_cancelled());
    assert_eq!(tasks.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_critical_failure_cancels_everything_and_says_why() {
    let tasks = tasks();
    let token = tasks.token().clone();
    tasks.spawn("other", async move { token.cancelled().await });
    tasks.spawn_critical("fine", async {});
    tasks.spawn_critical("store", async { Err(io::Error::other("disk full")) });
    tokio::time::timeout(DEADLINE, tasks.token().cancelled()).await.unwrap();
    let failure = tasks.failure().unwrap();
    assert_eq!(failure, Failure { task: "store".into(), reason: "disk full".into() });
    assert_eq!(failure.to_string(), r#"task "store" failed: disk full"#);
    tasks.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_critical_panic_counts_like_an_error() {
    let tasks = tasks();
    tasks.spawn_critical("store", async { explode("bug") });
    tokio::time::timeout(DEADLINE, tasks.token().cancelled()).await.unwrap();
    assert_eq!(tasks.failure().unwrap().reason, "panicked: bug");
}

#[tokio::test(start_paused = true)]
async fn a_restarting_task_comes_back_until_it_succeeds() {
    let tasks = tasks();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    tasks.spawn_restarting("watch", Backoff::default(), move || {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match run {
                0 => Err(io::Error::other("gone")),
                1 => panic!("bug"),
                _ => Ok(()),
            }
        }
    });
    until(|| tasks.list().first().is_some_and(|status| status.state == State::Ended)).await;
    let status = tasks.list().remove(0);
    assert_eq!((status.restarts, status.failures, status.running), (2, 2, 0));
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_restart_ends_at_once_when_cancelled() {
    let tasks = tasks();
    let slow = Backoff { first: Duration::from_secs(3600), ..Backoff::default() };
    let slow = Backoff { longest: Duration::from_secs(3600), ..slow };
    tasks.spawn_restarting("watch", slow, || async { Err(io::Error::other("gone")) });
    until(|| tasks.list()[0].state == State::Waiting).await;
    tasks.shutdown(DEADLINE).await.unwrap();
    let status = tasks.list().remove(0);
    assert_eq!((status.running, status.restarts, status.state), (0, 0, State::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_maker_that_panics_is_a_failure_like_any_other() {
    let tasks = tasks();
    let mut first = true;
    tasks.spawn_restarting("watch", Backoff::default(), move || {
        if std::mem::take(&mut first) {
            explode("in the maker");
        }
        pending::<()>()
    });
    until(|| tasks.list().first().is_some_and(|status| status.restarts == 1)).await;
    assert_eq!(tasks.list()[0].last_error.as_deref(), Some("panicked: in the maker"));
}

#[test]
fn a_task_started_on_a_runtime_that_is_gone_does_no_harm() {
    let tasks = tasks();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handle = runtime.handle().clone();
    drop(runtime);
    let _inside = handle.enter();
    tasks.spawn("late", pending::<()>());
    assert_eq!(tasks.list(), []);
}

#[test]
fn the_wait_grows_to_a_limit_and_is_spread() {
    let backoff = Backoff::default();
    let ms = |failures, chance| backoff.delay(failures, chance).as_millis();
    assert_eq!((ms(1, 0.0), ms(1, 1.0)), (100, 200));
    assert_eq!((ms(2, 1.0), ms(3, 1.0)), (400, 800));
    assert_eq!((ms(30, 1.0), ms(u32::MAX, 0.0)), (30_000, 15_000));
}

#[tokio::test(start_paused = true)]
async fn stragglers_are_named_and_aborted() {
    let tasks = tasks();
    let token = tasks.token().clone();
    tasks.spawn("obedient", async move { token.cancelled().await });
    tasks.spawn("stubborn", pending::<()>());
    tasks.spawn("stubborn", pending::<()>());
    tasks.spawn("deaf", pending::<()>());
    let stragglers = tasks.shutdown(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(stragglers.tasks, ["deaf", "stubborn"]);
    assert_eq!(stragglers.to_string(), "tasks did not end in time: deaf, stubborn");
    until(|| tasks.list().is_empty()).await;
}

/// One test for all signals: they belong to the process.
#[tokio::test]
async fn signals_become_events() {
    let mut signals = Signals::install().unwrap();
    let send = |signal| kill(Pid::this(), signal).unwrap();
    for (signal, expected) in [
        (Signal::SIGHUP, SignalEvent::Reload),
        (Signal::SIGTERM, SignalEvent::Shutdown { signal: "SIGTERM" }),
        (Signal::SIGHUP, SignalEvent::Reload),
        (Signal::SIGINT, SignalEvent::Immediate { exit_code: 130 }),
        (Signal::SIGTERM, SignalEvent::Immediate { exit_code: 143 }),
    ] {
        send(signal);
        let event = tokio::time::timeout(DEADLINE, signals.next()).await.unwrap();
        assert_eq!(event, expected);
    }
}
