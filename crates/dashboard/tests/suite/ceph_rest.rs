//! The manager's API as it behaves, good and bad, by a server that imitates it.

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use selvage_dashboard::{
    facts::{Section, Storage},
    source::ceph::{Ceph, CephMon, Program, RestOptions},
};
use selvage_kit::{identity::Secret, tasks::Tasks};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::lab::Lab;

const GOLDEN: &str = include_str!("../answers/health-full-golden.json");

/// Behaviour of the imitation.
#[derive(Debug, Clone, PartialEq)]
enum Mood {
    Well,
    Html,
    Half,
    Large,
    Never,
    Elsewhere(String),
    /// As a Ceph of another time refuses our version of the API.
    OtherVersion,
}

struct Imitation {
    mood: Mutex<Mood>,
    token: AtomicUsize,
    logins: AtomicUsize,
    asked: AtomicUsize,
    takes_password: AtomicBool,
    /// Questions that are asked once a minute.
    rarely: AtomicUsize,
    /// Answer to questions about health.
    health: Mutex<String>,
}

type Shared = Arc<Imitation>;

async fn log_in(State(it): State<Shared>) -> Response {
    it.logins.fetch_add(1, Ordering::SeqCst);
    if let Mood::Elsewhere(place) = it.mood.lock().unwrap().clone() {
        return (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response();
    }
    if !it.takes_password.load(Ordering::SeqCst) {
        return (StatusCode::BAD_REQUEST, Json(json!({"code": "invalid_credentials"})))
            .into_response();
    }
    let token = format!("token-{}", it.token.load(Ordering::SeqCst));
    (StatusCode::CREATED, Json(json!({"token": token}))).into_response()
}

async fn health(State(it): State<Shared>, headers: HeaderMap) -> Response {
    it.asked.fetch_add(1, Ordering::SeqCst);
    let expected = format!("Bearer token-{}", it.token.load(Ordering::SeqCst));
    let mood = it.mood.lock().unwrap().clone();
    if headers.get(header::AUTHORIZATION).is_none_or(|given| *given != *expected) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let json = |body: String| ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    match mood {
        Mood::Well => json(it.health.lock().unwrap().clone()),
        Mood::Half => json(GOLDEN[..GOLDEN.len() / 2].into()),
        Mood::Large => json(format!("[{}0]", "0,".repeat(20 << 20))),
        Mood::Html => {
            let page = "<html>no active mgr</html>";
            ([(header::CONTENT_TYPE, "text/html")], page).into_response()
        }
        Mood::OtherVersion => {
            let detail = "Incorrect version: endpoint is '2.0', client requested '1.0'";
            let body = json!({"detail": detail, "status": "415 Unsupported Media Type"});
            (StatusCode::UNSUPPORTED_MEDIA_TYPE, Json(body)).into_response()
        }
        Mood::Never => std::future::pending().await,
        Mood::Elsewhere(place) => {
            (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response()
        }
    }
}

/// Answers as 16.2.15 gives them, with two gateways on one host.
async fn rarely(State(it): State<Shared>, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches("/api/");
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wanted = if path == "block/image" { "2.0" } else { "1.0" };
    if accept != Some(&format!("application/vnd.ceph.api.v{wanted}+json")) {
        let detail = format!("Incorrect version: endpoint is '{wanted}', client requested other");
        let body = Json(json!({"detail": detail, "status": "415 Unsupported Media Type"}));
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, body).into_response();
    }
    let gateway = |id: &str, zone: &str| {
        json!({"id": id, "version": "ceph version 16.2.15", "server_hostname": "vm",
               "zonegroup_name": "default", "zone_name": zone})
    };
    let image = |name: &str| json!({"name": name, "size": 1_u64 << 30, "num_objs": 256});
    let host = |name: &str| json!({"osd": 0, "host": {"name": name}});
    let answer = match path {
        "block/image" => json!([
            {"pool_name": "rbd", "value": [image("a"), image("b")]},
            {"pool_name": "other", "value": [image("c")]},
        ]),
        "cephfs" => json!([{"id": 1, "mdsmap": {"fs_name": "myfs"}}]),
        "rgw/daemon" => json!([gateway("a", "default"), gateway("b", "second")]),
        _ => {
            it.rarely.fetch_add(1, Ordering::SeqCst);
            json!([host("one"), host("two"), host("one")])
        }
    };
    Json(answer).into_response()
}

/// Starts one; its address and what it does.
async fn imitate() -> (String, Shared) {
    let it = Arc::new(Imitation {
        mood: Mutex::new(Mood::Well),
        token: AtomicUsize::new(1),
        logins: AtomicUsize::new(0),
        asked: AtomicUsize::new(0),
        takes_password: AtomicBool::new(true),
        rarely: AtomicUsize::new(0),
        health: Mutex::new(GOLDEN.into()),
    });
    let router = Router::new()
        .route("/api/auth", post(log_in))
        .route("/api/health/minimal", get(health))
        .route("/api/health/full", get(health))
        .route("/api/osd", get(rarely))
        .route("/api/block/image", get(rarely))
        .route("/api/cephfs", get(rarely))
        .route("/api/rgw/daemon", get(rarely))
        .with_state(Arc::clone(&it));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, it)
}

