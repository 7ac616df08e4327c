//! Visibility and trust: agents by their certificates, people by their
//! sessions.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::app_api_client::AppApiClient;
use selvage_api::edgeproto::app_inst_metrics_api_client::AppInstMetricsApiClient;
use selvage_api::edgeproto::cloudlet_info_api_client::CloudletInfoApiClient;
use selvage_api::selvage::metrics::ListSamplesRequest;
use selvage_api::selvage::metrics::metrics_service_client::MetricsServiceClient;
use selvage_kit::identity::{
    Authenticator, Credentials, Grant, Identity, Kind, Machine, Refused, Role,
};
use selvage_kit::pki::{
    Ca, KeyRequest, RotatingIdentity, ServerIdentity, client_config, server_config,
};
use selvage_kit::serve::{Limits, Server, Services, Socket, Trust};
use selvage_kit::telemetry::Metrics;
use selvage_notify::{Cache, ClientOptions, Exchange, NotifyClient};
use tonic::Request;
use tonic::transport::Channel;
use wire::Liveness::Static;

use super::harness::*;

/// A token is its owner's role and organisation: `developer/Acme`.
struct ByToken;

#[async_trait]
impl Authenticator for ByToken {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        let Credentials::Bearer(token) = credentials else { return Ok(Identity::anonymous()) };
        let (role, organisation) = token.expose().split_once('/').unwrap();
        let role = match role {
            "admin" => Role::Admin,
            "developer" => Role::Developer,
            "operator" => Role::Operator,
            _ => Role::Viewer,
        };
        Ok(Identity {
            name: token.expose().to_owned(),
            kind: Kind::User { session: "s".into(), expires: i64::MAX },
            grants: vec![Grant { role, organisation: organisation.into() }],
        })
    }
}

/// A controller that authenticates every caller.
struct Guarded {
    house: House,
    ca: Arc<Ca>,
    folder: tempfile::TempDir,
    agents: String,
    people: Channel,
}

impl Guarded {
    async fn open() -> Self {
        let house = house().await;
        let folder = tempfile::tempdir().unwrap();
        let ca = Arc::new(Ca::open_or_create(&folder.path().join("ca")).unwrap());
        let names = vec!["127.0.0.1".to_owned()];
        let identity = ServerIdentity::issued(Arc::clone(&ca), names).unwrap();
        let tls = server_config(&identity, &ca).unwrap();
        let mut services = Services::default();
        house.controller.add_to(&mut services);
        let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
        let mut addresses = Vec::new();
        for tls in [Some(tls), None] {
            let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), tls).unwrap();
            addresses.push(socket.address().unwrap());
            let trust = Trust::Credentials(Arc::new(ByToken));
            tokio::spawn(server.clone().run(socket, trust, house.stop.clone()));
        }
        let people = Channel::from_shared(format!("http://{}", addresses[1])).unwrap();
        let people = people.connect().await.unwrap();
        Self { house, ca, folder, agents: format!("https://{}", addresses[0]), people }
    }

    /// An agent with a certificate.
    fn agent(&self, machine: &str, exchange: Exchange) -> NotifyClient {
        let request = KeyRequest::new().unwrap();
        let named = Machine::parse(machine).unwrap();
        let signed = self.ca.sign_machine(request.csr_pem(), &named).unwrap();
        let path: PathBuf = self.folder.path().join(machine.replace('/', "-"));
        let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem).unwrap();
        let options = ClientOptions {
            addresses: vec![self.agents.clone()],
            tls: Some(Arc::new(client_config(self.ca.pem(), Some(&identity)).unwrap())),
            filter: matches!(named, Machine::Cloudlet { .. }),
            ..ClientOptions::default()
        };
        let client = NotifyClient::new(exchange, options).unwrap();
        let (running, stop) = (client.clone(), self.house.stop.clone());
        tokio::spawn(async move { running.run(stop).await });
        client
    }

    fn sender(&self, machine: &str) -> NotifyClient {
        self.agent(machine, Exchange::new().send_messages::<wire::Metric>().unwrap())
    }

    /// The names of the apps of the samples that somebody is shown.
    async fn samples(&self, who: &str) -> Vec<String> {
        let mut client = MetricsServiceClient::new(self.people.clone());
        let request = by(who, ListSamplesRequest::default());
        let found = drain(client.list_samples(request).await).await.unwrap();
        let app = |sample: &wire::Metric| {
            let tag = sample.tags.iter().find(|tag| tag.name == "app").unwrap();
            format!("{} {}", sample.name, tag.val)
        };
        let mut found: Vec<_> = found.iter().map(app).collect();
        found.sort();
        found
    }

    /// Start arguments of apps, as somebody is shown them.
    async fn recipes(&self, who: &str, filter: &wire::App) -> Vec<Recipe> {
        let mut client = AppApiClient::new(self.people.clone());
        let apps = drain(client.show_app(by(who, filter.clone())).await).await.unwrap();
        apps.into_iter().map(recipe).collect()
    }
}

