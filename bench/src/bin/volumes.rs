//! Costs of volumes: making one beside a bare `lvcreate`, listing a thousand
//! beside `lvs`, and telling a thousand watchers.
//!
//! The first two need a device mapper: this program runs itself under a
//! user-mode kernel, where everything is slow and ratios hold. What serves is
//! always a process of its own, and is stopped while the bare programs are
//! measured: it would look at what they change.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use futures::future::try_join_all;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use selvage_api::proto::{
    CreateLvRequest, Empty, GetLvListRequest, RemoveLvRequest, WatchResponse,
    lv_service_client::LvServiceClient, vg_service_client::VgServiceClient,
};
use selvage_bench::report::{Report, at_least, at_most, of_goal};
use selvage_kit::{
    serve::{Limits, Server, Services, Socket, Trust},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_lvmd::{Lvmd, Settings, config::Config};
use tokio_util::sync::CancellationToken;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

const GIB: u64 = 1 << 30;
/// Streams that one connection carries.
const PER_CONNECTION: usize = 200;
/// Timeout of the start of the server.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Measures volumes; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    work: Option<Work>,
    /// Number of volumes that are made, and of lists that are asked for
    #[arg(long, default_value_t = 25)]
    runs: usize,
    /// Volumes to list
    #[arg(long, default_value_t = 1000)]
    volumes: usize,
    /// Watchers to tell
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// The folder with the runner of the user-mode kernel
    #[arg(long, default_value = "tests/uml")]
    uml: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Runs the measurements under the user-mode kernel
    #[command(hide = true)]
    Inside,
    /// Serves
    #[command(hide = true)]
    Serve {
        /// The folder with `lvmd.yaml`, where `lvmd.sock` will be
        folder: PathBuf,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match &args.work {
        Some(Work::Inside) => return inside(&args).await,
        Some(Work::Serve { folder }) => return serve(folder).await,
        None => {}
    }
    under_uml(&args)?;
    let mut report = Report::new();
    watchers(&args, &mut report).await?;
    report.print();
    Ok(())
}

fn under_uml(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk)?.set_len(40 * GIB)?;
    std::fs::copy(args.uml.join("lvm.conf"), folder.path().join("lvm.conf"))
        .with_context(|| args.uml.display().to_string())?;
    let status = Command::new(args.uml.join("run"))
        .env("LVM_SYSTEM_DIR", folder.path())
        .args(["-t", "900", "-d"])
        .arg(&disk)
        .arg("--")
        .arg(std::env::current_exe()?)
        .args(["--runs", &args.runs.to_string(), "--volumes", &args.volumes.to_string()])
        .arg("inside")
        .status()?;
    ensure!(status.success(), "under the user-mode kernel: {status}");
    Ok(())
}

fn lvm(arguments: &[&str]) -> Result<String> {
    let output = Command::new("lvm").args(arguments).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Serves volumes until it is ended.
async fn serve(folder: &Path) -> Result<()> {
    let config = Config::load(&folder.join("lvmd.yaml"))?;
    let lvmd = Lvmd::open(Settings { config, path: None }).await?;
    let mut services = Services::default();
    lvmd.add_to(&mut services);
    let server = Server::new(services, Metrics::new("bench"), Limits::default()).await?;
    let tasks = Tasks::new(CancellationToken::new());
    lvmd.spawn(&tasks);
    let socket = Socket::unix(&folder.join("lvmd.sock")).await?;
    server.run(socket, Trust::Socket, tasks.token().clone()).await;
    Ok(())
}

/// A process that serves volumes.
struct Served {
    process: Child,
    folder: tempfile::TempDir,
}

impl Served {
    async fn start(config: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("lvmd.yaml"), config)?;
        let own = std::env::current_exe()?;
        let process = Command::new(own).arg("serve").arg(folder.path()).spawn()?;
        let mut this = Self { process, folder };
        let deadline = Instant::now() + START_TIMEOUT;
        while this.connect().await.is_err() {
            ensure!(this.process.try_wait()?.is_none(), "what serves has ended");
            ensure!(Instant::now() < deadline, "nothing serves");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(this)
    }

    async fn connect(&self) -> Result<Channel> {
        let socket = self.folder.path().join("lvmd.sock");
        Ok(Endpoint::new(format!("unix:{}", socket.display()))?.connect().await?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.process.id())?), signal)?)
    }

    /// Does something while nothing is served.
    fn stopped<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.signal(Signal::SIGSTOP)?;
        let done = work();
        self.signal(Signal::SIGCONT)?;
        done
    }

    /// Something that differs as soon as a program that it ran has ended.
    fn programs(&self) -> Result<u64> {
        const FAULTS_OF_CHILDREN: usize = 8;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = text.rsplit_once(')').context("a process has no state")?;
        let faults = fields.split_whitespace().nth(FAULTS_OF_CHILDREN);
        Ok(faults.context("a process has no faults")?.parse()?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value that so many percent are not above, in milliseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, Duration::as_secs_f64) * 1000.0
}

