//! Speed of the dashboard's answers and pushes, and the cost of watchers, in a process
//! with nothing else; beside the dashboard of a Ceph manager.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use futures::future::try_join_all;
use selvage_api::{
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{
        GetOverviewRequest, GetProcessRequest, Object, WatchOverviewRequest,
        dashboard_service_client::DashboardServiceClient,
    },
    stats::{GetClusterStatsRequest, stats_service_client::StatsServiceClient},
};
use selvage_dashboard::{
    Dashboard, Settings,
    facts::{Cloudlet, Data, Instance, Section},
    source::{Failure, Probe, Source},
};
use selvage_kit::{
    clock::SystemClock,
    serve::{Limits, Server, Services, Socket, Trust},
    tasks::Tasks,
    telemetry::Metrics,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::Args;

/// A source that tells of a cloudlet that goes and comes every second.
struct Changing {
    instances: usize,
    asked: Arc<AtomicU64>,
}

struct Cloudlets {
    asked: Arc<AtomicU64>,
    offline: bool,
}

struct Instances(usize);

fn object(kind: &str, name: String) -> Object {
    Object { kind: kind.into(), name, organisation: "acme".into(), ..Object::default() }
}

impl Source for Changing {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let cloudlets = Cloudlets { asked: self.asked, offline: false };
        vec![Box::new(cloudlets), Box::new(Instances(self.instances))]
    }
}

#[async_trait]
impl Probe for Cloudlets {
    fn section(&self) -> Section {
        Section::Cloudlets
    }

    fn every(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.offline = !self.offline;
        let state = if self.offline { CloudletState::Offline } else { CloudletState::Ready };
        let object = object("cloudlet", "acme/changing".into());
        let cloudlet = Cloudlet { object, location: None, state, errors: Vec::new() };
        Ok(Data::Cloudlets(vec![cloudlet].into()))
    }
}

#[async_trait]
impl Probe for Instances {
    fn section(&self) -> Section {
        Section::Instances
    }

    fn every(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let instance = |number: usize| Instance {
            object: object("appinst", format!("acme/app-{number}:1.0@acme/changing/auto")),
            cloudlet: "acme/changing".into(),
            state: TrackedState::Ready,
            errors: Vec::new(),
            unhealthy: String::new(),
            restarts: 0,
            started_again: 0,
            last_reason: String::new(),
            revision: 1,
        };
        Ok(Data::Instances((0..self.0).map(instance).collect::<Vec<_>>().into()))
    }
}

pub(crate) async fn serve(path: &Path, instances: usize) -> Result<()> {
    let dashboard = Dashboard::open(Settings::default(), "bench".into(), Arc::new(SystemClock));
    dashboard.add_source(Changing { instances, asked: Arc::default() });
    let mut services = Services::default();
    dashboard.add_to(&mut services);
    let server = Server::new(services, Metrics::new("bench"), Limits::default()).await?;
    let tasks = Tasks::new(CancellationToken::new());
    dashboard.spawn(&tasks);
    server.run(Socket::unix(path).await?, Trust::Socket, CancellationToken::new()).await;
    Ok(())
}

