//! A region: a controller, cloudlets, an app, and ways to ask as a device.

use selvage_api::{
    distributed_match_engine::{
        FindCloudletReply, FindCloudletRequest, Loc, RegisterClientRequest,
        match_engine_api_client::MatchEngineApiClient,
    },
    edgeproto::{CloudletKey, OperatorKey},
};
use selvage_sim::{Limits, SimCrm, SimOptions};
use selvage_tests::{
    Client, Selvage,
    client::http,
    process::{Cli, Printed, wait_for},
};
use serde_json::{Value, json};
use tonic::transport::Channel;

pub(crate) const APP: [&str; 6] =
    ["--developer", "AcmeAppCo", "--appname", "someapplication", "--appvers", "1.0"];
pub(crate) const SAMSUNG: [&str; 6] =
    ["--developer", "Samsung", "--appname", "SamsungEnablingLayer", "--appvers", "1.0"];

/// Cloudlets of the original's test, with where they are.
const CLOUDLETS: [(&str, &str, &str, &str); 3] = [
    ("dmuus", "cloud-1", "31", "-91"),
    ("dmuus", "cloud-2", "35", "-95"),
    ("azure", "cloud-9", "32", "-91"),
];

pub(crate) struct Site {
    pub(crate) selvage: Selvage,
    pub(crate) cli: Cli,
    pub(crate) crms: Vec<SimCrm>,
}

impl Site {
    /// A controller with three cloudlets, each with its agent.
    pub(crate) async fn open(flags: &[&str]) -> Self {
        Self::of(Selvage::up(flags)).await
    }

    pub(crate) async fn of(selvage: Selvage) -> Self {
        let cli = Cli::admin_of(&selvage);
        let flavor = ["--ram", "1024", "--vcpus", "1", "--disk", "1"];
        cli.ok(&[&["flavor", "create", "--name", "x1.small"][..], &flavor].concat());
        for name in ["AcmeAppCo", "Samsung"] {
            cli.ok(&["developer", "create", "--name", name]);
        }
        for name in ["dmuus", "azure"] {
            cli.ok(&["operator", "create", "--name", name]);
        }
        let mut site = Self { selvage, cli, crms: Vec::new() };
        for (operator, name, latitude, longitude) in CLOUDLETS {
            site.cli.ok(&[
                "cloudlet",
                "create",
                "--operator",
                operator,
                "--name",
                name,
                "--latitude",
                latitude,
                "--longitude",
                longitude,
                "--numdynamicips",
                "254",
            ]);
            site.crms.push(agent(&site.selvage, operator, name).await);
        }
        for (operator, name, ..) in CLOUDLETS {
            site.is_ready(operator, name);
        }
        site
    }

    pub(crate) fn is_ready(&self, operator: &str, name: &str) {
        let show = ["cloudletinfo", "show", "--operator", operator, "--name", name, "-o", "json"];
        wait_for("a cloudlet to be ready", || {
            self.cli.ok(&show).contains("CLOUDLET_STATE_READY").then_some(())
        });
    }

    pub(crate) fn create_app(&self, app: &[&str]) {
        let image =
            ["--imagetype", "docker", "--accessports", "tcp:80", "--defaultflavor", "x1.small"];
        let more = ["--permitsplatformapps", "true"];
        self.cli.ok(&[&["app", "create"][..], app, &image, &more].concat());
    }

    /// Creates or deletes an instance.
    pub(crate) fn instance(&self, verb: &str, operator: &str, cloudlet: &str) -> Printed {
        let cluster = if cloudlet == "default" { "default" } else { "autocluster" };
        let place = ["--operator", operator, "--cloudlet", cloudlet, "--cluster", cluster];
        let more: &[&str] = match (verb, cloudlet) {
            ("delete", _) => &["--yes"],
            (_, "default") => &["--uri", "default.someapplication.acme.com"],
            _ => &[],
        };
        self.cli.run(&[&["appinst", verb][..], &APP, &place, more].concat())
    }

    pub(crate) fn create(&self, operator: &str, cloudlet: &str) {
        let created = self.instance("create", operator, cloudlet);
        assert_eq!(created.code, 0, "{created:?}");
    }

