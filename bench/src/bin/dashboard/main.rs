//! Speed of the dashboard: its answers, its pushes, its page in a real browser, and the
//! cost of those who watch; beside the dashboard of a Ceph manager where Ceph is
//! installed.

#[allow(clippy::unwrap_used, clippy::panic, dead_code)]
#[path = "../../../../tests/shared/ceph.rs"]
mod ceph;
mod own;
mod page;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use selvage_bench::report::{Report, at_least, at_least_figure, of_goal};

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
    /// Times that each thing is done in the browser
    #[arg(long, default_value_t = 20)]
    trials: usize,
    /// Program to measure [default: the one beside this]
    #[arg(long)]
    selvage: Option<PathBuf>,
    /// Leave Ceph out
    #[arg(long)]
    no_ceph: bool,
    /// Leave the browser out
    #[arg(long)]
    no_browser: bool,
    /// Be the server, on this socket
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

async fn answers(args: &Args, rival: Option<&ceph::Cluster>, report: &mut Report) -> Result<()> {
    let served = own::Served::start(args).await?;
    let own = own::stats(&served, args).await?;
    let what = format!("GetClusterStats, {} connections", args.connections);
    let goal = at_least_figure(own.calls, 20_000.0);
    report.row(format!("{what}: calls a second"), format!("{:.0}", own.calls), "goal 20000", goal);
    let goal = of_goal(own.slowest.as_secs_f64(), 0.010);
    report.row(format!("{what}: 99 of 100"), millis(own.slowest), "goal 10 ms", goal);
    if let Some(cluster) = rival {
        let url = page::active_dashboard(cluster).await.context("Ceph's dashboard")?;
        let token = page::ceph_token(&url).await.context("a token of Ceph")?;
        let theirs = own::ceph(&url, &token, args).await?;
        let theirs_text = format!("Ceph's health/full {:.0}", theirs.calls);
        let goal = at_least(own.calls, theirs.calls, 20.0);
        report.row(
            format!("{what}: calls a second"),
            format!("{:.0}", own.calls),
            theirs_text,
            goal,
        );
        let theirs_text = format!("Ceph's {}", millis(theirs.slowest));
        let ratio = theirs.slowest.as_secs_f64() / own.slowest.as_secs_f64();
        report.row(
            format!("{what}: 99 of 100"),
            millis(own.slowest),
            theirs_text,
            format!("{ratio:.0}x less"),
        );
    }
    let watched = own::watch(&served, args).await?;
    let mib = watched.bytes / f64::from(1 << 20);
    let what = format!("{} streams, {} instances", args.watchers, args.instances);
    let goal = of_goal(mib.max(0.0), 40.0);
    report.row(format!("{what}: memory"), format!("{mib:.1} MiB"), "goal 40 MiB", goal);
    let goal = of_goal(watched.late.as_secs_f64(), 1.0);
    report.row(format!("{what}: told, 99 of 100"), millis(watched.late), "goal 1 s", goal);
    let [alone, with] = watched.asked;
    report.row(
        format!("{what}: a source is asked, a second"),
        format!("{with:.2}"),
        format!("{alone:.2} without them"),
        of_goal(with, alone * 1.2),
    );
    Ok(())
}

async fn measure(args: &Args) -> Result<()> {
    let mut report = Report::new();
    let start = || (!args.no_ceph).then(ceph::Cluster::start).flatten();
    let mut cluster = tokio::task::block_in_place(start);
    if cluster.is_none() {
        report.row("Ceph's dashboard", "left out", "Ceph is not installed, or not wanted", "");
    }
    answers(args, cluster.as_ref(), &mut report).await?;
    let mut shown = Ok(());
    if !args.no_browser {
        shown = page::measure(args, cluster.as_mut(), &mut report).await;
    }
    // What was measured before something failed is worth its time.
    report.print();
    shown
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match &args.serve {
        Some(path) => own::serve(path, args.instances).await,
        None => measure(&args).await,
    }
}
