//! Number of agents that a controller keeps up to date, and what they cost it.
//!
//! The agents run in a process of their own, so that what is measured of this
//! one is the server's alone. With `--grow` the number of agents doubles until
//! a goal is missed or the machine has no more.
#![allow(clippy::print_stdout, reason = "the two processes talk by it")]

use std::io::{BufRead, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use selvage_api::edgeproto as wire;
use selvage_bench::edge::{self, House};
use selvage_bench::report::{Report, at_most, of_goal};
use selvage_controller::Mode;
use selvage_controller::row::Row;
use selvage_sim::{SimCrm, SimFleet, SimOptions};
use selvage_store::SharedStore;
use selvage_store::embedded::{Embedded, Options};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Objects that change while all agents are away.
const CHANGED: usize = 100;
/// Changes that are timed.
const ROUNDS: usize = 100;
/// A round of growth that takes longer has failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// Measures notify; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Folder on the disk to be measured; default is the one for temporary files
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Agents
    #[arg(long, default_value_t = 2000)]
    streams: usize,
    /// App instances, spread over the agents
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// Go on with twice as many agents until a goal is missed
    #[arg(long)]
    grow: bool,
    /// Be the agents; orders come by standard input
    #[arg(long, hide = true)]
    agents: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    if args.agents {
        return agents().await;
    }
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut streams = args.streams;
    loop {
        let folder = tempfile::tempdir_in(&base).context("making a folder to work in")?;
        let mut report = Report::new();
        let outcome = Box::pin(measure(streams, args.objects, folder.path(), &mut report)).await;
        report.print();
        match outcome {
            Ok(met) if met && args.grow => streams *= 2,
            Ok(_) => return Ok(()),
            Err(error) if args.grow => {
                println!("with {streams} agents it breaks: {error:#}");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the cloudlet of instance `number`: one of as many as there are agents,
/// each with the same apps.
fn instance(number: usize, streams: usize) -> wire::AppInst {
    let mut instance = edge::ready_app_inst(number, SimFleet::cloudlet(number % streams));
    if let Some(key) = &mut instance.key {
        key.app_key = Some(edge::app_key(format!("app-{:06}", number / streams)));
    }
    instance
}

async fn fill(file: &Path, streams: usize, objects: usize) -> Result<()> {
    let store: SharedStore = Embedded::open(file, Options::default()).await?;
    let flavor = edge::flavor("x1.small");
    edge::fill(&store, std::iter::once(flavor.clone())).await?;
    let apps = (0..objects.div_ceil(streams)).map(|n| edge::app(format!("app-{n:06}"), &flavor));
    edge::fill(&store, apps).await?;
    edge::fill(&store, (0..streams).map(|n| edge::cloudlet(SimFleet::cloudlet(n)))).await?;
    edge::fill(&store, (0..objects).map(|n| instance(n, streams))).await?;
    Ok(store.close().await?)
}

/// Returns whether all goals are met.
async fn measure(
    streams: usize,
    objects: usize,
    folder: &Path,
    report: &mut Report,
) -> Result<bool> {
    let file = folder.join("store");
    fill(&file, streams, objects).await?;
    let house = House::open(&file).await?;
    let mut agents = Agents::start(house.address, streams).await?;
    let mut met = first(&mut agents, streams, objects, report).await?;
    met &= changes(&house, &mut agents, report).await?;
    let (house, resumed) = reconnect(house, &file, &mut agents, streams, report).await?;
    house.close().await?;
    agents.end().await?;
    Ok(met && resumed)
}

/// Memory of a process in KiB.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(figure.parse()?)
}

async fn first(
    agents: &mut Agents,
    streams: usize,
    objects: usize,
    report: &mut Report,
) -> Result<bool> {
    let memory = resident()?;
    let took = agents.order("online").await?;
    // Each gets the flavor, its cloudlet, its instances and their apps.
    let expected = (2 * streams + 2 * objects) as u64;
    ensure!(agents.notices == expected, "{} notices, not {expected}", agents.notices);
    agents.whole = agents.bytes;
    report.row(
        format!("{streams} agents connect, {objects} AppInsts"),
        format!("all in sync after {took:.2?}"),
        format!("goal 10 s; {expected} notices, each object once"),
        of_goal(took.as_secs_f64(), 10.0),
    );
    // What the burst needed goes back before the cost of being there is seen.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let each = (resident()? - memory) / streams as f64;
    report.row(
        "an idle agent, server side",
        format!("{each:.1} KiB resident"),
        "goal 50 KiB",
        of_goal(each, 50.0),
    );
    Ok(took <= Duration::from_secs(10) && each <= 50.0)
}

/// From the call that makes a change to the last agent having it.
async fn changes(house: &House, agents: &mut Agents, report: &mut Report) -> Result<bool> {
    let controller = house.part.controller();
    let mut taken = Vec::new();
    for round in 0..ROUNDS {
        let called = Instant::now();
        agents.say(&format!("flavors {}", round + 2)).await?;
        controller.create_flavor(edge::flavor(format!("change-{round}")), Mode::Real).await?;
        agents.done().await?;
        taken.push(called.elapsed());
    }
    taken.sort_unstable();
    let quantile = |share: f64| taken[((taken.len() - 1) as f64 * share).round() as usize];
    let (half, most) = (quantile(0.5), quantile(0.99));
    report.row(
        "one change to all of them",
        format!("p50 {half:.1?}, p99 {most:.1?} after the call"),
        "goal p99 250 ms",
        of_goal(most.as_secs_f64(), 0.25),
    );
    Ok(most <= Duration::from_millis(250))
}

/// Changes some instances behind the back of the agents.
async fn change_instances(house: &House, streams: usize, round: usize) -> Result<()> {
    let table = &house.part.controller().tables.app_insts;
    for number in 0..CHANGED {
        let mut changed = instance(number * 7 % streams, streams);
        changed.uri = format!("moved-{round}.sim.selvage.internal");
        table.put(Row(changed)).await?;
    }
    Ok(())
}

async fn reconnect(
    house: House,
    file: &Path,
    agents: &mut Agents,
    streams: usize,
    report: &mut Report,
) -> Result<(House, bool)> {
    let mut met = true;
    let mut row = |report: &mut Report, what: String, took: Duration, agents: &Agents| {
        let share = agents.bytes as f64 / agents.whole as f64;
        let time = format!("all in sync after {took:.2?}, {} notices", agents.notices);
        report.row(what, time, "goal 10 s", of_goal(took.as_secs_f64(), 10.0));
        report.row(
            "  its bytes",
            agents.bytes.to_string(),
            format!("{} at first", agents.whole),
            at_most(agents.bytes as f64, agents.whole as f64, 0.02),
        );
        met &= took <= Duration::from_secs(10) && share <= 0.02;
    };
    agents.order("offline").await?;
    change_instances(&house, streams, 1).await?;
    let took = agents.order("online").await?;
    let what = format!("all reconnect at once, {CHANGED} instances changed");
    row(report, what, took, agents);

    agents.say("returned").await?;
    let address = house.address;
    house.close().await?;
    let house = House::open_at(file, address).await?;
    let begun = Instant::now();
    agents.done().await?;
    row(report, "the controller is started anew".into(), begun.elapsed(), agents);

    let took = agents.order("forget").await?;
    report.row(
        "all reconnect at once and have forgotten everything",
        format!("all in sync after {took:.2?}, {} notices", agents.notices),
        "goal 10 s",
        of_goal(took.as_secs_f64(), 10.0),
    );
    Ok((house, met && took <= Duration::from_secs(10)))
}

/// The process of the agents, from the outside.
struct Agents {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Of the last order.
    notices: u64,
    bytes: u64,
    /// Bytes when everything came.
    whole: u64,
}

impl Agents {
    async fn start(address: SocketAddr, streams: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--agents")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().context("no standard input")?;
        let answers = child.stdout.take().context("no standard output")?;
        let answers = BufReader::new(answers).lines();
        let mut agents = Self { child, orders, answers, notices: 0, bytes: 0, whole: 0 };
        agents.order(&format!("start {address} {streams}")).await?;
        Ok(agents)
    }

    async fn say(&mut self, order: &str) -> Result<()> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await?;
        Ok(self.orders.flush().await?)
    }

    /// Waits for an order to be done.
    async fn done(&mut self) -> Result<()> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.answers.next_line()).await;
        let answer = answer.context("the agents are not done in time")??;
        let answer = answer.context("the agents have ended")?;
        let mut words = answer.split(' ');
        ensure!(words.next() == Some("done"), "the agents say {answer:?}");
        let mut number = || words.next().context("a number")?.parse::<u64>().context("a number");
        (self.notices, self.bytes) = (number()?, number()?);
        Ok(())
    }

    async fn order(&mut self, order: &str) -> Result<Duration> {
        let begun = Instant::now();
        self.say(order).await?;
        self.done().await?;
        Ok(begun.elapsed())
    }

    async fn end(mut self) -> Result<()> {
        drop(self.orders);
        self.child.wait().await?;
        Ok(())
    }
}