/// Files, command and manifest of an app.
type Recipe = (Vec<wire::ConfigFile>, String, String);

fn recipe(app: wire::App) -> Recipe {
    (app.configs, app.command, app.deployment_manifest)
}

fn by<M>(who: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {who}").parse().unwrap());
    request
}

fn sample(name: &str, tags: &[(&str, &str)], app: &str) -> wire::Metric {
    let tag =
        |(name, val): &(&str, &str)| wire::MetricTag { name: (*name).into(), val: (*val).into() };
    let tags = tags.iter().chain(&[("app", app)]).map(tag).collect();
    wire::Metric { name: name.into(), tags, ..Default::default() }
}

/// With the certificate of one cloudlet one could speak of any.
#[tokio::test]
async fn agents_are_believed_what_is_theirs_and_people_shown_what_is_theirs() {
    let world = Guarded::open().await;
    let crm = world.sender("cloudlet/demo/shop-7");
    let own = [("operator", "demo"), ("cloudlet", "shop-7"), ("dev", "Acme")];
    let here = [("operator", "demo"), ("cloudlet", "here"), ("dev", "Acme")];
    crm.post(&sample("crm-appinst", &here, "lie")).unwrap();
    crm.post(&sample("dme-api", &own, "lie")).unwrap();
    crm.post(&sample("crm-appinst", &own, &"x".repeat(4096))).unwrap();
    crm.post(&sample("crm-appinst", &own, "truth")).unwrap();
    let engine = world.sender("dme/west");
    let calls = [("oper", ""), ("cloudlet", ""), ("dev", "Other"), ("id", "west")];
    engine.post(&sample("crm-appinst", &own, "lie")).unwrap();
    engine.post(&sample("dme-api", &[("id", "east"), ("dev", "Acme")], "lie")).unwrap();
    engine.post(&sample("dme-api", &calls, "truth")).unwrap();
    // What an agent sends is taken in its order.
    let truth = ["crm-appinst truth", "dme-api truth"];
    eventually("what is true has come", || async { world.samples("admin/").await == truth }).await;
    assert_eq!(world.samples("viewer/").await, truth);
    assert_eq!(world.samples("developer/Acme").await, truth[..1]);
    assert_eq!(world.samples("operator/demo").await, truth[..1]);
    assert_eq!(world.samples("developer/Other").await, truth[1..]);
    assert_eq!(world.samples("developer/demo").await, truth[..0]);
    for (who, something) in [("admin/", 2), ("developer/Acme", 1), ("operator/Acme", 0)] {
        let mut client = AppInstMetricsApiClient::new(world.people.clone());
        let request = by(who, wire::AppInstMetrics::default());
        let shown = drain(client.show_app_inst_metrics(request).await).await.unwrap();
        assert_eq!(shown, [wire::AppInstMetrics { something }], "{who}");
    }
}