struct Watched {
    lab: Lab,
    tasks: Tasks,
}

impl Watched {
    async fn new(urls: Vec<String>, program: Option<Program>) -> Self {
        Self::with_crashes(urls, program, None).await
    }

    /// `crashes` is the program that the source asks for crashes.
    async fn with_crashes(
        urls: Vec<String>,
        program: Option<Program>,
        crashes: Option<Program>,
    ) -> Self {
        let lab = Lab::new().await;
        let options = RestOptions {
            urls,
            username: "reader".into(),
            password: Secret::new("canary-password"),
            ca: None,
            skip_tls_verify: false,
        };
        let every = Duration::from_millis(20);
        lab.dashboard.add_source(Ceph::new(options, every, crashes).unwrap());
        if let Some(program) = program {
            let board = Arc::clone(lab.dashboard.board());
            lab.dashboard.add_source(CephMon::new(program, board, every, false));
        }
        let tasks = Tasks::new(CancellationToken::new());
        lab.dashboard.spawn(&tasks);
        Self { lab, tasks }
    }

    fn error(&self) -> String {
        let sources = self.lab.dashboard.board().sources();
        let storage = sources.iter().find(|state| state.section == Section::Storage).unwrap();
        storage.error.clone().unwrap_or_default()
    }

    fn storage(&self) -> Option<Arc<Storage>> {
        self.lab.dashboard.board().refresh();
        self.lab.dashboard.board().snapshot().facts.storage.clone()
    }

