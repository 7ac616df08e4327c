//! Engines that start while no controller is there.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use selvage_api::selvage::matching::CookieKey;
use selvage_dme::{Error, Mirror, Settings, keys::KeySource};

use crate::{
    lab::{Keys, app, instance, name, until},
    upstream::{Controller, PLACES, Running, all_up, put_all, quick},
};

const HERE: &str = "the controller's certificate";

/// A controller that is away hands out no keys.
struct NoKeys;

#[async_trait::async_trait]
impl KeySource for NoKeys {
    async fn keys(&self) -> Result<Vec<CookieKey>, Error> {
        Err(Error::Controller(Box::new(tonic::Status::unavailable("away"))))
    }
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

async fn open(path: &Path) -> Mirror {
    Mirror::open(path, HERE).await.unwrap()
}

/// An engine whose controller is away.
async fn alone(path: &Path, of: &str, settings: Settings) -> Running {
    let mirror = Mirror::open(path, of).await.unwrap();
    Running::start_with(nowhere(), settings, Arc::new(NoKeys), Some(mirror))
}

async fn written(engine: &Running) {
    until("on disk", || engine.dme.mirror_pending() == Some(0)).await;
}

/// A mirror of three instances of an app, and a cookie of it.
async fn filled(path: &Path, tells_of_cloudlets: bool) -> String {
    let controller = Controller::new();
    all_up(&controller);
    let mut some = app(&name("some"));
    some.deployment_manifest = "PASSWORD=canary".into();
    controller.apps.put(some).unwrap();
    put_all(&controller, "some");
    let serving = controller.serve(tells_of_cloudlets, None).await;
    let keys = Arc::new(Keys::with(1));
    let engine = Running::start_with(serving.address, quick(), keys, Some(open(path).await));
    engine.offers("some", &["TDG/a", "TDG/b", "TMUS/c"]).await;
    engine.ready().await;
    let cookie = engine.dme.engine().cookies().issue(&name("some"), "").unwrap();
    engine.end().await;
    serving.stop().await;
    cookie
}

#[tokio::test]
async fn an_engine_starts_without_its_controller_and_is_corrected_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror");
    let cookie = filled(&path, true).await;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has keys in it");
    let bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.windows(6).any(|part| part == b"canary"), "no answer depends on this");

    let engine = alone(&path, HERE, quick()).await;
    engine.ready().await;
    assert_eq!(engine.names("some"), ["TDG/a", "TDG/b", "TMUS/c"]);
    engine.dme.engine().cookies().verify(&cookie).await.unwrap();
    assert!(engine.dme.staleness() > Duration::ZERO);
    engine.end().await;

    // It starts once more, and the controller is back with one less.
    let controller = Controller::new();
    all_up(&controller);
    controller.apps.put(app(&name("some"))).unwrap();
    put_all(&controller, "some");
    controller.instances.remove(&instance(&name("some"), PLACES[1], (0.0, 0.0), "")).unwrap();
    let serving = controller.serve(true, None).await;
    let keys = Arc::new(Keys::with(2));
    let engine = Running::start_with(serving.address, quick(), keys, Some(open(&path).await));
    engine.offers("some", &["TDG/a", "TMUS/c"]).await;
    until("newer keys", || engine.dme.engine().cookies().newest() == Some(2)).await;
    until("in step", || engine.dme.staleness() == Duration::ZERO).await;
    engine.dme.engine().cookies().verify(&cookie).await.unwrap();
    written(&engine).await;
    engine.end().await;
    serving.stop().await;

    let engine = alone(&path, HERE, quick()).await;
    engine.ready().await;
    assert_eq!(engine.names("some"), ["TDG/a", "TMUS/c"]);
    assert_eq!(engine.dme.engine().cookies().newest(), Some(2));
    engine.end().await;
}

/// An engine that may not answer by what is too old does not forget over a
/// start how old it is.
#[tokio::test]
async fn what_was_known_long_ago_is_old_after_a_start_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror");
    filled(&path, true).await;
    let tolerant = Settings { max_staleness: Duration::from_secs(3600), ..quick() };
    let engine = alone(&path, HERE, tolerant).await;
    engine.ready().await;
    engine.end().await;
    let strict = Settings { max_staleness: Duration::from_nanos(1), ..quick() };
    let engine = alone(&path, HERE, strict).await;
    let mut ready = engine.dme.ready();
    let reason = |ready: &Result<(), String>| {
        ready.as_ref().is_err_and(|why| why.contains("no controller has been in touch for"))
    };
    ready.wait_for(reason).await.unwrap();
    engine.end().await;
}

/// A controller of the original never says which cloudlets are up; after a
/// start none is down for that.
#[tokio::test]
async fn the_mirror_keeps_whether_the_controller_sends_cloudlets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror");
    filled(&path, false).await;
    let engine = alone(&path, HERE, quick()).await;
    engine.ready().await;
    assert_eq!(engine.names("some").len(), 3);
    engine.end().await;
}

#[tokio::test]
async fn what_another_controller_said_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror");
    filled(&path, true).await;
    for of in ["another one", HERE] {
        let engine = alone(&path, of, quick()).await;
        assert_eq!(engine.names("some"), [""; 0], "{of}");
        assert_eq!(engine.dme.engine().cookies().newest(), None, "nor are its keys used");
        let waiting = engine.dme.ready().borrow().clone();
        assert!(waiting.unwrap_err().contains("no controller has told it"));
        engine.end().await;
    }
}

#[tokio::test]
async fn a_damaged_mirror_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mirror");
    filled(&path, true).await;
    let whole = std::fs::read(&path).unwrap();
    let mut holed = whole.clone();
    holed.iter_mut().skip(64).for_each(|byte| *byte ^= 0x5a);
    for damaged in [b"nonsense".to_vec(), whole[..whole.len() / 3].to_vec(), holed] {
        std::fs::write(&path, &damaged).unwrap();
        let engine = alone(&path, HERE, quick()).await;
        assert_eq!(engine.names("some"), [""; 0]);
        engine.end().await;
        let aside = folder.path().join("mirror.damaged");
        assert_eq!(std::fs::read(&aside).unwrap().len(), damaged.len());
        filled(&path, true).await;
        let engine = alone(&path, HERE, quick()).await;
        assert_eq!(engine.names("some").len(), 3, "it works again");
        engine.end().await;
    }
}