    pub(crate) fn delete(&self, operator: &str, cloudlet: &str) {
        let deleted = self.instance("delete", operator, cloudlet);
        assert_eq!(deleted.code, 0, "{deleted:?}");
    }
}

/// The simulated agent of a cloudlet, with a certificate of its own.
async fn agent(selvage: &Selvage, operator: &str, name: &str) -> SimCrm {
    let machine = format!("cloudlet/{operator}/{name}");
    let tls = Client::admin(selvage).await.join(&selvage.ca().unwrap(), &machine).await;
    let operator_key = Some(OperatorKey { name: operator.into() });
    let key = CloudletKey { operator_key, name: name.into() };
    let mut options = SimOptions::new(vec![selvage.address().to_owned()], key);
    options.client.tls = Some(tls);
    options.limits = Limits { ram: 65_536, vcores: 64, volume: 5_000 };
    SimCrm::start(options).unwrap()
}

/// A device, by gRPC and by REST.
pub(crate) struct Device {
    pub(crate) grpc: MatchEngineApiClient<Channel>,
    pub(crate) http: reqwest::Client,
    pub(crate) endpoint: String,
}

pub(crate) fn registration(app: &[&str]) -> RegisterClientRequest {
    RegisterClientRequest {
        dev_name: app[1].into(),
        app_name: app[3].into(),
        app_vers: app[5].into(),
        ..RegisterClientRequest::default()
    }
}

pub(crate) fn question(cookie: &str, latitude: f64, longitude: f64) -> FindCloudletRequest {
    FindCloudletRequest {
        session_cookie: cookie.into(),
        carrier_name: "dmuus".into(),
        gps_location: Some(Loc { latitude, longitude, ..Loc::default() }),
        ..FindCloudletRequest::default()
    }
}

impl Device {
    pub(crate) async fn of(selvage: &Selvage) -> Self {
        let channel = Client::anonymous(selvage).await.channel;
        Self {
            grpc: MatchEngineApiClient::new(channel),
            http: http(selvage),
            endpoint: selvage.endpoint().to_owned(),
        }
    }

    /// Waits until the engine lets it in.
    pub(crate) async fn cookie(&mut self, app: &[&str]) -> String {
        let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
        loop {
            match self.grpc.register_client(registration(app)).await {
                Ok(reply) => return reply.into_inner().session_cookie,
                Err(status) => assert!(std::time::Instant::now() < deadline, "{status}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn rest(&self, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}{path}", self.endpoint);
        let reply = self.http.post(url).json(body).send().await.unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap())
    }

    pub(crate) async fn find(&mut self, request: FindCloudletRequest) -> FindCloudletReply {
        self.grpc.find_cloudlet(request).await.unwrap().into_inner()
    }

    /// Waits until it is sent to where it should be, by both protocols.
    pub(crate) async fn is_sent(&mut self, request: FindCloudletRequest, to: &str) {
        let deadline = std::time::Instant::now() + selvage_tests::process::TIMEOUT;
        loop {
            let found = self.find(request.clone()).await;
            if found.fqdn == to {
                break self.same_by_rest(&request, &found).await;
            }
            assert!(std::time::Instant::now() < deadline, "not {to:?} but {found:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn same_by_rest(&self, request: &FindCloudletRequest, found: &FindCloudletReply) {
        let at = request.gps_location.unwrap();
        let body = json!({
            "session_cookie": request.session_cookie,
            "carrier_name": request.carrier_name,
            "gps_location": {"latitude": at.latitude, "longitude": at.longitude},
            "dev_name": request.dev_name,
            "app_name": request.app_name,
            "app_vers": request.app_vers,
        });
        let (code, reply) = self.rest("/v1/findcloudlet", &body).await;
        assert_eq!(code, 200, "{reply}");
        assert_eq!(reply["fqdn"], found.fqdn);
        assert_eq!(reply["status"], found.status().as_str_name());
        let there = found.cloudlet_location.unwrap();
        assert_eq!(reply["cloudlet_location"]["latitude"], there.latitude);
        assert_eq!(reply["cloudlet_location"]["longitude"], there.longitude);
        assert_eq!(reply["ver"], 0, "defaults are written");
        assert_eq!(reply["ports"].as_array().unwrap().len(), found.ports.len());
    }
}
