//! What volumes cost: making one beside a bare `lvcreate`, listing a thousand
//! beside `lvs`, and telling a thousand watchers.
//!
//! The first two need a device mapper: this program runs itself under a
//! user-mode kernel, where everything is slow and ratios hold.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use futures::future::try_join_all;
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

/// Measures volumes; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    work: Option<Work>,
    /// How often a volume is made
    #[arg(long, default_value_t = 15)]
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
    /// What is measured under the user-mode kernel
    #[command(hide = true)]
    Inside,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Work::Inside) = args.work {
        return inside(&args).await;
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

/// A served set of volumes.
struct Served {
    socket: PathBuf,
    tasks: Tasks,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn start(config: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("lvmd.sock");
        let config = Config::parse(config).map_err(anyhow::Error::msg)?;
        let lvmd = Lvmd::open(Settings { config, path: None }).await?;
        let mut services = Services::default();
        lvmd.add_to(&mut services);
        let server = Server::new(services, Metrics::new("bench"), Limits::default()).await?;
        let tasks = Tasks::new(CancellationToken::new());
        let bound = Socket::unix(&socket).await?;
        tasks.spawn("socket", server.run(bound, Trust::Socket, tasks.token().clone()));
        lvmd.spawn(&tasks);
        Ok(Self { socket, tasks, _folder: folder })
    }

    async fn connect(&self) -> Result<Channel> {
        Ok(Endpoint::new(format!("unix:{}", self.socket.display()))?.connect().await?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1000.0
}

async fn inside(args: &Args) -> Result<()> {
    let mut report = Report::new();
    lvm(&["vgcreate", "-q", "-y", "bench", "/dev/ubda"])?;
    let config = "device-classes: [{name: ssd, volume-group: bench, default: true, spare-gb: 0}]";
    let served = Served::start(config).await?;
    let channel = served.connect().await?;
    creating(args, &channel, &mut report).await?;
    plant(args.volumes)?;
    listing(args, &channel, &mut report).await?;
    report.print();
    Ok(())
}

/// Makes volumes in turn by a call and by the bare program.
async fn creating(args: &Args, channel: &Channel, report: &mut Report) -> Result<()> {
    let mut volumes = LvServiceClient::new(channel.clone());
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for run in 0..args.runs {
        let name = format!("ours{run}");
        let request =
            CreateLvRequest { name: name.clone(), size_gb: 1, ..CreateLvRequest::default() };
        let start = Instant::now();
        volumes.create_lv(request).await?;
        ours.push(start.elapsed());
        volumes.remove_lv(RemoveLvRequest { name, ..RemoveLvRequest::default() }).await?;
        let name = format!("bare{run}");
        let start = Instant::now();
        lvm(&["lvcreate", "-n", &name, "-L", "1073741824b", "-W", "y", "-y", "bench"])?;
        bare.push(start.elapsed());
        lvm(&["lvremove", "-f", &format!("bench/{name}")])?;
    }
    let (ours, bare) = (median(ours), median(bare));
    report.row(
        "CreateLV, p50",
        format!("{ours:.0} ms"),
        format!("lvcreate {bare:.0} ms"),
        at_most(ours, bare, 1.15),
    );
    Ok(())
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
async fn listing(args: &Args, channel: &Channel, report: &mut Report) -> Result<()> {
    let mut groups = VgServiceClient::new(channel.clone());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let listed = groups.get_lv_list(GetLvListRequest::default()).await?.into_inner();
        if listed.volumes.len() == args.volumes {
            break;
        }
        ensure!(Instant::now() < deadline, "the planted volumes are not seen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = children()?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let start = Instant::now();
        groups.get_lv_list(GetLvListRequest::default()).await?;
        ours.push(start.elapsed());
    }
    let none = children()? == before;
    for _ in 0..args.runs {
        let start = Instant::now();
        lvm(&["lvs", "--reportformat", "json", "-o", "lv_name,lv_size,lv_tags", "bench"])?;
        bare.push(start.elapsed());
    }
    let (ours, bare) = (median(ours), median(bare));
    report.row(
        format!("GetLVList, {} volumes, p50", args.volumes),
        format!("{ours:.1} ms"),
        format!("lvs {bare:.0} ms"),
        at_least(bare, ours, 50.0),
    );
    let (count, verdict) = if none { ("none", "met") } else { ("some", "missed") };
    report.row("programs run for it", count, "lvs: 1 each", verdict);
    Ok(())
}

/// Something that differs as soon as a child process has ended.
fn children() -> Result<i64> {
    use nix::sys::resource::{UsageWho, getrusage};
    Ok(getrusage(UsageWho::RUSAGE_CHILDREN)?.minor_page_faults())
}

/// Tells many watchers of one change.
async fn watchers(args: &Args, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = format!(
        "backend: loop\nloop:\n  directory: {}\n  groups: [{{name: bench, size-gb: 64, preallocate: false}}]\n\
         device-classes: [{{name: ssd, volume-group: bench, default: true, spare-gb: 0}}]",
        folder.path().display()
    );
    let served = Served::start(&config).await?;
    let mut streams: Vec<Streaming<WatchResponse>> = Vec::new();
    while streams.len() < args.watchers {
        let mut groups = VgServiceClient::new(served.connect().await?);
        for _ in 0..PER_CONNECTION.min(args.watchers - streams.len()) {
            let mut stream = groups.watch(Empty {}).await?.into_inner();
            stream.message().await?.context("a first message")?;
            streams.push(stream);
        }
    }
    let mut volumes = LvServiceClient::new(served.connect().await?);
    let waiting: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                let told = stream.message().await?.context("a second message")?;
                ensure!(told.free_bytes == 63 * GIB, "not what was made");
                anyhow::Ok(Instant::now())
            })
        })
        .collect();
    let request = CreateLvRequest { name: "one".into(), size_gb: 1, ..CreateLvRequest::default() };
    volumes.create_lv(request).await?;
    let answered = Instant::now();
    let mut last = answered;
    for told in try_join_all(waiting).await? {
        last = last.max(told?);
    }
    let late = last.duration_since(answered).as_secs_f64() * 1000.0;
    report.row(
        format!("Watch, {} watchers", args.watchers),
        format!("all told {late:.0} ms after the answer"),
        "50 ms",
        of_goal(late, 50.0),
    );
    volumes.remove_lv(RemoveLvRequest { name: "one".into(), ..RemoveLvRequest::default() }).await?;
    Ok(())
}
