//! The source `prometheus`: the real one, scraping our agent's page, and one
//! that answers badly.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use selvage_api::selvage::dashboard::{GetOverviewRequest, Overview, Severity};
use selvage_dashboard::{
    facts::Section,
    source::prometheus::{Prometheus, PrometheusOptions},
};
use selvage_kit::{identity::Secret, tasks::Tasks};
use selvage_node::{
    host::{Filesystem, MountLine},
    sampler::Sampler,
};
use tokio_util::sync::CancellationToken;

use super::lab::Lab;

const EVERY: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(120);

/// A dashboard with one Prometheus.
struct Watched {
    lab: Lab,
    tasks: Tasks,
}

impl Watched {
    async fn new(url: String) -> Self {
        let lab = Lab::new().await;
        let token = Some(Secret::new("canary-token"));
        let options = PrometheusOptions { url, token, ca: None };
        lab.dashboard.add_source(Prometheus::new(options, EVERY).unwrap());
        let tasks = Tasks::new(CancellationToken::new());
        lab.dashboard.spawn(&tasks);
        Self { lab, tasks }
    }

    fn error(&self) -> String {
        let sources = self.lab.dashboard.board().sources();
        let alerts = sources.iter().find(|state| state.section == Section::Alerts).unwrap();
        alerts.error.clone().unwrap_or_default()
    }

    async fn overview(&self) -> Overview {
        self.lab.dashboard.board().refresh();
        let shown = self.lab.overview().get_overview(GetOverviewRequest::default()).await;
        // Nothing can be told before a source has answered.
        shown.map(tonic::Response::into_inner).unwrap_or_default()
    }

    async fn until(&self, what: &str, so: impl Fn(&Self, &Overview) -> bool) -> Overview {
        let deadline = tokio::time::Instant::now() + LONGEST;
        loop {
            let overview = self.overview().await;
            if so(self, &overview) {
                return overview;
            }
            let state = format!("{} {:?}", self.error(), overview.problems);
            assert!(tokio::time::Instant::now() < deadline, "never: {what}; {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address.to_string()
}

/// The page that every agent has at `/metrics/node`, of a machine whose disk
/// is nearly full.
async fn agent() -> String {
    let sampler = Sampler::open(Path::new("/proc")).unwrap();
    sampler.look();
    let mount = MountLine {
        device: "/dev/sda1".into(),
        mounted_on: "/srv".into(),
        kind: "ext4".into(),
        read_only: false,
    };
    let (size, free, available) = (100_000, 9000, 8000);
    let full = Filesystem { mount, size, free, available, files: 10, files_free: 5 };
    let page = move || async move { selvage_node::prometheus::page(&sampler, &[full], None) };
    serve(Router::new().route("/metrics/node", get(page))).await
}

const RULES: &str = r#"
groups:
  - name: test
    rules:
      - alert: MachineWarm
        expr: node_memory_MemTotal_bytes > 0
        labels: {severity: critical}
        annotations: {summary: "It is <b>warm</b>", runbook_url: "https://wiki.example/warm"}
      - alert: SelvageProblemCritical
        expr: vector(1)
        labels: {severity: critical}
      - alert: Watchdog
        expr: vector(1)
        labels: {severity: none}
"#;

/// Ends with the test.
struct Real(Child);

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, agent: &str, port: u16) -> Option<Real> {
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\n\
         scrape_configs:\n  - job_name: nodes\n    metrics_path: /metrics/node\n    \
         static_configs: [{{targets: ['{agent}']}}]\n"
    );
    std::fs::write(folder.join("prometheus.yml"), config).unwrap();
    std::fs::write(folder.join("rules.yml"), RULES).unwrap();
    let started = Command::new("prometheus")
        .current_dir(folder)
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=data")
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match started {
        Ok(child) => Some(Real(child)),
        Err(error) => {
            selvage_testkit::skip("prometheus", &error.to_string());
            None
        }
    }
}

#[tokio::test]
async fn the_real_one_tells_of_alerts_and_of_machines_with_our_agent() {
    let folder = tempfile::tempdir().unwrap();
    let target = agent().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(real) = start(folder.path(), &target, free) else { return };
    let watched = Watched::new(format!("http://127.0.0.1:{free}")).await;
    let both = |overview: &Overview| {
        let has = |rule: &str| overview.problems.iter().any(|problem| problem.rule == rule);
        has("prometheus_alert") && has("filesystem_full")
    };
    let overview = watched.until("an alert and a full disk", |_, shown| both(shown)).await;
    let of = |rule: &'static str| overview.problems.iter().filter(move |p| p.rule == rule);
    let alerts: Vec<_> = of("prometheus_alert").collect();
    assert_eq!(alerts.len(), 1, "neither ours nor the one that always fires: {alerts:?}");
    assert_eq!(alerts[0].severity(), Severity::Critical);
    assert_eq!(alerts[0].summary, "It is <b>warm</b>");
    assert_eq!(alerts[0].runbook, "https://wiki.example/warm");
    assert_eq!(alerts[0].source, "prometheus");
    assert!(alerts[0].object.as_ref().unwrap().name.contains(&target));
    let full = of("filesystem_full").next().unwrap();
    assert_eq!(full.severity(), Severity::Warning);
    assert_eq!(full.object.as_ref().unwrap().name, format!("{target} /srv"));
    let room = overview.capacity.iter().find(|room| room.name == "file systems").unwrap();
    assert_eq!((room.total_bytes, room.available_bytes), (100_000, 8000));

    drop(real);
    let overview = watched.until("its end", |watched, _| !watched.error().is_empty()).await;
    assert!(both(&overview), "what it told last stays");
}

/// Behaviour of the imitation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Html,
    Half,
    Large,
    Never,
    Error,
    Refuse,
}