    async fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        while !so(self) {
            assert!(tokio::time::Instant::now() < deadline, "never: {what}; {}", self.error());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn set(it: &Shared, mood: Mood) {
    *it.mood.lock().unwrap() = mood;
}

#[tokio::test]
async fn the_token_is_kept_and_asked_for_again_when_it_ended() {
    let (url, it) = imitate().await;
    let watched = Watched::new(vec![url], None).await;
    watched.until("health", |w| w.storage().is_some()).await;
    assert_eq!(it.logins.load(Ordering::SeqCst), 1);
    it.token.store(2, Ordering::SeqCst);
    let before = it.asked.load(Ordering::SeqCst);
    watched.until("two more answers", |_| it.asked.load(Ordering::SeqCst) > before + 4).await;
    assert_eq!(it.logins.load(Ordering::SeqCst), 2);
    assert_eq!(watched.error(), "");
}

#[tokio::test]
async fn a_wrong_password_is_tried_once() {
    let (url, it) = imitate().await;
    it.takes_password.store(false, Ordering::SeqCst);
    let watched = Watched::new(vec![url], None).await;
    watched.until("a refusal", |w| w.error().contains("username and password")).await;
    assert!(!watched.error().contains("canary"));
    tokio::task::yield_now().await;
    assert_eq!(it.logins.load(Ordering::SeqCst), 1, "Ceph disables accounts after ten");
}

#[tokio::test]
async fn what_is_no_answer_leaves_the_last_good_one() {
    let (url, it) = imitate().await;
    let watched = Watched::new(vec![url], None).await;
    watched.until("health", |w| w.storage().is_some()).await;
    for (mood, words) in [
        (Mood::Html, "a page"),
        (Mood::Half, "JSON"),
        (Mood::Large, "larger than"),
        (Mood::Never, "in time"),
        (Mood::OtherVersion, "415 Unsupported Media Type: Incorrect version: endpoint is '2.0'"),
    ] {
        set(&it, mood.clone());
        watched.until(&format!("{mood:?}"), |w| w.error().contains(words)).await;
        assert_eq!(watched.storage().unwrap().status, "HEALTH_WARN", "{mood:?}");
        set(&it, Mood::Well);
        watched.until("well again", |w| w.error().is_empty()).await;
    }
}

#[tokio::test]
async fn the_active_manager_is_found_among_those_that_are_known() {
    let (standby, it) = imitate().await;
    let (active, _) = imitate().await;
    set(&it, Mood::Elsewhere(format!("{active}/api/auth")));
    let watched = Watched::new(vec![standby.clone(), active], None).await;
    watched.until("health", |w| w.storage().is_some()).await;
    // To nowhere else.
    let watched = Watched::new(vec![standby], None).await;
    let is_refused = |w: &Watched| w.error().contains("not among the configured addresses");
    watched.until("a refusal", is_refused).await;
    assert!(watched.storage().is_none());
}

/// A `ceph` that runs a script.
fn program(folder: &Path, script: &str) -> Program {
    let path = folder.join("ceph");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Program { path, conf: None, name: None }
}

#[tokio::test]
async fn new_crashes_are_listed_as_soon_as_health_tells_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let crashes = folder.path().join("crashes.json");
    std::fs::write(&crashes, "[]").unwrap();
    let program = program(folder.path(), &format!("#!/bin/sh\ncat {}\n", crashes.display()));
    let mut quiet: Value = serde_json::from_str(GOLDEN).unwrap();
    quiet["health"]["checks"] = json!([]);
    let (url, it) = imitate().await;
    *it.health.lock().unwrap() = quiet.to_string();
    let watched = Watched::with_crashes(vec![url], None, Some(program)).await;
    watched.until("health", |w| w.storage().is_some()).await;
    let listed = |w: &Watched| w.storage().map(|storage| storage.crashes.clone());
    assert_eq!(listed(&watched), Some(Vec::new()));
    let crash = json!([{"entity_name": "osd.1", "timestamp": "2026-11-15T12:00:00Z"}]);
    std::fs::write(&crashes, crash.to_string()).unwrap();
    // This one tells of a crash.
    *it.health.lock().unwrap() = GOLDEN.into();
    let told = Some(vec!["osd.1 at 2026-11-15T12:00:00Z".to_owned()]);
    watched.until("the crash", |w| listed(w) == told).await;
    std::fs::write(&crashes, "[]").unwrap();
    *it.health.lock().unwrap() = quiet.to_string();
    watched.until("no crash", |w| listed(w) == Some(Vec::new())).await;
    assert_eq!(it.rarely.load(Ordering::SeqCst), 1, "the minute was not waited for");
}

#[tokio::test]
async fn a_list_of_crashes_that_fails_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let crash = json!([{"entity_name": "osd.1", "timestamp": "2026-11-15T12:00:00Z"}]);
    let (list, asked) = (folder.path().join("list"), folder.path().join("asked"));
    std::fs::write(&list, crash.to_string()).unwrap();
    let script = format!("#!/bin/sh\necho >>{}\nexec cat {}\n", asked.display(), list.display());
    let program = program(folder.path(), &script);
    let (url, it) = imitate().await;
    let watched = Watched::with_crashes(vec![url], None, Some(program)).await;
    let told = |w: &Watched| w.storage().map(|storage| storage.crashes.len());
    watched.until("the crash", |w| told(w) == Some(1)).await;
    // The program fails, and health tells of other crashes, so that it is asked.
    std::fs::remove_file(&list).unwrap();
    let mut quiet: Value = serde_json::from_str(GOLDEN).unwrap();
    quiet["health"]["checks"] = json!([]);
    *it.health.lock().unwrap() = quiet.to_string();
    let questions = || std::fs::read_to_string(&asked).unwrap().lines().count();
    watched.until("another question", |_| questions() > 1).await;
    let before = it.asked.load(Ordering::SeqCst);
    watched.until("answers after it", |_| it.asked.load(Ordering::SeqCst) > before + 4).await;
    assert_eq!(told(&watched), Some(1));
}

