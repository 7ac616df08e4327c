//! An update replaces an instance, once, and is not made before it is.

use std::{sync::Arc, time::Duration};

use selvage_api::edgeproto::{App, AppInst, TrackedState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::support::{
    ANSWER, Life, Running, Stuck, TestCloudlet, TestController, can_run, fetch, wait_for,
};

/// A server that takes some looks of the crm to listen.
const SLOW: &str = "/bin/sh -c 'sleep 2; exec httpd -f -p 8080 -h /www'";
/// A server that ends at once when it is told to, with all it was about to say.
const PROMPT: &str =
    "/bin/sh -c 'trap \"exit 0\" TERM; /bin/httpd -f -p 8080 -h /www & while :; do wait; done'";
const NEWS: &str = "news from the edge";

/// Waits until an instance answers with these words.
async fn serves(place: &TestCloudlet, words: &str) {
    wait_for(words, || async { fetch(place.public()).await.filter(|it| it.contains(words)) }).await;
}

/// Process of the one container that is left once what was replaced is gone.
async fn pid(running: &Running) -> u32 {
    wait_for("one container", || async {
        let all = running.runtime.list("selvage").await.unwrap();
        (all.len() == 1).then(|| all[0].pid.unwrap())
    })
    .await
}

/// The app with a server of other contents.
fn with_news(place: &TestCloudlet) -> App {
    let command =
        format!("/bin/sh -c 'echo {NEWS} > /www/index.html; exec httpd -f -p 8080 -h /www'");
    App { command, ..place.app() }
}

/// Whatever is wrong with the new version, the old one serves and is said to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_update_leaves_the_old_version_serving() {
    if !can_run() {
        return;
    }
    let place = Arc::new(TestCloudlet::new("proven", 180));
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    let before = pid(&running).await;
    let nowhere = format!("file://{}/missing.tar", place.directory.path().display());
    let missing = App { image_path: nowhere, ..place.app() };
    let crashing = App { command: "/bin/false".into(), ..place.app() };
    for (app, why) in [(missing, "missing.tar"), (crashing, "code 1")] {
        controller.apps.put(app).unwrap();
        controller.instances.put(place.instance(TrackedState::UpdateRequested)).unwrap();
        let key = place.instance_key();
        // What was said of the one before may still be there.
        let info = wait_for("the failure", || async {
            let info = controller.instance_infos.find(&key)?;
            info.errors.iter().any(|error| error.contains(why)).then_some(info)
        })
        .await;
        assert_eq!(info.state(), TrackedState::UpdateError);
        let runtime = info.runtime_info.clone().unwrap();
        assert_eq!(runtime.unhealthy, "");
        assert!(!runtime.addresses.is_empty(), "{runtime:?}");
        controller.instances.put(place.instance(TrackedState::UpdateError)).unwrap();
        let answer = wait_for("an answer", || fetch(place.public())).await;
        assert!(answer.contains(ANSWER), "{answer}");
        assert_eq!(pid(&running).await, before, "{why}");
    }

    controller.apps.put(with_news(&place)).unwrap();
    controller.believe(&place);
    controller.update(&place).await;
    let answer = wait_for("an answer", || fetch(place.public())).await;
    assert!(answer.contains(NEWS), "{answer}");
    assert_ne!(pid(&running).await, before);
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

/// A client that asks again and again is answered every time, and so is one
/// whose request was on its way to the old version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_a_good_update_is_made() {
    if !can_run() {
        return;
    }
    let mut place = TestCloudlet::new("smooth", 186);
    place.command = PROMPT.into();
    let place = Arc::new(place);
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    controller.believe(&place);
    wait_for("an answer", || fetch(place.public())).await;
    let mut slow = tokio::net::TcpStream::connect(place.public()).await.unwrap();
    slow.write_all(b"GET / HTTP/1.0\r\n").await.unwrap();

    let (at, over) = (place.public(), CancellationToken::new());
    let until = over.clone();
    let client = tokio::spawn(async move {
        let mut answers = Vec::new();
        while !until.is_cancelled() {
            answers.push(fetch(at).await);
        }
        answers
    });
    controller.apps.put(with_news(&place)).unwrap();
    controller.update(&place).await;
    let mut answer = String::new();
    slow.write_all(b"\r\n").await.unwrap();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(ANSWER), "the old version has time to answer: {answer:?}");
    pid(&running).await;
    over.cancel();
    let answers = client.await.unwrap();
    let failed = answers.iter().filter(|answer| answer.is_none()).count();
    assert_eq!(failed, 0, "of {}", answers.len());
    let (first, last) = (answers[0].as_ref().unwrap(), answers.last().unwrap().as_ref().unwrap());
    assert!(first.contains(ANSWER) && last.contains(NEWS), "{first} {last}");
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