/// The agents, from the inside.
async fn agents() -> Result<()> {
    let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    // Nobody connects before being told.
    let (mut place, mut fleet) = (None, None);
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        if let ["start", address, count] = words.as_slice() {
            place = Some(((*address).to_owned(), count.parse()?));
            answer(0, 0)?;
            continue;
        }
        if let (None, ["online"]) = (&fleet, words.as_slice()) {
            let (address, count) = place.clone().context("where?")?;
            let options = SimOptions::new(vec![address], SimFleet::cloudlet(0));
            let started = fleet.insert(SimFleet::start(count, &options)?);
            each(started.crms().iter(), |crm| crm.client().in_sync).await?;
            let (notices, bytes) = received(started);
            answer(notices, bytes)?;
            continue;
        }
        let fleet = fleet.as_ref().context("nobody is there")?;
        let (notices, bytes) = received(fleet);
        obey(fleet, &words).await?;
        let (all_notices, all_bytes) = received(fleet);
        answer(all_notices - notices, all_bytes - bytes)?;
    }
    Ok(())
}

fn received(fleet: &SimFleet) -> (u64, u64) {
    (fleet.received(), fleet.received_bytes())
}

fn answer(notices: u64, bytes: u64) -> Result<()> {
    println!("done {notices} {bytes}");
    Ok(std::io::stdout().flush()?)
}