#[tokio::test]
async fn developers_see_whether_a_site_is_up_and_no_more() {
    let world = Guarded::open().await;
    let report = cloudlet_info("tmus", "west");
    let report = wire::CloudletInfo { errors: vec!["disk 3".into()], ..report };
    world.house.cloudlet_infos().inject_cloudlet_info(report).await.unwrap();

    let report = async |who: &str, filter: wire::CloudletInfo| {
        let mut client = CloudletInfoApiClient::new(world.people.clone());
        let shown = drain(client.show_cloudlet_info(by(who, filter)).await).await.unwrap();
        let mut shown = shown.into_iter();
        shown.next().map(|info| {
            (info.state(), info.os_max_ram, info.errors.len(), !info.controller.is_empty())
        })
    };
    let (ready, all) = (wire::CloudletState::Ready, wire::CloudletInfo::default());
    for who in ["operator/tmus", "admin/", "viewer/"] {
        assert_eq!(report(who, all.clone()).await, Some((ready, 500, 1, true)), "{who}");
    }
    for who in ["developer/Acme", "operator/att"] {
        assert_eq!(report(who, all.clone()).await, Some((ready, 0, 0, false)), "{who}");
        let guess = wire::CloudletInfo { os_max_ram: 7, ..all.clone() };
        assert!(report(who, guess).await.is_some(), "{who} learns the size by guessing");
    }
}

#[tokio::test]
async fn what_an_app_is_started_with_is_for_those_who_start_it() {
    let world = Guarded::open().await;
    world.house.furnish().await;
    let config =
        wire::ConfigFile { kind: "envVarsYaml".into(), config: "- {name: A, value: b}".into() };
    let secretive = wire::App {
        configs: vec![config.clone()],
        command: "serve --password canary".into(),
        ..app("Acme", "one")
    };
    world.house.apps().create_app(secretive).await.unwrap();
    world.house.plant(app_inst("one", "west", Static)).await;
    let stored = world.house.stored::<wire::App>(&app("Acme", "one").key.unwrap()).unwrap();
    let open = recipe(stored);
    assert!(!open.1.is_empty() && !open.2.is_empty(), "{open:?}");
    let without = wire::ConfigFile { config: String::new(), ..config.clone() };
    let hidden = (vec![without], String::new(), String::new());

    let all = wire::App::default();
    for who in ["admin/", "developer/Acme"] {
        assert_eq!(world.recipes(who, &all).await, std::slice::from_ref(&open), "{who}");
    }
    assert_eq!(world.recipes("viewer/", &all).await, std::slice::from_ref(&hidden));
    let guess = |text: &str| {
        let guess = wire::ConfigFile { config: text.into(), ..config.clone() };
        wire::App { configs: vec![guess], ..Default::default() }
    };
    let right = world.recipes("viewer/", &guess("- {name: A, value: b}")).await;
    assert_eq!(right, world.recipes("viewer/", &guess("wrong")).await, "nor by guessing");
    let command = |text: &str| wire::App { command: text.into(), ..Default::default() };
    let right = world.recipes("viewer/", &command("serve --password canary")).await;
    assert_eq!(right, world.recipes("viewer/", &command("wrong")).await, "nor by guessing");

    let received = |machine: &str, infos: Vec<wire::CloudletInfo>| {
        let (apps, infos_seen) = (Cache::<wire::App>::new().unwrap(), Cache::new().unwrap());
        for info in infos {
            infos_seen.put(info).unwrap();
        }
        let exchange = Exchange::new().send(infos_seen).receive(apps.clone());
        (world.agent(machine, exchange), apps)
    };
    let (_crm, for_crm) = received("cloudlet/tmus/west", vec![cloudlet_info("tmus", "west")]);
    let (_engine, for_engine) = received("dme/west", Vec::new());
    for (apps, expected) in [(for_crm, open), (for_engine, hidden)] {
        eventually("the app comes", || async { apps.len() == 1 }).await;
        assert_eq!(recipe(wire::App::clone(&apps.list()[0])), expected);
    }
}
