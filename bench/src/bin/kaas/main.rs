//! Costs of clusters for the cluster service: `selvage up` with simulated machines,
//! in a process of its own, asked over TLS as an administrator. With a folder of
//! Kubernetes' programs also, on machines of this host: from nothing to the first
//! pod, beside the shortest start of the same programs by hand, the loss of a control
//! plane, an upgrade, and a restored snapshot.

mod failover;
mod first_pod;
mod real;
mod restore;
mod service;
mod upgrade;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use selvage_bench::{
    cost::median,
    report::{Report, at_least, at_least_figure, at_most, of_goal},
};
use selvage_kaas::pki::ClusterPki;
use service::Service;

/// Of the original, measured on a machine like this one: the median of
/// CreateCluster, machines in a second, and reads on one connection.
const ORIGINAL_CREATE: f64 = 0.290;
const ORIGINAL_MACHINES: f64 = 0.75;
const ORIGINAL_READS: f64 = 1_230.0;

/// Measures the cluster service; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Clusters of one machine that are made
    #[arg(long, default_value_t = 1000)]
    clusters: usize,
    /// Machines of one large cluster
    #[arg(long, default_value_t = 500)]
    machines: i32,
    /// Calls of each kind
    #[arg(long, default_value_t = 200)]
    calls: usize,
    /// Reads of one cluster
    #[arg(long, default_value_t = 50_000)]
    reads: usize,
    /// Seconds for which the service is left alone
    #[arg(long, default_value_t = 20)]
    idle: u64,
    /// The program that is measured; default is the one beside this
    #[arg(long)]
    selvage: Option<PathBuf>,
    /// Folder of Kubernetes' programs, as `./dev kubernetes` prints it
    #[arg(long)]
    artifacts: Option<PathBuf>,
    /// Version of them
    #[arg(long, default_value = "1.36.4")]
    version: String,
    /// Version that is upgraded to, where its programs are there too
    #[arg(long, default_value = "1.37.1")]
    next: String,
    /// Starts of a cluster by hand and by the service, in turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only what these name: `sim`, `first-pod`, `failover`, `upgrade`, `restore`
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Args {
    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == what)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let selvage = match &args.selvage {
        Some(selvage) => selvage.clone(),
        None => std::env::current_exe()?.with_file_name("selvage"),
    };
    ensure!(selvage.is_file(), "{} is missing: build it first", selvage.display());
    let mut report = Report::new();
    let measured = Box::pin(measure(&args, &selvage, &mut report)).await;
    report.print();
    measured
}

async fn measure(args: &Args, selvage: &Path, report: &mut Report) -> Result<()> {
    if args.wants("sim") {
        simulated(args, selvage, report).await?;
    }
    match &args.artifacts {
        Some(artifacts) => real(args, selvage, artifacts, report).await,
        None => Ok(()),
    }
}

async fn simulated(args: &Args, selvage: &Path, report: &mut Report) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("sb").tempdir()?;
    keys(args.calls, report)?;
    let service = Service::start(selvage, folder.path(), &["kaas.provider=sim"]).await?;
    create(args, &service, report).await?;
    large(args, &service, report).await?;
    many(args, &service, report).await?;
    reads(args, &service, report).await?;
    idle(args, &service, report).await
}

async fn real(args: &Args, selvage: &Path, artifacts: &Path, report: &mut Report) -> Result<()> {
    let programs = real::Programs::new(artifacts, &args.version)?;
    if args.wants("first-pod") {
        first_pod::measure(selvage, &programs, args.rounds, report).await?;
    }
    if args.wants("failover") {
        failover::measure(selvage, &programs, report).await?;
    }
    if args.wants("restore") {
        restore::measure(selvage, &programs, report).await?;
    }
    if args.wants("upgrade") && programs.has(&args.next) {
        upgrade::measure(selvage, &programs, &args.next, report).await?;
    }
    Ok(())
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// M7: the authorities of one cluster.
fn keys(calls: usize, report: &mut Report) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let begun = Instant::now();
        ClusterPki::generate("bench", 1_790_000_000)?;
        times.push(begun.elapsed());
    }
    let time = median(times)?;
    let verdict = of_goal(time.as_secs_f64(), 0.010);
    report.row("M7 keys of a cluster", millis(time), "10 ms", verdict);
    Ok(())
}

