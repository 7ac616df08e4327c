//! Speed of the dashboard's answers and pushes, and the cost of watchers; beside
//! the dashboard of a Ceph manager where one is named.

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
use clap::Parser;
use futures::future::try_join_all;
use selvage_api::{
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{
        GetProcessRequest, Object, WatchOverviewRequest,
        dashboard_service_client::DashboardServiceClient,
    },
    stats::{GetClusterStatsRequest, stats_service_client::StatsServiceClient},
};
use selvage_bench::report::{Report, at_least, at_least_figure, of_goal};
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

/// Measures the dashboard; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Instances that it knows
    #[arg(long, default_value_t = 10_000)]
    instances: usize,
    /// Pages that watch
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Connections that ask for numbers
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// A Ceph manager's dashboard to compare with, such as http://127.0.0.1:8443
    #[arg(long)]
    ceph: Option<String>,
    /// A token for it
    #[arg(long, env = "CEPH_TOKEN", hide_env_values = true, requires = "ceph")]
    ceph_token: Option<String>,
    /// Be the server, on this socket
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

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

async fn serve(path: &Path, instances: usize) -> Result<()> {
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
struct Served {
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
    async fn start(args: &Args) -> Result<Self> {
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

    /// Memory of the server, as it counts itself.
    async fn resident(&self) -> Result<f64> {
        let mut client = DashboardServiceClient::new(self.connect().await?);
        let process = client.get_process(GetProcessRequest {}).await?.into_inner();
        Ok(process.resident_bytes as f64)
    }
}

/// Calls a second, and how long 99 of 100 took at most.
#[derive(Debug, Clone, Copy)]
struct Rate {
    calls: f64,
    slowest: Duration,
}

fn rate(mut durations: Vec<Duration>, time: Duration) -> Rate {
    durations.sort_unstable();
    let at = (durations.len() * 99 / 100).min(durations.len().saturating_sub(1));
    let slowest = durations.get(at).copied().unwrap_or_default();
    Rate { calls: durations.len() as f64 / time.as_secs_f64(), slowest }
}

async fn stats(served: &Served, args: &Args) -> Result<Rate> {
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

async fn ceph(url: &str, token: &str, args: &Args) -> Result<Rate> {
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

/// Memory that each of so many watchers takes, and how late 99 of 100 learn of
/// a change.
async fn watch(served: &Served, args: &Args) -> Result<(f64, Duration)> {
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
    let late = try_join_all(streams.into_iter().map(follow)).await?.concat();
    ensure!(!late.is_empty(), "nobody was told anything");
    let after = served.resident().await?;
    Ok((after - before, rate(late, time).slowest))
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

async fn measure(args: &Args) -> Result<()> {
    let mut report = Report::new();
    let served = Served::start(args).await?;
    let own = stats(&served, args).await?;
    let what = format!("GetClusterStats, {} connections", args.connections);
    let goal = at_least_figure(own.calls, 20_000.0);
    report.row(format!("{what}: calls a second"), format!("{:.0}", own.calls), "goal 20000", goal);
    let goal = of_goal(own.slowest.as_secs_f64(), 0.010);
    report.row(format!("{what}: 99 of 100"), millis(own.slowest), "goal 10 ms", goal);
    if let (Some(url), Some(token)) = (&args.ceph, &args.ceph_token) {
        let theirs = ceph(url, token, args).await?;
        let rival = format!("Ceph's health/full {:.0}", theirs.calls);
        let goal = at_least(own.calls, theirs.calls, 20.0);
        report.row(format!("{what}: calls a second"), format!("{:.0}", own.calls), rival, goal);
        let rival = format!("Ceph's {}", millis(theirs.slowest));
        let ratio = theirs.slowest.as_secs_f64() / own.slowest.as_secs_f64();
        report.row(
            format!("{what}: 99 of 100"),
            millis(own.slowest),
            rival,
            format!("{ratio:.0}x less"),
        );
    }
    let (bytes, late) = watch(&served, args).await?;
    let mib = bytes / f64::from(1 << 20);
    let what = format!("{} watchers", args.watchers);
    report.row(
        format!("{what}: memory of the server"),
        format!("{mib:.1} MiB"),
        "goal 40 MiB",
        of_goal(mib.max(0.0), 40.0),
    );
    let goal = of_goal(late.as_secs_f64(), 1.0);
    report.row(format!("{what}: a change is told, 99 of 100"), millis(late), "goal 1 s", goal);
    report.print();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match &args.serve {
        Some(path) => serve(path, args.instances).await,
        None => measure(&args).await,
    }
}