async fn obey(fleet: &SimFleet, order: &[&str]) -> Result<()> {
    let syncs: Vec<u64> = fleet.crms().iter().map(|crm| crm.client().stats.recv_all).collect();
    let synced = |(crm, before): (&SimCrm, &u64)| {
        let client = crm.client();
        client.in_sync && client.stats.recv_all > *before
    };
    match order {
        ["online"] => fleet.crms().iter().for_each(SimCrm::go_online),
        ["forget"] => {
            futures::future::join_all(fleet.crms().iter().map(|crm| crm.restart(false))).await;
        }
        ["returned"] => {}
        ["offline"] => {
            futures::future::join_all(fleet.crms().iter().map(SimCrm::go_offline)).await;
            return Ok(());
        }
        ["flavors", count] => {
            let count = count.parse::<usize>()?;
            return each(fleet.crms().iter(), |crm| crm.mirrored()[1] >= count).await;
        }
        _ => bail!("{order:?} is not understood"),
    }
    each(fleet.crms().iter().zip(&syncs), synced).await
}

/// Waits until something holds for each of them.
async fn each<T: Copy>(all: impl Iterator<Item = T>, holds: impl Fn(T) -> bool) -> Result<()> {
    let mut left = all.peekable();
    let waiting = async {
        loop {
            while left.next_if(|one| holds(*one)).is_some() {}
            if left.peek().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, waiting).await.context("waited in vain")
}
