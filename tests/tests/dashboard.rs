//! The dashboard of a real process: the original's own requests, the page, who
//! sees what, the command line, and what outlives the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use selvage_api::{
    edgeproto::{
        Cloudlet, CloudletKey, Developer, DeveloperKey, Operator, OperatorKey,
        cloudlet_api_client::CloudletApiClient, developer_api_client::DeveloperApiClient,
        operator_api_client::OperatorApiClient,
    },
    selvage::{
        dashboard::{
            GetOverviewRequest, ListAuditRequest, Overview, WatchOverviewRequest,
            dashboard_service_client::DashboardServiceClient,
        },
        identity::{AddUserRequest, Grant, User, identity_service_client::IdentityServiceClient},
    },
};
use selvage_testkit::wait_for as eventually;
use selvage_tests::{Client, Selvage, client::http, process};
use serde_json::{Value, json};

const METHODS: [&str; 4] =
    ["GetClusterStats", "GetClusterResources", "GetClusterNodes", "GetClusterRadar"];

async fn overview(client: &Client) -> Overview {
    let mut service = DashboardServiceClient::new(client.channel.clone());
    eventually("an overview", async || {
        service.get_overview(client.request(GetOverviewRequest {})).await.ok()
    })
    .await
    .into_inner()
}

async fn add_user(admin: &Client, selvage: &Selvage, role: &str, organisation: &str) -> Client {
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    let username = format!("a-{role}");
    let grant = Grant { role: role.into(), organisation: organisation.into() };
    let user = User { username: username.clone(), grants: vec![grant], ..User::default() };
    let request = AddUserRequest { user: Some(user), password: "correct horse".into() };
    identity.add_user(admin.request(request)).await.unwrap();
    Client::login(selvage, &username, "correct horse").await.unwrap()
}

async fn add_cloudlet(admin: &Client) {
    let operator_key = Some(OperatorKey { name: "tmus".into() });
    let operator = Operator { key: operator_key.clone(), ..Operator::default() };
    let mut operators = OperatorApiClient::new(admin.channel.clone());
    operators.create_operator(admin.request(operator)).await.unwrap();
    let developer_key = Some(DeveloperKey { name: "acme".into() });
    let developer = Developer { key: developer_key, ..Developer::default() };
    let mut developers = DeveloperApiClient::new(admin.channel.clone());
    developers.create_developer(admin.request(developer)).await.unwrap();
    let key = CloudletKey { operator_key, name: "berlin-1".into() };
    let cloudlet = Cloudlet {
        key: Some(key),
        location: Some(selvage_api::distributed_match_engine::Loc {
            latitude: 52.5,
            longitude: 13.4,
            ..Default::default()
        }),
        ip_support: selvage_api::edgeproto::IpSupport::Dynamic.into(),
        num_dynamic_ips: 10,
        ..Cloudlet::default()
    };
    let mut cloudlets = CloudletApiClient::new(admin.channel.clone());
    let made = cloudlets.create_cloudlet(admin.request(cloudlet)).await;
    let mut progress = made.unwrap().into_inner();
    while progress.message().await.unwrap().is_some() {}
}

