//! What the cluster service costs on simulated machines: what is measured is
//! the planner, the store and the keys, not Kubernetes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use selvage_api::cnct::kaas::api::{
    ClusterStatus, ControlPlaneMachineSpec, CreateClusterMsg, GetClusterMsg, MachineSpec,
    cluster_server::Cluster,
};
use selvage_bench::report::{Report, at_least_figure, at_most, of_goal};
use selvage_kaas::{
    ClusterApi, Compat, Kaas, Keyring, Manager, Settings, Surroundings,
    catalogue::Catalogue,
    conditions,
    pki::{ClusterPki, Seal},
    provider::sim::Sim,
};
use selvage_kit::{
    identity::{Identity, Kind},
    tasks::Tasks,
};
use selvage_store::{
    Op, SharedStore, Txn,
    clock::SystemClock,
    embedded::{Embedded, Options},
};
use tokio_util::sync::CancellationToken;
use tonic::Request;

/// Measures the cluster service; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Clusters of one machine that are made
    #[arg(long, default_value_t = 1000)]
    clusters: usize,
    /// Machines of the one large cluster
    #[arg(long, default_value_t = 1000)]
    machines: i32,
    /// Calls of each kind
    #[arg(long, default_value_t = 200)]
    calls: usize,
}

struct Bench {
    manager: Manager,
    api: ClusterApi,
    store: SharedStore,
    tasks: Tasks,
    _folder: tempfile::TempDir,
}

fn asked<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Identity::all_powerful("bench", Kind::Local));
    request
}

fn cluster(name: String, machines: i32) -> CreateClusterMsg {
    let pool = MachineSpec { name: "pool".into(), count: machines, ..MachineSpec::default() };
    CreateClusterMsg {
        name,
        control_plane_nodes: Some(ControlPlaneMachineSpec::default()),
        worker_node_pools: if machines > 0 { vec![pool] } else { Vec::new() },
        ..CreateClusterMsg::default()
    }
}

fn half(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

impl Bench {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("store.redb");
        let store: SharedStore = Embedded::open(path, Options::default()).await?;
        let (sim, clock) = (Arc::new(Sim::default()), Arc::new(SystemClock::new()));
        let seal = Seal::new(&[1; 32], "bench")?;
        let own = Arc::<SystemClock>::clone(&clock);
        let around = Surroundings {
            provider: sim.clone(),
            driver: sim,
            catalogue: Catalogue::load(None)?,
            keyring: Keyring::open(Arc::clone(&store), seal, own).await?,
            clock,
        };
        let manager = Manager::open(Arc::clone(&store), Settings::default(), around).await?;
        let tasks = Tasks::new(CancellationToken::new());
        Kaas::new(manager.clone(), Compat::Precise).spawn(&tasks);
        let api = ClusterApi::new(manager.clone(), Compat::Precise);
        Ok(Self { manager, api, store, tasks, _folder: folder })
    }

    /// Waits until so many clusters run.
    async fn until_running(&self, wanted: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            let clusters = self.manager.list();
            let runs = |c: &&selvage_kaas::record::Cluster| {
                conditions::status(&c.conditions) == ClusterStatus::Running
            };
            if clusters.iter().filter(runs).count() >= wanted {
                return Ok(());
            }
            ensure!(begun.elapsed() < Duration::from_secs(600), "they do not come up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = text.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * 4.0)
}

async fn create(bench: &Bench, calls: usize, report: &mut Report) -> Result<()> {
    let (mut bare, mut made) = (Vec::new(), Vec::new());
    for number in 0..calls {
        let begun = Instant::now();
        let put = Op::put(format!("bench/{number}"), vec![0; 200]);
        bench.store.txn(Txn::new().then(put)).await?;
        bare.push(begun.elapsed());
        let begun = Instant::now();
        bench.api.create_cluster(asked(cluster(format!("call-{number}"), 0))).await?;
        made.push(begun.elapsed());
    }
    bench.until_running(calls).await?;
    let (made, bare) = (half(made), half(bare));
    let (a, b) = (made.as_secs_f64(), bare.as_secs_f64());
    report.row("CreateCluster, median", millis(made), "2.9 ms", of_goal(a, 0.0029));
    report.row(
        "  beside",
        millis(made),
        format!("{} for one write", millis(bare)),
        at_most(a, b, 4.0),
    );
    let begun = Instant::now();
    for number in 0..calls {
        let name = format!("call-{number}");
        bench.api.get_cluster(asked(GetClusterMsg { name })).await?;
    }
    let second = calls as f64 / begun.elapsed().as_secs_f64();
    report.row("GetCluster, first kubeconfig", format!("{second:.0}/s"), "", "");
    let begun = Instant::now();
    for number in 0..calls {
        let name = format!("call-{number}");
        bench.api.get_cluster(asked(GetClusterMsg { name })).await?;
    }
    let second = calls as f64 / begun.elapsed().as_secs_f64();
    let goal = at_least_figure(second, 20_000.0);
    report.row("GetCluster again", format!("{second:.0}/s"), "20000/s", goal);
    Ok(())
}

async fn large(bench: &Bench, machines: i32, report: &mut Report) -> Result<()> {
    let before = bench.manager.list().len();
    let begun = Instant::now();
    bench.api.create_cluster(asked(cluster("large".into(), machines))).await?;
    bench.until_running(before + 1).await?;
    let second = f64::from(machines) / begun.elapsed().as_secs_f64();
    let goal = at_least_figure(second, 150.0);
    report.row("machines from request to ready", format!("{second:.0}/s"), "150/s", goal);
    Ok(())
}

async fn many(bench: &Bench, clusters: usize, report: &mut Report) -> Result<()> {
    let (before, memory) = (bench.manager.list().len(), resident()?);
    let begun = Instant::now();
    for number in 0..clusters {
        bench.api.create_cluster(asked(cluster(format!("many-{number}"), 0))).await?;
    }
    bench.until_running(before + clusters).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let goal = 45.0 * clusters as f64 / 1000.0;
    let what = format!("{clusters} clusters, asked for until ready");
    report.row(what, format!("{seconds:.1} s"), format!("{goal:.0} s"), of_goal(seconds, goal));
    let each = (resident()? - memory) / clusters as f64;
    report.row("memory of a cluster", format!("{each:.0} KiB"), "60 KiB", of_goal(each, 60.0));
    Ok(())
}

fn keys(calls: usize, report: &mut Report) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let begun = Instant::now();
        ClusterPki::generate("bench", 1_790_000_000)?;
        times.push(begun.elapsed());
    }
    let time = half(times);
    let goal = of_goal(time.as_secs_f64(), 0.010);
    report.row("keys of a cluster", millis(time), "10 ms", goal);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let mut report = Report::new();
    let bench = Bench::start().await?;
    keys(args.calls, &mut report)?;
    create(&bench, args.calls, &mut report).await?;
    large(&bench, args.machines, &mut report).await?;
    many(&bench, args.clusters, &mut report).await?;
    report.print();
    bench.tasks.token().cancel();
    Ok(())
}