async fn inside(args: &Args) -> Result<()> {
    let mut report = Report::new();
    lvm(&["vgcreate", "-q", "-y", "bench", "/dev/ubda"])?;
    let config = "device-classes: [{name: ssd, volume-group: bench, default: true, spare-gb: 0}]";
    let served = Served::start(config).await?;
    let channel = served.connect().await?;
    creating(args, &served, &channel, &mut report).await?;
    plant(args.volumes)?;
    listing(args, &served, &channel, &mut report).await?;
    report.print();
    Ok(())
}

/// Makes volumes in turn by a call and by the bare program. Who is first
/// changes, for what one leaves in caches is good for the other.
async fn creating(
    args: &Args,
    served: &Served,
    channel: &Channel,
    report: &mut Report,
) -> Result<()> {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for run in 0..args.runs {
        if run % 2 == 0 {
            ours.push(by_call(channel).await?);
            bare.push(served.stopped(by_program)?);
        } else {
            bare.push(served.stopped(by_program)?);
            ours.push(by_call(channel).await?);
        }
    }
    for (percent, goal) in [(50, 1.15), (99, 1.5)] {
        let (ours, bare) = (percentile(&mut ours, percent), percentile(&mut bare, percent));
        report.row(
            format!("CreateLV, p{percent}"),
            format!("{ours:.0} ms"),
            format!("lvcreate {bare:.0} ms"),
            at_most(ours, bare, goal),
        );
    }
    Ok(())
}

/// Returns the time that a call takes to make a volume.
async fn by_call(channel: &Channel) -> Result<Duration> {
    let mut volumes = LvServiceClient::new(channel.clone());
    let name = "ours".to_owned();
    let create = CreateLvRequest { name: name.clone(), size_gb: 1, ..CreateLvRequest::default() };
    let start = Instant::now();
    volumes.create_lv(create).await?;
    let took = start.elapsed();
    volumes.remove_lv(RemoveLvRequest { name, ..RemoveLvRequest::default() }).await?;
    Ok(took)
}

/// Returns the time of the program that the call would run.
fn by_program() -> Result<Duration> {
    let start = Instant::now();
    lvm(&["lvcreate", "-n", "bare", "-L", "1073741824b", "-W", "y", "-y", "bench"])?;
    let took = start.elapsed();
    lvm(&["lvremove", "-f", "bench/bare"])?;
    Ok(took)
}

/// Puts many volumes into the group at once, by its metadata.
fn plant(count: usize) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_str().context("a path that is text")?;
    lvm(&["vgcfgbackup", "-f", path, "bench"])?;
    let text = std::fs::read_to_string(path)?;
    let mut many = String::from("\n\tlogical_volumes {\n");
    for number in 0..count {
        let id = format!("abcdef-0000-0000-0000-0000-0000-{number:06}");
        many += &format!(
            "v{number:06} {{ id = \"{id}\"\n status = [\"READ\", \"WRITE\", \"VISIBLE\"]\n flags = []\n \
             tags = [\"owner=bench\"]\n segment_count = 1\n segment1 {{ start_extent = 0\n extent_count = 1\n \
             type = \"striped\"\n stripe_count = 1\n stripes = [\"pv0\", {number}] }} }}\n"
        );
    }
    many += "\t}\n}\n";
    let end = text.trim_end().rfind('}').context("metadata without an end")?;
    std::fs::write(path, format!("{}{many}", &text[..end]))?;
    lvm(&["vgcfgrestore", "-f", path, "bench"]).map(|_| ())
}

