//! Speed of the embedded store, beside etcd and beside the bare disk.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use futures::future::try_join_all;
use prost::Message;
use selvage_bench::etcd::Etcd;
use selvage_bench::report::{Report, at_least};
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{KeyRange, Op, Record, SharedStore, StoreExt, Table, Txn};
use tokio::sync::mpsc;

const VALUE: usize = 256;

/// Measures the store; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Folder on the disk to be measured; default is the one for temporary files
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seconds for each measurement of writes
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Writers that work at the same time
    #[arg(long, default_value_t = 64)]
    writers: usize,
    /// Watchers of one key
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// Objects in the store that is opened
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
    /// Do not compare with etcd
    #[arg(long)]
    no_etcd: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&base).context("making a folder to work in")?;
    let mut report = Report::new();
    writes(&args, folder.path(), &mut report).await?;
    watchers(&args, &mut report).await?;
    cold_open(&args, folder.path(), &mut report).await?;
    report.print();
    Ok(())
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// Appends and syncs, as the simplest program that keeps its word would.
fn disk(folder: &Path, time: Duration) -> Result<f64> {
    let mut file = OpenOptions::new().create(true).append(true).open(folder.join("append"))?;
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        file.write_all(&[7; VALUE])?;
        file.sync_data()?;
        count += 1;
    }
    Ok(per_second(count, begun.elapsed()))
}