const FIRING: &str = r#"{"status":"success","data":{"alerts":[{"state":"firing",
    "labels":{"alertname":"A"},"annotations":{},"activeAt":"never"}]}}"#;

type Shared = Arc<Mutex<Mood>>;

async fn api(State(mood): State<Shared>, headers: HeaderMap) -> Response {
    let mood = *mood.lock().unwrap();
    let json = |body: String| ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    assert_eq!(headers[header::AUTHORIZATION], "Bearer canary-token");
    match mood {
        Mood::Well => json(FIRING.into()),
        Mood::Half => json(FIRING[..FIRING.len() / 2].into()),
        Mood::Large => json(format!("[{}0]", "0,".repeat(16 << 20))),
        Mood::Html => ([(header::CONTENT_TYPE, "text/html")], "<html>").into_response(),
        Mood::Never => std::future::pending().await,
        Mood::Error => {
            let error = r#"{"status":"error","error":"query timed out"}"#;
            (StatusCode::SERVICE_UNAVAILABLE, json(error.into())).into_response()
        }
        Mood::Refuse => StatusCode::UNAUTHORIZED.into_response(),
    }
}

#[tokio::test]
async fn bad_answers_leave_the_last_good_one_and_sections_without_data_are_dropped() {
    let mood: Shared = Arc::new(Mutex::new(Mood::Well));
    let router = Router::new()
        .route("/prom/api/v1/alerts", get(api))
        .route("/prom/api/v1/query", get(api))
        .with_state(Arc::clone(&mood));
    // Under a path, with and without a slash at its end.
    let watched = Watched::new(format!("http://{}/prom/", serve(router).await)).await;
    let alert = |shown: &Overview| shown.problems.iter().any(|p| p.rule == "prometheus_alert");
    let overview = watched.until("an alert", |_, shown| alert(shown)).await;
    let sections: Vec<&str> = overview.sources.iter().map(|one| one.section.as_str()).collect();
    assert_eq!(sections, ["alerts"], "no machine has an exporter");
    for (bad, words) in [
        (Mood::Html, "a page"),
        (Mood::Half, "no JSON"),
        (Mood::Large, "larger than"),
        (Mood::Never, "in time"),
        (Mood::Error, "query timed out"),
        (Mood::Refuse, "401"),
    ] {
        *mood.lock().unwrap() = bad;
        let what = format!("{bad:?}");
        let overview = watched.until(&what, |watched, _| watched.error().contains(words)).await;
        assert!(alert(&overview), "{bad:?}");
        assert!(!watched.error().contains("canary"));
        *mood.lock().unwrap() = Mood::Well;
        watched.until("well again", |watched, _| watched.error().is_empty()).await;
    }
}

#[test]
fn addresses_and_files_that_cannot_be_used_are_named() {
    let with = |url: &str, ca: Option<&str>| {
        let ca = ca.map(Into::into);
        let options = PrometheusOptions { url: url.into(), token: None, ca };
        Prometheus::new(options, EVERY).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(with("http://127.0.0.1:9090", None), "");
    assert!(with("9090", None).starts_with("url: "));
    assert!(with("file:///etc/passwd", None).starts_with("url: "));
    assert!(with("https://p.example", Some("/nowhere.pem")).starts_with("ca: "));
}
