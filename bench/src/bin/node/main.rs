//! Costs of the agent of a machine, beside what people run today: `ps`,
//! containerd's own measurements, node_exporter, cAdvisor, `ctr run`.
//!
//! Everything is real: containers of a containerd of our own, the agent as
//! `selvage node` that belongs to a controller. CPU time is that of the processes that serve, not of the
//! client. Needs root; removes what it made, also when it is interrupted.

mod agent;
mod image;
mod peers;
mod storm;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agent::{Agent, Controller};
use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use image::{COMMAND, IMAGE};
use peers::{Containerd, Containers, Crowd, Exporter, NAMESPACE, answer};
use selvage_bench::{
    cost::{Group, Memory, cpu_of_children, median},
    report::{Report, Verdict, at_least, at_most, of_goal},
};
use selvage_runtime::{ContainerSpec, Runtime, oci};

/// Measures the agent; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Folder to work in; default is the one for temporary files
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Containers
    #[arg(long, default_value_t = 200)]
    containers: usize,
    /// Processes, those of containers included
    #[arg(long, default_value_t = 700)]
    processes: usize,
    /// Agents that are asked at once
    #[arg(long, default_value_t = 100)]
    agents: usize,
    /// Calls, scrapes and rounds of each measurement
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// Seconds for which the agent is left alone
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// The program whose agent is measured; default is the one beside this
    #[arg(long)]
    selvage: Option<PathBuf>,
    /// cAdvisor; without it node_exporter alone is compared with
    #[arg(long, env = "CADVISOR")]
    cadvisor: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("sb").tempdir_in(&base);
    let folder = folder.context("making a folder to work in")?;
    let mut report = Report::new();
    let outcome = tokio::select! {
        outcome = Box::pin(measure(&args, folder.path(), &mut report)) => outcome,
        outcome = interrupted() => outcome,
    };
    report.print();
    outcome
}

/// Whoever ends this wants what it made to be gone.
async fn interrupted() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        ended = tokio::signal::ctrl_c() => ended?,
    }
    anyhow::bail!("interrupted")
}

async fn measure(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let selvage = match &args.selvage {
        Some(selvage) => selvage.clone(),
        None => std::env::current_exe()?.with_file_name("selvage"),
    };
    ensure!(selvage.is_file(), "{} is missing: build it first", selvage.display());
    let place = |name: &str| {
        let place = folder.join(name);
        std::fs::create_dir(&place).map(|()| place)
    };
    let containerd = Containerd::start(&place("containerd")?).await?;
    let measured = async {
        containerd.run_all(args.containers).await?;
        // Pages of a program of its own are not shared with the agent's.
        let controllers = place("controller")?;
        let program = controllers.join("selvage");
        std::fs::copy(&selvage, &program)?;
        let controller = Controller::start(&program, &controllers).await?;
        let agent =
            Agent::joined(&selvage, &controller, &place("agent")?, &containerd.socket()).await?;
        with_containers(args, &agent, &containerd, report).await?;
        drop((agent, controller));
        starts(args, &containerd, &place("oci")?, report).await
    }
    .await;
    drop(containerd);
    measured?;
    many(args, &selvage, &place("many")?, report).await
}

async fn with_containers(
    args: &Args,
    agent: &Agent,
    containerd: &Containerd,
    report: &mut Report,
) -> Result<()> {
    answer("the agent's sampler", || async {
        let stats = agent.stats(NAMESPACE).await.ok()?;
        (stats.len() == args.containers).then_some(())
    })
    .await?;
    let http = client(None)?;
    let node_exporter = Exporter::node_exporter(&http).await?;
    let crowd = Crowd::fill_up_to(args.processes)?;
    processes(args, agent, report).await?;
    storm::measure(agent, report).await?;
    stats(args, agent, containerd, report).await?;
    pages(args, agent, &node_exporter, report).await?;
    memory_and_idle(args, agent, &node_exporter, report).await?;
    drop(crowd);
    Ok(())
}