#[tokio::test]
async fn images_gateways_and_hosts_are_counted_by_what_they_are() {
    let (url, _) = imitate().await;
    let watched = Watched::new(vec![url], None).await;
    watched.until("health", |w| w.storage().is_some()).await;
    let storage = watched.storage().unwrap();
    // Images, not pools with images; and the file system.
    assert_eq!(storage.volumes, Some(4));
    let rgw = storage.rgw.clone().unwrap();
    assert_eq!((rgw.hosts, rgw.zones), (Some(1), Some(2)));
    assert_eq!(storage.hosts, Some(2));
}

#[tokio::test]
async fn monitors_alone_tell_of_managers_pools_and_ratios() {
    let folder = tempfile::tempdir().unwrap();
    let answers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers");
    let script = format!(
        "#!/bin/sh\ncd {}\ncase \"$*\" in *crash*) echo '[]';; \
         *'mgr dump') cat mgr-dump-16.2.15.json;; *'osd dump') cat osd-dump-16.2.15.json;; \
         *status) cat status-16.2.15.json;; *) exit 1;; esac\n",
        answers.display()
    );
    let lab = Lab::new().await;
    let board = Arc::clone(lab.dashboard.board());
    let program = program(folder.path(), &script);
    lab.dashboard.add_source(CephMon::new(program, board, Duration::from_millis(20), true));
    let tasks = Tasks::new(CancellationToken::new());
    lab.dashboard.spawn(&tasks);
    let watched = Watched { lab, tasks };
    watched.until("the monitors", |w| w.storage().is_some()).await;
    let storage = watched.storage().unwrap();
    let mgr = storage.mgr.clone().unwrap();
    assert_eq!((mgr.active.as_str(), mgr.standbys.as_slice()), ("x", &["y".to_owned()][..]));
    assert!(mgr.changed.is_some());
    let pools = storage.pools.clone().unwrap();
    let shown: Vec<_> =
        pools.iter().map(|pool| (pool.name.as_str(), pool.size, pool.coding)).collect();
    assert_eq!(shown, [("data", 3, None), ("coded", 4, Some(2))]);
    let usage = storage.usage.unwrap();
    assert!((usage.near_full - 0.8).abs() < 1e-6 && (usage.full - 0.95).abs() < 1e-6);
}

#[tokio::test]
async fn monitors_are_asked_while_no_manager_answers() {
    let folder = tempfile::tempdir().unwrap();
    let status = r#"{"fsid":"f","health":{"status":"HEALTH_OK","checks":{}},"quorum_names":["a"],
        "monmap":{"num_mons":1},"osdmap":{"num_osds":3,"num_up_osds":2,"num_in_osds":3}}"#;
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *crash*) echo '[]';; *) cat <<'END'\n{status}\nEND\n;; esac\n"
    );
    let program = program(folder.path(), &script);
    let (url, it) = imitate().await;
    let watched = Watched::new(vec![url], Some(program)).await;
    watched.until("the manager", |w| w.storage().is_some_and(|s| s.status == "HEALTH_WARN")).await;
    set(&it, Mood::Html);
    watched.until("the monitors", |w| w.storage().is_some_and(|s| s.status == "HEALTH_OK")).await;
    assert_eq!(watched.storage().unwrap().osd.as_ref().unwrap().up, 2);
    set(&it, Mood::Well);
    watched.until("the manager", |w| w.storage().is_some_and(|s| s.status == "HEALTH_WARN")).await;
}