/// The server in a process of its own, ended when dropped.
pub(crate) struct Served {
    child: Child,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    pub(crate) async fn start(args: &Args) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("socket");
        let child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(&path)
            .args(["--instances", &args.instances.to_string()])
            .stdin(Stdio::null())
            .spawn()?;
        let served = Self { child, path, _folder: folder };
        let begun = Instant::now();
        while !served.is_filled().await {
            ensure!(begun.elapsed() < Duration::from_secs(60), "the server does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(served)
    }

    async fn is_filled(&self) -> bool {
        let Ok(channel) = self.connect().await else { return false };
        let mut client = StatsServiceClient::new(channel);
        client.get_cluster_radar(selvage_api::stats::GetClusterRadarRequest {}).await.is_ok()
    }

    async fn connect(&self) -> Result<Channel> {
        let endpoint = Endpoint::new(format!("unix:{}", self.path.display()))?;
        Ok(endpoint.connect().await?)
    }

    /// Questions to the source in a second: each answer of it is different, and makes
    /// one more version of the overview.
    async fn asked(&self, args: &Args) -> Result<f64> {
        let mut client =
            DashboardServiceClient::new(self.connect().await?).max_decoding_message_size(64 << 20);
        let mut version = async || -> Result<u64> {
            Ok(client.get_overview(GetOverviewRequest {}).await?.into_inner().version)
        };
        let (first, begun) = (version().await?, Instant::now());
        tokio::time::sleep(Duration::from_secs(args.seconds.max(3))).await;
        let last = version().await?;
        Ok((last - first) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Memory of the server, as it counts itself.
    async fn resident(&self) -> Result<f64> {
        let mut client = DashboardServiceClient::new(self.connect().await?);
        let process = client.get_process(GetProcessRequest {}).await?.into_inner();
        Ok(process.resident_bytes as f64)
    }
}

/// Calls a second, and how long 99 of 100 took at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) calls: f64,
    pub(crate) slowest: Duration,
}

fn rate(mut durations: Vec<Duration>, time: Duration) -> Rate {
    durations.sort_unstable();
    let at = (durations.len() * 99 / 100).min(durations.len().saturating_sub(1));
    let slowest = durations.get(at).copied().unwrap_or_default();
    Rate { calls: durations.len() as f64 / time.as_secs_f64(), slowest }
}

pub(crate) async fn stats(served: &Served, args: &Args) -> Result<Rate> {
    let time = Duration::from_secs(args.seconds);
    let one = async || -> Result<Vec<Duration>> {
        let mut client = StatsServiceClient::new(served.connect().await?);
        let (begun, mut durations) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let asked = Instant::now();
            client.get_cluster_stats(GetClusterStatsRequest {}).await?;
            durations.push(asked.elapsed());
        }
        Ok(durations)
    };
    let all = try_join_all((0..args.connections).map(|_| one())).await?;
    Ok(rate(all.concat(), time))
}

pub(crate) async fn ceph(url: &str, token: &str, args: &Args) -> Result<Rate> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
    let time = Duration::from_secs(args.seconds);
    let one = async || -> Result<Vec<Duration>> {
        let (begun, mut durations) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let asked = Instant::now();
            let request = client.get(format!("{url}/api/health/full")).bearer_auth(token);
            let request = request.header("accept", "application/vnd.ceph.api.v1.0+json");
            let response = request.send().await?.error_for_status()?;
            response.bytes().await?;
            durations.push(asked.elapsed());
        }
        Ok(durations)
    };
    let all = try_join_all((0..args.connections).map(|_| one())).await?;
    Ok(rate(all.concat(), time))
}

/// Cost of watchers for a server with many instances.
pub(crate) struct Watched {
    /// Bytes of memory that they take together.
    pub(crate) bytes: f64,
    /// Delay after which 99 of 100 learn of a change.
    pub(crate) late: Duration,
    /// Questions to the source in a second, without anybody and with all of them.
    pub(crate) asked: [f64; 2],
}

#[allow(clippy::disallowed_methods, reason = "both ends are on this machine")]
pub(crate) async fn watch(served: &Served, args: &Args) -> Result<Watched> {
    let alone = served.asked(args).await?;
    let before = served.resident().await?;
    let mut streams = Vec::new();
    for _ in 0..args.watchers.div_ceil(100) {
        let channel = served.connect().await?;
        for _ in 0..100.min(args.watchers - streams.len()) {
            let mut client =
                DashboardServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20);
            let stream = client.watch_overview(WatchOverviewRequest::default()).await?;
            streams.push(stream.into_inner());
        }
    }
    let time = Duration::from_secs(args.seconds.max(3));
    let follow = async |mut stream: tonic::Streaming<
        selvage_api::selvage::dashboard::OverviewUpdate,
    >|
           -> Result<Vec<Duration>> {
        stream.message().await?.context("no first update")?;
        let (begun, mut late) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let Ok(update) = tokio::time::timeout(time, stream.message()).await else { break };
            let Some(made) = update?.and_then(|update| update.time) else { break };
            let made = jiff::Timestamp::new(made.seconds, made.nanos)?;
            late.push(jiff::Timestamp::now().duration_since(made).try_into().unwrap_or_default());
        }
        Ok(late)
    };
    let following = try_join_all(streams.into_iter().map(follow));
    let (late, watched) = futures::try_join!(following, served.asked(args))?;
    let late = late.concat();
    ensure!(!late.is_empty(), "nobody was told anything");
    let bytes = served.resident().await? - before;
    Ok(Watched { bytes, late: rate(late, time).slowest, asked: [alone, watched] })
}