/// Lists by calls and by the bare program.
async fn listing(
    args: &Args,
    served: &Served,
    channel: &Channel,
    report: &mut Report,
) -> Result<()> {
    let mut groups = VgServiceClient::new(channel.clone());
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let listed = groups.get_lv_list(GetLvListRequest::default()).await?.into_inner();
        if listed.volumes.len() == args.volumes {
            break;
        }
        ensure!(Instant::now() < deadline, "the planted volumes are not seen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = served.programs()?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..args.runs * 4 {
        let start = Instant::now();
        groups.get_lv_list(GetLvListRequest::default()).await?;
        ours.push(start.elapsed());
    }
    let programs = u8::from(served.programs()? != before);
    for _ in 0..args.runs {
        let took = served.stopped(|| {
            let start = Instant::now();
            lvm(&["lvs", "--reportformat", "json", "-o", "lv_name,lv_size,lv_tags", "bench"])?;
            Ok(start.elapsed())
        })?;
        bare.push(took);
    }
    let (ours, bare) = (percentile(&mut ours, 50), percentile(&mut bare, 50));
    report.row(
        format!("GetLVList, {} volumes, p50", args.volumes),
        format!("{ours:.1} ms"),
        format!("lvs {bare:.0} ms"),
        at_least(bare, ours, 50.0),
    );
    let count = if programs == 0 { "none" } else { "some" };
    let verdict = at_most(f64::from(programs), 1.0, 0.0);
    report.row("programs run for it", count, "lvs: 1 each", verdict);
    Ok(())
}

/// Watches as many times as asked, over a few connections.
async fn watch(served: &Served, count: usize) -> Result<Vec<Streaming<WatchResponse>>> {
    let mut streams = Vec::new();
    while streams.len() < count {
        let mut groups = VgServiceClient::new(served.connect().await?);
        for _ in 0..PER_CONNECTION.min(count - streams.len()) {
            let mut stream = groups.watch(Empty {}).await?.into_inner();
            stream.message().await?.context("a first message")?;
            streams.push(stream);
        }
    }
    Ok(streams)
}

/// Tells many watchers of one change, again and again.
async fn watchers(args: &Args, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = format!(
        "backend: loop\nloop:\n  directory: {}\n  groups: [{{name: bench, size-gb: 64, preallocate: false}}]\n\
         device-classes: [{{name: ssd, volume-group: bench, default: true, spare-gb: 0}}]",
        folder.path().display()
    );
    let served = Served::start(&config).await?;
    let mut volumes = LvServiceClient::new(served.connect().await?);
    let mut streams = watch(&served, args.watchers).await?;
    let mut late = Vec::new();
    for _ in 0..args.runs {
        let name = "one".to_owned();
        let create =
            CreateLvRequest { name: name.clone(), size_gb: 1, ..CreateLvRequest::default() };
        let waiting = notified(streams, 63 * GIB);
        volumes.create_lv(create).await?;
        let answered = Instant::now();
        let (back, last) = waiting.await?;
        late.push(last.saturating_duration_since(answered));
        let waiting = notified(back, 64 * GIB);
        volumes.remove_lv(RemoveLvRequest { name, ..RemoveLvRequest::default() }).await?;
        (streams, _) = waiting.await?;
    }
    for (what, percent) in [("median", 50), ("worst", 100)] {
        let late = percentile(&mut late, percent);
        report.row(
            format!("Watch, {} watchers, {what} of {}", args.watchers, args.runs),
            format!("all told {late:.1} ms after the answer"),
            "50 ms",
            of_goal(late, 50.0),
        );
    }
    Ok(())
}

/// Begins to wait until all are told that so much is free; gives them back,
/// and when the last one was told.
fn notified(
    streams: Vec<Streaming<WatchResponse>>,
    free: u64,
) -> impl Future<Output = Result<(Vec<Streaming<WatchResponse>>, Instant)>> {
    let waiting: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                while stream.message().await?.context("another message")?.free_bytes != free {}
                anyhow::Ok((stream, Instant::now()))
            })
        })
        .collect();
    async move {
        let answers: Vec<_> = try_join_all(waiting).await?.into_iter().collect::<Result<_>>()?;
        let last = answers.iter().map(|(_, at)| *at).max().context("nobody watches")?;
        Ok((answers.into_iter().map(|(stream, _)| stream).collect(), last))
    }
}