fn client(ca: Option<&[u8]>) -> Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder().no_proxy();
    if let Some(ca) = ca {
        builder = builder.tls_certs_only([reqwest::Certificate::from_pem(ca)?]);
    }
    Ok(builder.build()?)
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn ratio(theirs: Duration, ours: Duration, goal: f64) -> Verdict {
    at_least(theirs.as_secs_f64(), ours.as_secs_f64(), goal)
}

async fn processes(args: &Args, agent: &Agent, report: &mut Report) -> Result<()> {
    let listed = agent.processes().await?.len();
    // Others on this machine come and go.
    ensure!(listed >= args.processes * 9 / 10, "only {listed} processes were told");
    let (mut ours, mut theirs) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..args.rounds {
        ours += agent.daemon.group.during(agent.processes()).await?;
        let before = cpu_of_children()?;
        let status = Command::new("ps").arg("aux").stdout(Stdio::null()).status()?;
        ensure!(status.success(), "ps failed");
        theirs += cpu_of_children()?.saturating_sub(before);
    }
    let (ours, theirs) = (ours / args.rounds, theirs / args.rounds);
    report.row(
        format!("Processes, {listed} of them, polled"),
        format!("{} CPU", ms(ours)),
        format!("ps aux {} CPU", ms(theirs)),
        ratio(theirs, ours, 10.0),
    );
    Ok(())
}

async fn stats(
    args: &Args,
    agent: &Agent,
    containerd: &Containerd,
    report: &mut Report,
) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut our_cpu, mut their_cpu) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..args.rounds {
        let begun = Instant::now();
        let call = async {
            ensure!(agent.stats(NAMESPACE).await?.len() == args.containers, "some are missing");
            Ok(())
        };
        our_cpu += agent.daemon.group.during(call).await?;
        ours.push(begun.elapsed());
        let begun = Instant::now();
        let call = async {
            ensure!(containerd.metrics().await? == args.containers, "some are missing");
            Ok(())
        };
        their_cpu += containerd.daemon.group.during(call).await?;
        theirs.push(begun.elapsed());
    }
    let (ours, theirs) = (median(ours)?, median(theirs)?);
    let what = format!("Stats, {} containers", args.containers);
    let compared = format!("containerd Tasks.Metrics {}", ms(theirs));
    report.row(&what, ms(ours), compared, ratio(theirs, ours, 45.0));
    let (ours, theirs) = (our_cpu / args.rounds, their_cpu / args.rounds);
    let times = theirs.as_secs_f64() / ours.as_secs_f64();
    let compared = format!("containerd and shims {} CPU", ms(theirs));
    report.row(what, format!("{} CPU", ms(ours)), compared, format!("{times:.0}x"));
    Ok(())
}

/// CPU time of a scrape, and the size of the page.
async fn scrapes(
    rounds: u32,
    group: &Group,
    fetch: impl AsyncFn() -> Result<reqwest::Response>,
) -> Result<(Duration, usize)> {
    let mut size = 0;
    let scrape =
        async || -> Result<usize> { Ok(fetch().await?.error_for_status()?.bytes().await?.len()) };
    scrape().await?;
    let spent = group
        .during(async {
            for _ in 0..rounds {
                size = scrape().await?;
            }
            Ok(())
        })
        .await?;
    Ok((spent / rounds, size))
}