/// A changed App is for the next update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_runs_what_it_was_made_of() {
    if !can_run() {
        return;
    }
    let place = Arc::new(TestCloudlet::new("pinned", 182));
    let controller = TestController::start().await;
    let running = place.start(controller.address).await;
    controller.make(&place).await;
    controller.believe(&place);
    controller.apps.put(with_news(&place)).unwrap();
    let all = running.runtime.list("selvage").await.unwrap();
    running.runtime.delete("selvage", &all[0].runtime_id, true).await.unwrap();
    let answer = wait_for("an answer", || fetch(place.public())).await;
    assert!(answer.contains(ANSWER), "{answer}");
    let before = pid(&running).await;

    // What it says of the container that was started again can still be on its way, and
    // counts for the end of the update.
    controller.update(&place).await;
    serves(&place, NEWS).await;
    assert_ne!(pid(&running).await, before);

    let wanted = place.instance(TrackedState::UpdateRequested);
    controller.instances.put(AppInst { pinned_app: Some(place.app()), ..wanted }).unwrap();
    serves(&place, ANSWER).await;
    controller.is_ready(&place).await;
    pid(&running).await;
    controller.unmake(&place).await;
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_replaces_an_instance_once_however_long_that_takes() {
    if !can_run() {
        return;
    }
    let mut place = TestCloudlet::new("once", 236);
    place.command = SLOW.into();
    place.grace = Duration::from_secs(10);
    let place = Arc::new(place);
    let controller = TestController::start().await;
    let counted = Stuck::nowhere();
    let running = place.start_stuck(controller.address, &counted).await;
    controller.make(&place).await;
    controller.believe(&place);
    assert_eq!(counted.made(), 1);
    for _ in 0..2 {
        let before = pid(&running).await;
        controller.update(&place).await;
        assert_ne!(pid(&running).await, before, "it was replaced");
    }
    let after = pid(&running).await;
    let answer = wait_for("an answer", || fetch(place.public())).await;
    assert!(answer.contains(ANSWER), "{answer}");
    assert_eq!(pid(&running).await, after, "it was left alone since");
    // Whatever waited for its turn had it before the delete.
    controller.unmake(&place).await;
    assert_eq!(counted.made(), 1 + 2);
    running.stop().await;
    assert_eq!(place.left_behind(), Vec::<String>::new());
}

/// The power goes off before the instance is replaced, and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_a_power_cut_ends_is_made_by_the_next_crm() {
    if !can_run() {
        return;
    }
    for (after, range) in [false, true].into_iter().zip(237..) {
        let place = Arc::new(TestCloudlet::new("cut", range));
        let controller = TestController::start().await;
        // After those of the create.
        let stuck = Stuck::new(2, after);
        let life = Life::start(&place, controller.address, &stuck).await;
        controller.make(&place).await;
        controller.believe(&place);
        controller.apps.put(with_news(&place)).unwrap();
        controller.instances.put(place.instance(TrackedState::UpdateRequested)).unwrap();
        stuck.reached().await;
        life.cut().await;
        let running = place.start(controller.address).await;
        controller.is_ready(&place).await;
        let answer = wait_for("an answer", || fetch(place.public())).await;
        assert!(answer.contains(NEWS), "{stuck:?}: {answer}");
        pid(&running).await;
        controller.unmake(&place).await;
        running.stop().await;
        assert_eq!(place.left_behind(), Vec::<String>::new(), "{stuck:?}");
    }
}