async fn embedded(file: PathBuf, writers: usize, time: Duration) -> Result<f64> {
    let store: SharedStore = Embedded::open(file, Options::default()).await?;
    let begun = Instant::now();
    let tasks = (0..writers).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut count = 0_u64;
            while begun.elapsed() < time {
                store.put(format!("bench/{writer:03}/{count:08}"), vec![7; VALUE]).await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let counts = try_join_all(tasks).await?.into_iter().collect::<Result<Vec<_>>>()?;
    let rate = per_second(counts.iter().sum(), begun.elapsed());
    store.close().await?;
    Ok(rate)
}

async fn etcd(server: &Etcd, writers: usize, time: Duration) -> Result<f64> {
    let clients = try_join_all((0..writers).map(|_| server.client())).await?;
    let begun = Instant::now();
    let tasks = clients.into_iter().enumerate().map(|(writer, mut client)| {
        tokio::spawn(async move {
            let mut count = 0_u64;
            while begun.elapsed() < time {
                let key = format!("bench/{writer:03}/{count:08}");
                client.put(key, vec![7; VALUE], None).await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let counts = try_join_all(tasks).await?.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(per_second(counts.iter().sum(), begun.elapsed()))
}

async fn writes(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let time = Duration::from_secs(args.seconds);
    let bare = disk(folder, time)?;
    let one = embedded(folder.join("one"), 1, time).await?;
    let many = embedded(folder.join("many"), args.writers, time).await?;
    // Once more at the end: neighbours on the disk come and go.
    let bare = f64::midpoint(bare, disk(folder, time)?);
    let what = format!("durable puts, {} writers", args.writers);
    let shown = format!("{many:.0}/s");
    report.row(&what, &shown, format!("one writer {one:.0}/s"), at_least(many, one, 10.0));
    let ratio = format!("{:.1}x", many / bare);
    report.row(&what, &shown, format!("append + fdatasync {bare:.0}/s"), ratio);
    if !args.no_etcd {
        let server = Etcd::start(folder).await?;
        let theirs = etcd(&server, args.writers, time).await?;
        let alone = etcd(&server, 1, time).await?;
        report.row(&what, &shown, format!("etcd {theirs:.0}/s"), at_least(many, theirs, 3.0));
        let ratio = format!("{:.1}x", one / alone);
        let compared = format!("etcd {alone:.0}/s");
        report.row("durable puts, 1 writer", format!("{one:.0}/s"), compared, ratio);
    }
    Ok(())
}

/// From the call that makes a change, and from its acknowledgement, to the
/// last watcher having it.
async fn fan_out(watchers: usize) -> Result<(Duration, Duration)> {
    let store: SharedStore = Embedded::in_memory(Options::default()).await?;
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    for _ in 0..watchers {
        let mut watch = store.watch(KeyRange::key("k"), None).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Some(Ok(_)) = watch.next_events().await {
                if arrived.send(Instant::now()).is_err() {
                    break;
                }
            }
        });
    }
    let mut figures = Vec::new();
    for round in 0..31 {
        let called = Instant::now();
        store.put("k", round.to_string()).await?;
        let acknowledged = Instant::now();
        let mut last = called;
        for _ in 0..watchers {
            last = last.max(arrivals.recv().await.context("the watchers ended")?);
        }
        figures.push((last - called, last.saturating_duration_since(acknowledged)));
    }
    figures.sort_unstable();
    Ok(figures[figures.len() / 2])
}

async fn watchers(args: &Args, report: &mut Report) -> Result<()> {
    let (one, one_after) = fan_out(1).await?;
    let (many, many_after) = fan_out(args.watchers).await?;
    let each = many.as_secs_f64() / one.as_secs_f64();
    report.row(
        format!("one change to {} watchers", args.watchers),
        format!("{many:.1?} after the call, {many_after:.1?} after the commit"),
        format!("one watcher {one:.1?}, {one_after:.1?}"),
        format!("{each:.1}x for {}x the watchers", args.watchers),
    );
    Ok(())
}

/// About what an app instance looks like.
#[derive(Clone, PartialEq, Message)]
struct Object {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    owner: String,
    #[prost(bytes = "vec", tag = "3")]
    rest: Vec<u8>,
}

impl Record for Object {
    const KIND: &'static str = "object";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("owner", self.owner.clone())]
    }
}

async fn fill(store: &SharedStore, objects: u64) -> Result<()> {
    /// Record that the typed layer writes: see its documentation.
    #[derive(Clone, PartialEq, Message)]
    struct Envelope {
        #[prost(string, tag = "1")]
        kind: String,
        #[prost(uint32, tag = "2")]
        version: u32,
        #[prost(bytes = "vec", tag = "3")]
        record: Vec<u8>,
    }
    for first in (0..objects).step_by(100) {
        let mut txn = Txn::new();
        for number in first..objects.min(first + 100) {
            let object = Object {
                name: format!("object-{number:08}"),
                owner: format!("owner-{}", number % 500),
                rest: vec![7; 200],
            };
            let envelope = Envelope {
                kind: Object::KIND.to_owned(),
                version: Object::VERSION,
                record: object.encode_to_vec(),
            };
            let key = format!("records/object/{}", object.name);
            txn = txn.then(Op::put(key, envelope.encode_to_vec()));
        }
        store.txn(txn).await?;
    }
    Ok(())
}

async fn open_view(file: &Path, objects: u64) -> Result<Duration> {
    let begun = Instant::now();
    let store: SharedStore = Embedded::open(file, Options::default()).await?;
    let table: Arc<Table<Object>> = Table::open(store.clone()).await?;
    let elapsed = begun.elapsed();
    anyhow::ensure!(table.len() as u64 == objects, "only {} objects found", table.len());
    drop(table);
    store.close().await?;
    Ok(elapsed)
}

async fn cold_open(args: &Args, folder: &Path, report: &mut Report) -> Result<()> {
    let (file, crashed) = (folder.join("objects"), folder.join("crashed"));
    let store: SharedStore = Embedded::open(&file, Options::default()).await?;
    fill(&store, args.objects).await?;
    // What the disk holds while the store is open is what a crash leaves.
    std::fs::copy(&file, &crashed)?;
    store.close().await?;
    for (what, file) in [("after a clean stop", file), ("after a crash", crashed)] {
        let elapsed = open_view(&file, args.objects).await?;
        let goal = Duration::from_secs(2);
        let verdict = if elapsed <= goal { "met" } else { "missed" };
        let each = elapsed.as_secs_f64() * 1e6 / args.objects as f64;
        report.row(
            format!("open with {} objects {what}", args.objects),
            format!("{elapsed:.2?}, {each:.1} us an object"),
            format!("goal {goal:.0?}"),
            format!("{:.2} of the goal ({verdict})", elapsed.as_secs_f64() / goal.as_secs_f64()),
        );
    }
    Ok(())
}