async fn pages(
    args: &Args,
    agent: &Agent,
    node_exporter: &Exporter,
    report: &mut Report,
) -> Result<()> {
    let own = client(agent.ca.as_deref())?;
    let url = format!("{}/metrics/node", agent.endpoint);
    let token = agent.token.as_deref().unwrap_or_default();
    let fetch = async || Ok(own.get(&url).bearer_auth(token).send().await?);
    let (ours, our_size) = scrapes(args.rounds, &agent.daemon.group, fetch).await?;
    let http = client(None)?;
    let fetch = async || Ok(http.get(&node_exporter.url).send().await?);
    let (alone, alone_size) = scrapes(args.rounds, &node_exporter.daemon.group, fetch).await?;
    let what = format!("Prometheus page, {} containers and host", args.containers);
    let measured = format!("{} CPU, {} kB", ms(ours), our_size / 1000);
    let compared = format!("node_exporter {} CPU, {} kB", ms(alone), alone_size / 1000);
    let Some(program) = &args.cadvisor else {
        report.row(what, measured, compared, ratio(alone, ours, 10.0));
        return Ok(());
    };
    let times = alone.as_secs_f64() / ours.as_secs_f64();
    report.row(&what, &measured, compared, format!("{times:.1}x (host alone)"));
    let cadvisor = Exporter::cadvisor(program, &http).await?;
    let all = format!("name=\"c{:03}\"", args.containers - 1);
    answer("cAdvisor with all containers", || async {
        let page = http.get(&cadvisor.url).send().await.ok()?.text().await.ok()?;
        (page.contains(&all) || page.matches("container_last_seen{").count() >= args.containers)
            .then_some(())
    })
    .await?;
    let fetch = async || Ok(http.get(&cadvisor.url).send().await?);
    let (theirs, size) = scrapes(args.rounds, &cadvisor.daemon.group, fetch).await?;
    let compared = format!("with cAdvisor {} CPU, {} kB", ms(alone + theirs), size / 1000);
    report.row(what, measured, compared, ratio(alone + theirs, ours, 10.0));
    let (ours, theirs) = (Memory::of(agent.daemon.pid())?, Memory::of(cadvisor.daemon.pid())?);
    report.row(
        "resident memory, just scraped",
        ours.to_string(),
        format!("cAdvisor {theirs}"),
        format!("{:.2}x", ours.resident as f64 / theirs.resident as f64),
    );
    Ok(())
}

/// As they are after they were asked, and then left alone.
async fn memory_and_idle(
    args: &Args,
    agent: &Agent,
    node_exporter: &Exporter,
    report: &mut Report,
) -> Result<()> {
    let alone = Duration::from_secs(args.idle);
    let sleep = async {
        tokio::time::sleep(alone).await;
        Ok(())
    };
    let spent = agent.daemon.group.during(sleep).await?;
    let (ours, theirs) = (Memory::of(agent.daemon.pid())?, Memory::of(node_exporter.daemon.pid())?);
    report.row(
        format!("resident memory, {} containers", args.containers),
        ours.to_string(),
        format!("node_exporter {theirs}"),
        at_most(ours.resident as f64, theirs.resident as f64, 0.75),
    );
    let share = spent.as_secs_f64() / alone.as_secs_f64() * 100.0;
    report.row(
        format!("idle, {} containers every second", args.containers),
        format!("{share:.2} % of a core"),
        "goal 0.5 %",
        of_goal(share, 0.5),
    );
    Ok(())
}

/// Making and starting a container, ours and theirs by turns.
async fn starts(
    args: &Args,
    containerd: &Containerd,
    folder: &Path,
    report: &mut Report,
) -> Result<()> {
    let options = oci::Options {
        state: folder.join("state"),
        cgroup: format!("/selvage-bench-{}-oci", std::process::id()),
        ..oci::Options::new(folder.join("root"))
    };
    let _containers = Containers::new(folder, options.cgroup.trim_start_matches('/'));
    let runtime = oci::Oci::open(options).await?;
    let program = runtime.version().await?;
    let tar = folder.join("image.tar");
    image::write(&tar)?;
    runtime.import(NAMESPACE, &tar, None).await?;
    let shims = containerd.helpers()?.len();
    let figures = by_turns(args, containerd, &runtime).await;
    let before = selvage_bench::cost::processes()?;
    let shims = containerd.helpers()?.len() - shims;
    for container in runtime.list(NAMESPACE).await? {
        runtime.delete(NAMESPACE, &container.runtime_id, true).await?;
    }
    let ended = before.saturating_sub(selvage_bench::cost::processes()?);
    let [ours, theirs, our_cpu, their_cpu] = figures?;
    let compared = format!("ctr run {}", ms(theirs));
    let what = format!("create and start, {program}");
    report.row(&what, ms(ours), compared, ratio(theirs, ours, 4.0));
    let compared = format!("ctr, containerd, shim {} CPU", ms(their_cpu));
    let measured = format!("{} CPU", ms(our_cpu));
    report.row(what, measured, compared, ratio(their_cpu, our_cpu, 4.0));
    let each = |count: usize| count as f64 / f64::from(args.rounds);
    report.row(
        "processes beside a container",
        format!("{:.0}", (each(ended) - 1.0).max(0.0)),
        format!("containerd {:.0}", each(shims)),
        "goal 0",
    );
    Ok(())
}

