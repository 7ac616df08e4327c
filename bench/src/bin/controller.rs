//! Speed of the controller, beside the store that it works on and beside
//! the agents that it waits for.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::future::try_join_all;
use prost::Message;
use selvage_api::edgeproto as wire;
use selvage_api::edgeproto::app_inst_api_client::AppInstApiClient;
use selvage_api::edgeproto::cluster_inst_api_client::ClusterInstApiClient;
use selvage_api::edgeproto::flavor_api_client::FlavorApiClient;
use selvage_bench::echo::Echo;
use selvage_bench::edge::{self, House};
use selvage_bench::report::{Report, at_least, at_most, of_goal};
use selvage_controller::Mode;
use selvage_controller::row::Row;
use selvage_sim::{Limits, Mode as SimMode, SimFleet, SimOptions};
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{SharedStore, transact};
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// Measures the controller; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Folder on the disk to be measured; default is the one for temporary files
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seconds for each measurement of writes
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Clients that create plain objects at the same time
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// App instances that are shown, and that the controller starts with
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// App instances that are created at the same time
    #[arg(long, default_value_t = 200)]
    creates: usize,
    /// Number of times that many are created
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Agents that the created instances are spread over
    #[arg(long, default_value_t = 20)]
    sites: usize,
    /// Milliseconds that an agent takes to create an instance
    #[arg(long, default_value_t = 100)]
    latency: u64,
    /// Agents that hear of one change
    #[arg(long, default_value_t = 500)]
    streams: usize,
    /// Only this part of the measurements
    #[arg(long)]
    only: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Creation of plain objects
    Plain,
    /// Restart, show and notify with many instances
    Instances,
    /// Creation of instances
    Creates,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&base).context("making a folder to work in")?;
    let mut report = Report::new();
    let wanted = |part| args.only.is_none_or(|only| only == part);
    if wanted(Part::Plain) {
        Box::pin(plain_objects(&args, folder.path(), &mut report)).await?;
    }
    if wanted(Part::Instances) {
        Box::pin(instances(&args, folder.path(), &mut report)).await?;
    }
    if wanted(Part::Creates) {
        Box::pin(created_instances(&args, folder.path(), &mut report)).await?;
    }
    report.print();
    Ok(())
}

