//! The controller is killed at every command that it sends, before and after it
//! was run; the next one goes on. No machine is lost and none is used twice,
//! also when the command comes late, after its operation has ended.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use selvage_kaas::provider::{Provider, Wipe, ssh::Ssh};

use super::{
    lab::{SshLab, operation, wanted},
    rules::until_up,
};

/// More commands than one life of a machine takes.
const MOST: usize = 40;

/// A machine from its request to its return.
async fn life(lab: &SshLab, provider: Arc<Ssh>, releasing: &AtomicBool) {
    let first = operation("op-1");
    provider.acquire(&first, &wanted()).await.unwrap();
    until_up(lab, &provider, &first).await;
    releasing.store(true, Ordering::Relaxed);
    assert!(provider.release(&first, Wipe::Reset).await.unwrap());
}

/// Kills a controller at a place, and tells whether it was about to give its
/// machine back; nothing if it never comes there.
async fn killed_at(lab: &SshLab, gate: &str) -> Option<bool> {
    lab.stop_at(gate);
    // Dropped with all that it does when the place is reached.
    let (provider, releasing) = (lab.provider().await, AtomicBool::new(false));
    let reached = lab.reached(life(lab, provider, &releasing)).await;
    std::fs::remove_file(lab.path(gate)).unwrap();
    reached.then(|| releasing.into_inner())
}

/// The next controller has the same operation and another one, to their ends.
async fn goes_on(lab: &SshLab, gate: &str, late: bool, releasing: bool) {
    let before = lab.claims();
    let provider = lab.provider().await;
    if !late {
        lab.let_go().await;
    }
    let (mut first, second) = (operation("op-1"), operation("op-2"));
    if releasing {
        // An operation that began to give its machine back never asks again.
        assert!(provider.release(&first, Wipe::Reset).await.unwrap());
        first = operation("op-3");
    }
    let a = provider.acquire(&first, &wanted()).await.unwrap();
    for (machine, operation) in before.iter().filter(|_| !releasing) {
        assert_eq!((machine, operation.as_str()), (&a.id, "op-1"), "{gate}");
    }
    until_up(lab, &provider, &first).await;
    if late {
        assert!(provider.release(&first, Wipe::Reset).await.unwrap());
    }
    let b = provider.acquire(&second, &wanted()).await.unwrap();
    until_up(lab, &provider, &second).await;
    if late {
        let held = lab.claims();
        lab.let_go().await;
        lab.idle();
        assert_eq!(lab.claims(), held, "{gate}: came late");
    } else {
        assert_ne!(a.id, b.id, "{gate}");
        assert!(provider.release(&first, Wipe::Reset).await.unwrap());
    }
    assert!(provider.release(&second, Wipe::Reset).await.unwrap());
    assert_eq!(provider.list_owned().await.unwrap(), [], "{gate}");
    lab.check_clean(gate);
}

async fn at_every_command(when: &str, late: bool) {
    let Some(lab) = SshLab::open(&["a", "b"]).await else { return };
    for number in 1..MOST {
        let gate = format!("{when}-{number}");
        let Some(releasing) = killed_at(&lab, &gate).await else {
            assert!(number > 9, "a life takes more than {number} commands");
            lab.check_clean("a whole life");
            return;
        };
        goes_on(&lab, &gate, late, releasing).await;
    }
    panic!("a life takes {MOST} commands or more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_killed_before_a_command_loses_no_machine() {
    at_every_command("before", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_killed_after_a_command_loses_no_machine() {
    at_every_command("after", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_comes_late_changes_nothing() {
    at_every_command("before", true).await;
}