/// Time and CPU time of ours and theirs.
async fn by_turns(
    args: &Args,
    containerd: &Containerd,
    runtime: &oci::Oci,
) -> Result<[Duration; 4]> {
    let own = Group::new("self")?;
    let home = OwnGroup::enter(&own)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut our_cpu, mut their_cpu) = (Duration::ZERO, Duration::ZERO);
    for round in 0..args.rounds {
        let id = format!("s{round:03}");
        let spec = ContainerSpec {
            id: id.clone(),
            image: IMAGE.into(),
            command: COMMAND.map(str::to_owned).into(),
            ..ContainerSpec::default()
        };
        let begun = Instant::now();
        let start = async {
            runtime.create(NAMESPACE, spec).await?;
            Ok(runtime.start(NAMESPACE, &id).await?)
        };
        our_cpu += own.during(start).await?;
        ours.push(begun.elapsed());
        let begun = Instant::now();
        let (before, daemon) = (own.cpu()?, &containerd.daemon.group);
        their_cpu += daemon.during(containerd.run(&id)).await?;
        theirs.push(begun.elapsed());
        their_cpu += own.cpu()?.saturating_sub(before);
    }
    drop(home);
    Ok([median(ours)?, median(theirs)?, our_cpu / args.rounds, their_cpu / args.rounds])
}

/// This process in a group, until this is dropped.
struct OwnGroup<'a>(&'a Group);

impl<'a> OwnGroup<'a> {
    fn enter(group: &'a Group) -> Result<Self> {
        group.add(std::process::id())?;
        Ok(Self(group))
    }
}

impl Drop for OwnGroup<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// One call to many agents, beside asking each of them at the same time.
async fn many(args: &Args, selvage: &Path, folder: &Path, report: &mut Report) -> Result<()> {
    let starting = (0..=args.agents).map(|number| {
        let place = folder.join(number.to_string());
        async move {
            std::fs::create_dir(&place)?;
            Agent::plain(selvage, &place, number).await
        }
    });
    let mut agents: Vec<Agent> = stream::iter(starting).buffer_unordered(4).try_collect().await?;
    let entry = agents.pop().context("no agents")?;
    let names: Vec<String> = agents.iter().map(|agent| agent.address().to_owned()).collect();
    let (mut ours, mut slowest) = (Vec::new(), Vec::new());
    // The first round makes the connections.
    for round in 0..=args.rounds {
        let begun = Instant::now();
        let reply = entry.memory(&names).await?;
        let took = begun.elapsed();
        let failed = reply.messages.iter().filter_map(|message| message.metadata.as_ref());
        let failed: Vec<&str> =
            failed.map(|listed| listed.error.as_str()).filter(|text| !text.is_empty()).collect();
        ensure!(reply.messages.len() == names.len(), "{} replies", reply.messages.len());
        ensure!(failed.is_empty(), "{failed:?}");
        let asking = agents.iter().map(|agent| async {
            let begun = Instant::now();
            agent.memory(&[]).await?;
            anyhow::Ok(begun.elapsed())
        });
        let each = try_join_all(asking).await?;
        if round > 0 {
            ours.push(took);
            slowest.push(each.into_iter().max().unwrap_or_default());
        }
    }
    let (ours, slowest) = (median(ours)?, median(slowest)?);
    report.row(
        format!("Memory of {} agents by one call", args.agents),
        ms(ours),
        format!("slowest of them, asked directly at once {}", ms(slowest)),
        at_most(ours.as_secs_f64(), slowest.as_secs_f64(), 1.2),
    );
    Ok(())
}