/// Rate at which `call` succeeds when so many make it all the time.
async fn rate<F, Fut>(time: Duration, callers: impl Iterator<Item = F>) -> Result<f64>
where
    F: Fn(u64) -> Fut + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let begun = Instant::now();
    let tasks = callers.map(|call| {
        tokio::spawn(async move {
            let mut count = 0;
            while begun.elapsed() < time {
                call(count).await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let counts = try_join_all(tasks).await?.into_iter().collect::<Result<Vec<u64>>>()?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}

fn numbered(how: &str, client: usize, count: u64) -> wire::Flavor {
    edge::flavor(format!("{how}-{client:03}-{count:08}"))
}

/// The store's own transactions, with the read and the write that creating an
/// object takes.
async fn store_rate(file: PathBuf, clients: usize, time: Duration) -> Result<f64> {
    let store: SharedStore = Embedded::open(file, Options::default()).await?;
    let callers = (0..clients).map(|client| {
        let store = store.clone();
        move |count| {
            let store = store.clone();
            async move {
                let row = &Row(numbered("store", client, count));
                transact(&store, move |tx| async move { tx.create(row).await }).await?;
                Ok(())
            }
        }
    });
    let rate = rate(time, callers).await?;
    store.close().await?;
    Ok(rate)
}

async fn local_rate(house: &House, clients: usize, time: Duration) -> Result<f64> {
    let callers = (0..clients).map(|client| {
        let controller = house.part.controller().clone();
        move |count| {
            let controller = controller.clone();
            async move {
                controller.create_flavor(numbered("local", client, count), Mode::Real).await?;
                Ok(())
            }
        }
    });
    rate(time, callers).await
}

/// CreateFlavor over gRPC, every client with a channel of the given ones.
async fn wire_rate(how: &'static str, channels: Vec<Channel>, time: Duration) -> Result<f64> {
    let callers = channels.into_iter().enumerate().map(|(client, channel)| {
        let api = FlavorApiClient::new(channel);
        move |count| {
            let mut api = api.clone();
            async move {
                api.create_flavor(numbered(how, client, count)).await?;
                Ok(())
            }
        }
    });
    rate(time, callers).await
}

async fn echo_rate(clients: usize, time: Duration) -> Result<f64> {
    let echo = Echo::open()?;
    let rate = wire_rate("echo", edge::channels(echo.address, clients).await?, time).await?;
    echo.close().await?;
    Ok(rate)
}

async fn plain_objects(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let (clients, time) = (args.clients, Duration::from_secs(args.seconds));
    let before = store_rate(folder.join("before"), clients, time).await?;
    let house = House::open(&folder.join("plain")).await?;
    let local = local_rate(&house, clients, time).await?;
    let wired = wire_rate("wired", house.channels(clients).await?, time).await?;
    let shared = wire_rate("shared", vec![connect(&house).await?; clients], time).await?;
    house.close().await?;
    let echo = echo_rate(clients, time).await?;
    // Once more at the end: neighbours on the disk come and go.
    let store = f64::midpoint(before, store_rate(folder.join("after"), clients, time).await?);
    // Clients, server and store have the same processors: a call costs what
    // an empty call costs and what its transaction costs.
    let limit = 1.0 / (1.0 / echo + 1.0 / store);
    let what = format!("CreateFlavor, {clients} clients, gRPC");
    let (wired_shown, store_shown) = (format!("{wired:.0}/s"), format!("store {store:.0}/s"));
    report.row(&what, &wired_shown, &store_shown, at_most(store, wired, 1.3));
    let compared = format!("empty call of plain tonic {echo:.0}/s, then store: {limit:.0}/s");
    report.row(&what, &wired_shown, compared, format!("{:.2}x", limit / wired));
    let compared = format!("on one connection {shared:.0}/s");
    report.row(&what, &wired_shown, compared, format!("{:.2}x", shared / wired));
    let compared = format!("without the wire {local:.0}/s");
    report.row(&what, &wired_shown, compared, format!("{:.2}x", local / wired));
    let what = format!("create_flavor, {clients} callers, no wire");
    report.row(what, format!("{local:.0}/s"), store_shown, at_most(store, local, 1.3));
    Ok(())
}

async fn instances(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let file = folder.join("instances");
    let store: SharedStore = Embedded::open(&file, Options::default()).await?;
    let cloudlets = (0..args.streams).map(|number| edge::cloudlet(SimFleet::cloudlet(number)));
    edge::fill(&store, cloudlets).await?;
    let instances = (0..args.objects)
        .map(|number| edge::ready_app_inst(number, SimFleet::cloudlet(number % args.streams)));
    edge::fill(&store, instances).await?;
    store.close().await?;

    let house = restart(args, &file, report).await?;
    show(args, &house, report).await?;
    fan_out(args, &house, report).await?;
    house.close().await
}

/// From a closed store to the first answer.
async fn restart(args: &Args, file: &Path, report: &mut Report) -> Result<House> {
    let begun = Instant::now();
    let house = House::open(file).await?;
    let opened = begun.elapsed();
    let mut api = AppInstApiClient::new(connect(&house).await?);
    let filter = edge::ready_app_inst(0, SimFleet::cloudlet(0));
    let found = count(api.show_app_inst(filter).await).await?;
    let elapsed = begun.elapsed();
    ensure!(found == 1, "{found} instances found by a key");
    let each = elapsed.as_secs_f64() * 1e6 / args.objects as f64;
    report.row(
        format!("restart with {} AppInsts", args.objects),
        format!("{elapsed:.2?} to the first answer, {each:.1} us an object"),
        format!("goal 3 s; open {opened:.2?}"),
        of_goal(elapsed.as_secs_f64(), 3.0),
    );
    Ok(house)
}

async fn connect(house: &House) -> Result<Channel> {
    house.channels(1).await?.pop().context("one connection")
}

async fn count<M>(reply: Result<Response<Streaming<M>>, Status>) -> Result<usize> {
    let mut stream = reply?.into_inner();
    let mut count = 0;
    while stream.message().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// The usual time of a show, and what it finds.
async fn shown(house: &House, filter: &wire::AppInst, times: usize) -> Result<(Duration, usize)> {
    let mut api = AppInstApiClient::new(connect(house).await?);
    let (mut taken, mut found) = (Vec::new(), 0);
    for _ in 0..times {
        let begun = Instant::now();
        found = count(api.show_app_inst(filter.clone()).await).await?;
        taken.push(begun.elapsed());
    }
    Ok((median(taken), found))
}

/// Work of the server for a show, without a socket and without a client.
fn encoded(house: &House, filter: &wire::AppInst) -> Result<(Duration, usize)> {
    let begun = Instant::now();
    let mut buffer = Vec::new();
    let mut bytes = 0;
    let shown = house.part.controller().show(filter)?;
    for object in futures::executor::block_on_stream(shown) {
        buffer.clear();
        object?.encode(&mut buffer)?;
        bytes += buffer.len();
    }
    Ok((begun.elapsed(), bytes))
}

async fn show(args: &Args, house: &House, report: &mut Report) -> Result<()> {
    let objects = args.objects as f64;
    let everything = wire::AppInst::default();
    let (took, found) = shown(house, &everything, 5).await?;
    ensure!(found == args.objects, "{found} of {} instances shown", args.objects);
    let (alone, bytes) = encoded(house, &everything)?;
    let (wired, local) = (objects / took.as_secs_f64(), objects / alone.as_secs_f64());
    let what = format!("ShowAppInst of {}, one stream", args.objects);
    let measured = format!("{wired:.0} objects/s, {:.0} bytes each", bytes as f64 / objects);
    report.row(&what, &measured, "goal 200000/s", at_least(wired, 200_000.0, 1.0));
    let compared = format!("copied and encoded only {local:.0}/s");
    report.row(&what, measured, compared, format!("{:.1}x", local / wired));

    let one =
        edge::ready_app_inst(args.objects / 2, SimFleet::cloudlet(args.objects / 2 % args.streams));
    let by_key = wire::AppInst { key: one.key.clone(), ..Default::default() };
    let cluster = one.key.unwrap_or_default().cluster_inst_key;
    let by_cluster = wire::AppInst {
        key: Some(wire::AppInstKey { app_key: None, cluster_inst_key: cluster }),
        ..Default::default()
    };
    // No index helps here, and nothing matches.
    let by_scan = wire::AppInst { liveness: wire::Liveness::Dynamic.into(), ..Default::default() };
    let (scan, none) = shown(house, &by_scan, 11).await?;
    ensure!(none == 0, "{none} instances match what none is");
    for (how, filter) in [("key", by_key), ("cluster", by_cluster)] {
        let (took, found) = shown(house, &filter, 101).await?;
        ensure!(found > 0, "no instance found by its {how}");
        report.row(
            format!("ShowAppInst by {how}, {found} found"),
            format!("{took:.1?}"),
            format!("scan of all for none {scan:.1?}"),
            format!("{:.0}x", scan.as_secs_f64() / took.as_secs_f64()),
        );
    }
    Ok(())
}

/// Waits for something that agents will bring about.
async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting)
        .await
        .with_context(|| format!("waited in vain for {what}"))
}

fn options(house: &House, latency: Duration) -> SimOptions {
    let mode = SimMode::Auto { latency, jitter: Duration::ZERO };
    let limits = Limits { ram: 100_000_000, vcores: 1_000_000, volume: 10_000_000 };
    let address = house.address.to_string();
    SimOptions { mode, limits, ..SimOptions::new(vec![address], SimFleet::cloudlet(0)) }
}

/// Memory of this process in KiB.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(figure.parse()?)
}

async fn fan_out(args: &Args, house: &House, report: &mut Report) -> Result<()> {
    let streams = args.streams;
    let memory = resident()?;
    let begun = Instant::now();
    let fleet = SimFleet::start(streams, &options(house, Duration::ZERO))?;
    let infos = &house.part.controller().tables.cloudlet_infos;
    until("all agents", || infos.len() >= streams && fleet.in_sync() == streams).await?;
    let first = begun.elapsed();
    let each = (resident()? - memory) / streams as f64;
    let whole = fleet.received();
    report.row(
        format!("{streams} agents connect, {} AppInsts", args.objects),
        format!("all in sync after {first:.2?}, {whole} notices"),
        format!("goal 10 s; {each:.0} KiB a stream, both ends with objects"),
        of_goal(first.as_secs_f64(), 10.0),
    );
    changes(house, &fleet, report).await?;
    reconnect(&fleet, whole, report).await
}

/// From the call that makes a change to the last agent having it.
async fn changes(house: &House, fleet: &SimFleet, report: &mut Report) -> Result<()> {
    let controller = house.part.controller();
    let mut taken = Vec::new();
    for round in 1..=50 {
        let called = Instant::now();
        controller.create_flavor(edge::flavor(format!("change-{round}")), Mode::Real).await?;
        let mut crms = fleet.crms().iter().peekable();
        until("a change at every agent", || {
            while crms.next_if(|crm| crm.mirrored()[1] >= round).is_some() {}
            crms.peek().is_none()
        })
        .await?;
        taken.push(called.elapsed());
    }
    taken.sort_unstable();
    let (half, most) = (quantile(&taken, 0.5), quantile(&taken, 0.99));
    report.row(
        format!("one change to {} agents", fleet.crms().len()),
        format!("p50 {half:.1?}, p99 {most:.1?} after the call"),
        "goal p99 250 ms",
        of_goal(most.as_secs_f64(), 0.25),
    );
    Ok(())
}

async fn reconnect(fleet: &SimFleet, whole: u64, report: &mut Report) -> Result<()> {
    let before = fleet.received();
    let begun = Instant::now();
    fleet.break_connections();
    until("all agents to come back", || {
        fleet.crms().iter().all(|crm| {
            let client = crm.status().client;
            client.stats.connects >= 2 && client.in_sync
        })
    })
    .await?;
    let elapsed = begun.elapsed();
    let notices = fleet.received() - before;
    report.row(
        format!("{} agents reconnect at once", fleet.crms().len()),
        format!("all in sync after {elapsed:.2?}, {notices} notices"),
        format!(
            "goal 10 s; {:.2} % of the notices at first",
            notices as f64 * 100.0 / whole as f64
        ),
        of_goal(elapsed.as_secs_f64(), 10.0),
    );
    Ok(())
}

async fn created_instances(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let house = House::open(&folder.join("created")).await?;
    let latency = Duration::from_millis(args.latency);
    let flavor = edge::flavor("x1.small");
    let controller = house.part.controller();
    controller.create_flavor(flavor.clone(), Mode::Real).await?;
    for number in 0..args.sites {
        let cloudlet = edge::cloudlet(SimFleet::cloudlet(number));
        controller.create_cloudlet(cloudlet, Mode::Real).await?;
    }
    let fleet = SimFleet::start(args.sites, &options(&house, latency))?;
    let infos = &controller.tables.cloudlet_infos;
    until("the agents", || infos.len() == args.sites && fleet.in_sync() == args.sites).await?;
    let channels = house.channels(args.creates).await?;
    let mut clusters = Vec::new();
    let mut api = ClusterInstApiClient::new(connect(&house).await?);
    for number in 0..args.sites {
        let cluster = edge::cluster_inst(SimFleet::cloudlet(number), &flavor);
        count(api.create_cluster_inst(cluster.clone()).await).await?;
        clusters.push(cluster);
    }
    let mut burst = Vec::new();
    for round in 0..args.rounds {
        let names = [format!("burst-{round}")];
        burst.extend(create(&house, &names, &clusters, &channels).await?);
    }
    let names: Vec<_> = (0..args.rounds * 2).map(|round| format!("steady-{round}")).collect();
    let steady = create(&house, &names, &clusters, &channels).await?;
    let names: Vec<_> = (0..20).map(|number| format!("lone-{number}")).collect();
    let alone = create(&house, &names, &clusters, &channels[..1]).await?;
    let over = |times: Vec<Duration>| {
        let mut over: Vec<_> = times.iter().map(|time| time.saturating_sub(latency)).collect();
        over.sort_unstable();
        (quantile(&over, 0.5), quantile(&over, 0.99))
    };
    let (lone, _) = over(alone);
    let ways = [("clients, one after another each", steady), ("all at the same instant", burst)];
    for (how, times) in ways {
        let (half, most) = over(times);
        report.row(
            format!("CreateAppInst over the agent's {latency:.0?}, {} {how}", args.creates),
            format!("p50 {half:.1?}, p99 {most:.1?}"),
            format!("goal p99 100 ms; one alone p50 {lone:.1?}"),
            of_goal(most.as_secs_f64(), 0.1),
        );
    }
    drop(fleet);
    house.close().await
}

/// On every connection at the same time, creates an instance of each name,
/// one after another; says how long each took.
async fn create(
    house: &House,
    names: &[String],
    clusters: &[wire::ClusterInst],
    channels: &[Channel],
) -> Result<Vec<Duration>> {
    let flavor = edge::flavor("x1.small");
    for name in names {
        for number in 0..channels.len().div_ceil(clusters.len()) {
            let app = edge::app(format!("{name}-{number}"), &flavor);
            house.part.controller().create_app(app, Mode::Real).await?;
        }
    }
    let tasks = channels.iter().enumerate().map(|(number, channel)| {
        let cluster = &clusters[number % clusters.len()];
        let request = |name: &String| {
            let app = edge::app_key(format!("{name}-{}", number / clusters.len()));
            edge::app_inst(app, cluster)
        };
        let requests: Vec<_> = names.iter().map(request).collect();
        let mut api = AppInstApiClient::new(channel.clone());
        tokio::spawn(async move {
            let mut taken = Vec::new();
            for request in requests {
                let begun = Instant::now();
                count(api.create_app_inst(request).await).await?;
                taken.push(begun.elapsed());
            }
            anyhow::Ok(taken)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let taken: Vec<Vec<Duration>> =
        try_join_all(tasks).await?.into_iter().collect::<Result<_>>()?;
    Ok(taken.concat())
}