/// M1: one call after the other.
async fn create(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let mut times = Vec::new();
    for number in 0..args.calls {
        let begun = Instant::now();
        service.create(&format!("call-{number}"), 0).await?;
        times.push(begun.elapsed());
    }
    let time = median(times)?;
    let original = format!("{:.0} ms of the original", ORIGINAL_CREATE * 1000.0);
    let verdict = at_most(time.as_secs_f64(), ORIGINAL_CREATE, 0.01);
    report.row("M1 CreateCluster, median", millis(time), original, verdict);
    service.until_running(args.calls).await
}

/// M2: machines of one cluster.
async fn large(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let begun = Instant::now();
    service.create("large", args.machines).await?;
    service.until_running(args.calls + 1).await?;
    let second = f64::from(args.machines) / begun.elapsed().as_secs_f64();
    let original = format!("{ORIGINAL_MACHINES}/s of the original");
    let verdict = at_least(second, ORIGINAL_MACHINES, 200.0);
    report.row("M2 machines, asked for until ready", format!("{second:.0}/s"), original, verdict);
    Ok(())
}

/// M3 and M4: many clusters at once.
async fn many(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let before = service.memory()?;
    let begun = Instant::now();
    let names = (0..args.clusters).map(|number| format!("many-{number}"));
    let made = stream::iter(names).map(|name| async move { service.create(&name, 0).await });
    made.buffer_unordered(32).try_collect::<Vec<()>>().await?;
    service.until_running(args.calls + 1 + args.clusters).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let goal = 45.0 * args.clusters as f64 / 1000.0;
    let what = format!("M3 {} clusters, asked for until ready", args.clusters);
    report.row(what, format!("{seconds:.1} s"), format!("{goal:.1} s"), of_goal(seconds, goal));
    let after = service.memory()?;
    let more = after.anonymous.saturating_sub(before.anonymous) as f64;
    let each = more / 1024.0 / args.clusters as f64;
    report.row("M4 memory of a cluster", format!("{each:.0} KiB"), "60 KiB", of_goal(each, 60.0));
    whole(args, service, report).await
}

/// M4: the same clusters with ten machines each.
async fn whole(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let names = (0..args.clusters).map(|number| format!("many-{number}"));
    let grown = stream::iter(names).map(|name| async move { service.add(&name, 9).await });
    grown.buffer_unordered(32).try_collect::<Vec<()>>().await?;
    service.until_running(args.calls + 1 + args.clusters).await?;
    for number in 0..args.clusters {
        service.until_machines(&format!("many-{number}"), 10).await?;
    }
    let memory = service.memory()?.resident as f64 / f64::from(1 << 20);
    let what = format!("M4 the whole process with {} machines", args.clusters * 10);
    report.row(what, format!("{memory:.0} MiB"), "150 MiB", of_goal(memory, 150.0));
    Ok(())
}

/// M12: reads on one connection.
async fn reads(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let begun = Instant::now();
    let asked = stream::iter(0..args.reads).map(|_| async {
        let begun = Instant::now();
        service.get("many-0").await?;
        anyhow::Ok(begun.elapsed())
    });
    let mut times: Vec<Duration> = asked.buffer_unordered(16).try_collect().await?;
    let second = args.reads as f64 / begun.elapsed().as_secs_f64();
    let verdict = at_least_figure(second, 20_000.0);
    report.row("M12 GetCluster, one connection", format!("{second:.0}/s"), "20000/s", verdict);
    let verdict = at_least(second, ORIGINAL_READS, 10.0);
    report.row("M12   beside the original", format!("{second:.0}/s"), "1230/s", verdict);
    times.sort_unstable();
    let last = times.get(times.len() * 99 / 100).copied().context("no reads")?;
    let verdict = of_goal(last.as_secs_f64(), 0.001);
    report.row("M12   slowest of a hundred", millis(last), "1 ms", verdict);
    Ok(())
}

/// M5: what it costs to have clusters.
async fn idle(args: &Args, service: &Service, report: &mut Report) -> Result<()> {
    let waited = Duration::from_secs(args.idle);
    let before = service.cpu()?;
    tokio::time::sleep(waited).await;
    let used = (service.cpu()? - before).as_secs_f64() / waited.as_secs_f64() * 100.0;
    let what = format!("M5 {} clusters left alone", args.clusters + args.calls + 1);
    report.row(what, format!("{used:.1} % of a core"), "2 %", of_goal(used, 2.0));
    Ok(())
}