/// As the original's page does it: Connect with JSON, under `/api`.
#[tokio::test]
async fn the_originals_requests_are_answered() {
    let selvage = Selvage::up(&[]);
    let (web, endpoint) = (http(&selvage), selvage.endpoint().to_owned());
    let call = async |path: &str, token: &str, body: Value| {
        let request = web.post(format!("{endpoint}/api/{path}")).json(&body);
        let request = request.header("connect-protocol-version", "1");
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        request.send().await.unwrap()
    };
    let login = json!({"username": "admin", "password": selvage.password()});
    let reply = call("services.auth.AuthService/Login", "", login).await;
    let token: Value = reply.json().await.unwrap();
    let token = token["token"].as_str().unwrap().to_owned();
    for method in METHODS {
        let path = format!("stats.StatsService/{method}");
        let refused = call(&path, "", json!({})).await;
        assert_eq!(refused.status(), 401, "{method}");
        let error: Value = refused.json().await.unwrap();
        assert_eq!(error["code"], "unauthenticated");
        let reply = eventually(method, async || {
            let reply = call(&path, &token, json!({})).await;
            (reply.status() == 200).then_some(reply)
        })
        .await;
        assert!(reply.headers().contains_key("x-data-age-ms"), "{method}");
        assert_eq!(reply.headers()["x-data-stale"], "false", "{method}");
        let body: Value = reply.json().await.unwrap();
        match method {
            "GetClusterStats" => {
                let status = body["stats"]["status"].as_str().unwrap();
                assert!(status.starts_with("HEALTH_"), "{body}");
                assert_eq!(body["stats"]["id"].as_str().unwrap().len(), 36);
                // 64-bit numbers are strings in this JSON.
                assert!(body["stats"]["data"]["usage"]["total"].is_string(), "{body}");
            }
            // The machine itself is in the inventory a moment after the start.
            "GetClusterNodes" => {
                eventually("this machine", async || {
                    let body: Value = call(&path, &token, json!({})).await.json().await.unwrap();
                    (body["nodes"][0]["status"] == "RESOURCE_READY").then_some(())
                })
                .await;
            }
            "GetClusterRadar" => {
                eventually("a healthy machine", async || {
                    let body: Value = call(&path, &token, json!({})).await.json().await.unwrap();
                    (body["radar"]["nodesHealth"] == 100.0).then_some(())
                })
                .await;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_page_is_at_the_root_under_a_strict_policy() {
    let selvage = Selvage::up(&[]);
    let (web, endpoint) = (http(&selvage), selvage.endpoint());
    let page = web.get(format!("{endpoint}/")).send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    assert!(!policy.contains("unsafe"), "{policy}");
    let html = page.text().await.unwrap();
    assert!(html.contains("Selvage") && !html.contains("<script>"), "{html}");
    let docs = web.get(format!("{endpoint}/docs")).send().await.unwrap();
    assert_eq!(docs.status(), 200);
}

#[tokio::test]
async fn changes_are_pushed_and_everybody_sees_their_own() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let developer = add_user(&admin, &selvage, "developer", "acme").await;
    let before = overview(&admin).await;
    let mut service = DashboardServiceClient::new(admin.channel.clone());
    let watch = service.watch_overview(admin.request(WatchOverviewRequest::default())).await;
    let mut watch = watch.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert!(first.overview.unwrap().version >= before.version);
    add_cloudlet(&admin).await;
    let place = loop {
        let update = watch.message().await.unwrap().unwrap();
        let places = update.overview.map(|overview| overview.places).unwrap_or_default();
        if let Some(place) = places.into_iter().next() {
            break place;
        }
    };
    assert_eq!(place.cloudlet.unwrap().name, "tmus/berlin-1");
    assert_eq!(place.state, "no agent yet");
    // A developer sees where cloudlets are, and no machines.
    let narrow = overview(&developer).await;
    assert_eq!(narrow.places.len(), 1);
    let kinds: Vec<&str> = narrow.counts.iter().map(|count| count.kind.as_str()).collect();
    assert!(!kinds.contains(&"machine") && kinds.contains(&"appinst"), "{kinds:?}");
    assert!(narrow.capacity.is_empty() && narrow.sources.is_empty());
}

#[tokio::test]
async fn who_did_what_is_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut selvage = Selvage::up_in(directory.path(), &[]);
    let admin = Client::admin(&selvage).await;
    let developer = add_user(&admin, &selvage, "developer", "acme").await;
    add_cloudlet(&admin).await;
    drop(admin);
    selvage.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(selvage.wait().success());
    let selvage = Selvage::up_in(directory.path(), &[]);
    let admin = Client::admin(&selvage).await;
    let mut service = DashboardServiceClient::new(admin.channel.clone());
    let request = ListAuditRequest { method: "CreateCloudlet".into(), ..Default::default() };
    let found = service.list_audit(admin.request(request)).await.unwrap().into_inner().lines;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].who.as_str(), found[0].outcome.as_str()), ("admin", "ok"));
    assert!(found[0].request.contains("berlin-1"), "{}", found[0].request);
    let all = service.list_audit(admin.request(ListAuditRequest::default())).await.unwrap();
    let text = format!("{all:?}");
    assert!(text.contains("AddUser") && !text.contains("correct horse"), "{text}");
    // Sessions survive restarts; others' lines are not a developer's to see.
    let developer = Client { channel: admin.channel.clone(), ..developer };
    let own = service.list_audit(developer.request(ListAuditRequest::default())).await.unwrap();
    assert!(own.into_inner().lines.iter().all(|line| line.who == "a-developer"));
}

#[test]
fn the_status_of_a_whole_system_says_that_the_dashboard_serves() {
    let selvage = Selvage::up(&[]);
    let cli = process::Cli::admin_of(&selvage);
    let status = cli.json(&["status", "-o", "json"]);
    let parts = status["parts"].as_array().unwrap();
    let dashboard = parts.iter().find(|part| part["name"] == "dashboard").unwrap();
    assert_eq!(dashboard["state"], "serving", "{status}");
    let services = dashboard["services"].to_string();
    for service in ["stats.StatsService", "selvage.dashboard.DashboardService"] {
        assert!(services.contains(service), "{services}");
    }
    let shown = cli.ok(&["status"]);
    let line = shown.lines().find(|line| line.contains("dashboard")).unwrap();
    assert!(line.contains("serving"), "{shown}");
}

#[tokio::test]
async fn health_is_one_line_and_an_exit_code() {
    let selvage = Selvage::up(&["--insecure"]);
    let run = |words: &[&str]| {
        let mut command = process::command();
        command.args(words).args(["--endpoint", selvage.endpoint()]).output().unwrap()
    };
    let healthy = process::wait_for("health", || {
        let ran = run(&["health"]);
        (ran.status.code() != Some(3)).then_some(ran)
    });
    let line = String::from_utf8(healthy.stdout).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    let word = match healthy.status.code() {
        Some(0) => "OK: ",
        Some(1) => "WARNING: ",
        _ => "CRITICAL: ",
    };
    assert!(line.starts_with(word), "{line}");
    let shown = run(&["dashboard"]);
    assert!(shown.status.success());
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("SCORES") && shown.contains("cluster health"), "{shown}");
    let json = run(&["dashboard", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["verdict"]["sentence"].is_string(), "{json}");
    drop(selvage);
    let mut command = process::command();
    let nobody = command.args(["health", "--endpoint", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3));
}
