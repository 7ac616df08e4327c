//! Costs of a backup, beside stock restic on the same data and the same
//! object store: CPU, time, what is stored; an increment of 1 %, nothing at
//! all, and the way back. And how much memory an empty terabyte takes.

use std::{
    fs::{self, File},
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use selvage_bench::cost::cpu_of_children;
use selvage_bench::report::{Report, at_least, at_most, of_goal};
use selvage_restic::{
    BackupOptions, BlockSource, FileSink, FileSource, Id, Job, Parent, Repository,
    RepositoryOptions, RestoreOptions, S3, Secret, Selector, SnapshotFilter, StoreOptions,
};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
const BUCKET: &str = "bench";
const KEY: &str = "bench";
const PASSWORD: &str = "not a secret";

/// Measures backups; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    work: Option<Work>,
    /// Folder to work in; default is the one for temporary files
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Folder of the data on the disk
    #[arg(long, default_value = "/usr")]
    data: PathBuf,
    /// MiB of data on the disk
    #[arg(long, default_value_t = 450)]
    filled: u64,
    /// MiB of the disk for the full backup
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// MiB of the disk for the increment
    #[arg(long, default_value_t = 10 * 1024)]
    increment: u64,
    /// Number of runs of the full backup and the restore; the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The rclone that serves as object store
    #[arg(long, env = "SELVAGE_RCLONE", default_value = "rclone")]
    rclone: PathBuf,
}

/// Work of a child process, so that it can be measured from outside.
#[derive(Debug, Subcommand)]
enum Work {
    /// Backs up
    #[command(hide = true)]
    Backup {
        endpoint: String,
        prefix: String,
        disk: PathBuf,
        /// Offsets of changed blocks since the latest snapshot
        changed: Option<PathBuf>,
        /// Changes in it will be told by the block
        #[arg(long)]
        mapped: bool,
    },
    /// Restores the latest
    #[command(hide = true)]
    Restore { endpoint: String, prefix: String, to: PathBuf },
    /// Backs up an empty terabyte
    #[command(hide = true)]
    Empty { endpoint: String, prefix: String },
    /// Restores it
    #[command(hide = true)]
    EmptyBack { endpoint: String, prefix: String },
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.work {
        Some(work) => tokio::runtime::Runtime::new()?.block_on(child(work)),
        None => measure(&args),
    }
}

async fn open(endpoint: &str, prefix: &str) -> Result<Repository> {
    let mut options = StoreOptions::new(endpoint, format!("{BUCKET}/{prefix}").parse()?);
    options.access_key = KEY.to_owned();
    options.secret_key = Secret::new(KEY);
    let backend = Arc::new(S3::new(options)?);
    let options = RepositoryOptions::default();
    Ok(Repository::open_or_init(backend, &Secret::new(PASSWORD), options).await?)
}

#[allow(clippy::print_stdout, reason = "the parent reads it")]
async fn child(work: Work) -> Result<()> {
    let job = Job::new();
    match work {
        Work::Backup { endpoint, prefix, disk, changed, mapped } => {
            let repository = open(&endpoint, &prefix).await?;
            let (volume, without_map) = ("disk".to_owned(), !mapped);
            let mut options = BackupOptions { volume, without_map, ..BackupOptions::default() };
            if let Some(changed) = changed {
                let latest = repository
                    .select(&Selector::Id("latest".into()), SnapshotFilter::default())
                    .await?;
                let text = fs::read_to_string(changed)?;
                let ranges = text.lines().map(|line| line.parse().map(|at: u64| at..at + BLOCK));
                let changed = Some(ranges.collect::<Result<Vec<_>, _>>()?);
                options.parent = Some(Parent { snapshot: latest.id, changed });
            }
            repository.backup(Arc::new(FileSource::open(disk)?), options, &job).await?;
        }
        Work::Restore { endpoint, prefix, to } => {
            let repository = open(&endpoint, &prefix).await?;
            let latest = repository
                .select(&Selector::Id("latest".into()), SnapshotFilter::default())
                .await?;
            let sink = FileSink::create(to, latest.size().context("not ours")?)?;
            repository.restore(&latest, Arc::new(sink), &RestoreOptions::default(), &job).await?;
        }
        Work::Empty { endpoint, prefix } => {
            let repository = open(&endpoint, &prefix).await?;
            let options = BackupOptions { volume: "big".into(), ..BackupOptions::default() };
            repository.backup(Arc::new(Empty), options, &job).await?;
        }
        Work::EmptyBack { endpoint, prefix } => {
            let repository = open(&endpoint, &prefix).await?;
            let latest = repository
                .select(&Selector::Id("latest".into()), SnapshotFilter::default())
                .await?;
            let sink = Arc::new(Nowhere);
            repository.restore(&latest, sink, &RestoreOptions::default(), &job).await?;
        }
    }
    println!("{} {}", peak_memory()?, job.progress().read);
    Ok(())
}

/// The most this process ever had in memory, in bytes.
fn peak_memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
}

/// A terabyte with a little in every GiB.
struct Empty;

const TIB: u64 = 1 << 40;

impl BlockSource for Empty {
    fn size(&self) -> u64 {
        TIB
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let mut state = offset | 1;
        for word in buffer.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        Ok(())
    }

    fn allocated(&self) -> std::io::Result<Option<Vec<std::ops::Range<u64>>>> {
        Ok(Some((0..1024).map(|number| number << 30..(number << 30) + 1).collect()))
    }
}

/// Takes everything and keeps nothing.
struct Nowhere;

impl selvage_restic::BlockSink for Nowhere {
    fn size(&self) -> u64 {
        TIB
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn zero_at(&self, _offset: u64, _length: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn finish(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An object store for the time of the benchmark.
struct Store {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Store {
    fn start(rclone: &Path, folder: &Path) -> Result<Self> {
        let folder = folder.join("store");
        fs::create_dir_all(folder.join(BUCKET))?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Command::new(rclone)
            .args(["--config", "/dev/null", "serve", "s3"])
            .arg(&folder)
            .args(["--addr", &address.to_string(), "--auth-key", &format!("{KEY},{KEY}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting rclone")?;
        let store = Self { process, address, folder };
        for _ in 0..300 {
            if TcpStream::connect(address).is_ok() {
                return Ok(store);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("rclone did not become ready within 30 s")
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn stored(&self, prefix: &str) -> Result<u64> {
        let mut bytes = 0;
        let mut folders = vec![self.folder.join(BUCKET).join(prefix)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else {
                    bytes += metadata.len();
                }
            }
        }
        Ok(bytes)
    }
}

/// Cost of a run.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
    memory: u64,
    read: u64,
}

fn children_cpu() -> Result<f64> {
    Ok(cpu_of_children()?.as_secs_f64())
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<Cost> {
    let (begun, before) = (Instant::now(), children_cpu()?);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed");
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), children_cpu()? - before);
    let text = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(64)]).into_owned();
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let (memory, read) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(Cost { wall, cpu, memory, read })
}

fn ours(arguments: &[&str]) -> Result<Cost> {
    run(Command::new(std::env::current_exe()?).args(arguments))
}

fn restic(store: &Store, prefix: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("restic");
    command
        .args(["--no-cache", "--quiet", "--repo"])
        .arg(format!("s3:{}/{BUCKET}/{prefix}", store.endpoint()))
        .args(arguments)
        .env("RESTIC_PASSWORD", PASSWORD)
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", KEY);
    command
}

fn restic_backup(store: &Store, prefix: &str, disk: &Path) -> Result<Cost> {
    let mut command = restic(store, prefix, &["backup", "--stdin", "--stdin-filename", "disk"]);
    run(command.stdin(File::open(disk)?))
}

fn median(mut costs: Vec<Cost>) -> Result<Cost> {
    costs.sort_by(|one, other| one.cpu.total_cmp(&other.cpu));
    costs.get(costs.len() / 2).copied().context("nothing was measured")
}

/// Files of this machine, one behind the other, with holes between them.
fn make_disk(args: &Args, path: &Path, size: u64) -> Result<()> {
    let disk = File::create(path)?;
    disk.set_len(size * MIB)?;
    let (mut at, mut filled) = (0, 0);
    let hole = (size - args.filled.min(size)) * MIB / 8;
    let mut folders = vec![args.data.clone()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for path in entries {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && metadata.len() < 32 * MIB {
                let mut content = Vec::new();
                File::open(&path).and_then(|mut file| file.read_to_end(&mut content))?;
                let room = (args.filled * MIB).saturating_sub(filled).min(size * MIB - at);
                content.truncate(room as usize);
                disk.write_all_at(&content, at)?;
                let before = filled * 8 / (args.filled * MIB);
                filled += content.len() as u64;
                at = (at + content.len() as u64).next_multiple_of(4096);
                at += hole * (filled * 8 / (args.filled * MIB) - before);
                if filled >= args.filled * MIB || at >= size * MIB {
                    return Ok(());
                }
            }
        }
    }
    bail!("there is not enough in {}", args.data.display())
}

/// Writes over one block in a hundred and says which.
fn change(disk: &Path, size: u64, list: &Path) -> Result<u64> {
    let file = File::options().read(true).write(true).open(disk)?;
    let blocks = size * MIB / BLOCK;
    let mut offsets: Vec<u64> = (0..blocks / 100).map(|n| (n * 7919 % blocks) * BLOCK).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let mut donor = vec![0; BLOCK as usize];
    for (number, offset) in offsets.iter().enumerate() {
        // Something a disk would hold, and in no two places the same.
        file.read_exact_at(&mut donor, number as u64 * BLOCK % (16 * MIB))?;
        donor[..8].copy_from_slice(&offset.to_le_bytes());
        file.write_all_at(&donor, *offset)?;
    }
    let lines: String = offsets.iter().map(|offset| format!("{offset}\n")).collect();
    fs::write(list, lines)?;
    Ok(offsets.len() as u64 * BLOCK)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

fn seconds(cost: Cost) -> String {
    format!("{:.2} s, {:.2} s CPU", cost.wall, cost.cpu)
}

fn measure(args: &Args) -> Result<()> {
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(base).context("making a folder to work in")?;
    let store = Store::start(&args.rclone, folder.path())?;
    let mut report = Report::new();
    full(args, &store, folder.path(), &mut report)?;
    increment(args, &store, folder.path(), &mut report)?;
    memory(&store, &mut report)?;
    report.print();
    Ok(())
}

/// The same disk with both, turn by turn.
fn full(args: &Args, store: &Store, folder: &Path, report: &mut Report) -> Result<()> {
    let disk = folder.join("disk");
    make_disk(args, &disk, args.size)?;
    let (endpoint, path) = (store.endpoint(), disk.to_string_lossy().into_owned());
    let (mut we, mut they, mut we_back, mut they_back) = (vec![], vec![], vec![], vec![]);
    let mut last = (String::new(), String::new());
    for number in 0..args.runs.max(1) {
        let (mine, theirs) = (format!("ours{number}"), format!("restic{number}"));
        run(&mut restic(store, &theirs, &["init"]))?;
        they.push(restic_backup(store, &theirs, &disk)?);
        we.push(ours(&["backup", &endpoint, &mine, &path])?);
        let back = folder.join("back");
        we_back.push(ours(&["restore", &endpoint, &mine, &back.to_string_lossy()])?);
        compare(&disk, &back)?;
        fs::remove_file(&back)?;
        let mut dump = restic(store, &theirs, &["dump", "latest", "disk"]);
        they_back.push(run_to_file(&mut dump, &back)?);
        fs::remove_file(&back)?;
        last = (mine, theirs);
    }
    let (we, they) = (median(we)?, median(they)?);
    let what = format!("full backup, {} MiB with {} of data", args.size, args.filled);
    report.row(format!("{what}: CPU"), seconds(we), seconds(they), at_most(we.cpu, they.cpu, 0.35));
    report.row("  time", seconds(we), seconds(they), at_least(they.wall, we.wall, 2.5));
    let (mine, theirs) = (store.stored(&last.0)?, store.stored(&last.1)?);
    let ratio = at_most(mine as f64, theirs as f64, 1.05);
    report.row("  stored", megabytes(mine), megabytes(theirs), ratio);
    ours(&["backup", "--mapped", &endpoint, "mapped", &path])?;
    let mine = store.stored("mapped")?;
    let ratio = at_most(mine as f64, theirs as f64, 1.05);
    let what = "  stored, chunks of 64 KiB for changes by the block";
    report.row(what, megabytes(mine), megabytes(theirs), ratio);
    let (we, they) = (median(we_back)?, median(they_back)?);
    report.row("restore", seconds(we), seconds(they), at_least(they.wall, we.wall, 2.5));
    check(store, &last.0)
}

/// Stock restic is content with what we wrote.
fn check(store: &Store, prefix: &str) -> Result<()> {
    run(&mut restic(store, prefix, &["check"])).map(|_| ())
}

fn run_to_file(command: &mut Command, to: &Path) -> Result<Cost> {
    let (begun, before) = (Instant::now(), children_cpu()?);
    let file = File::create(to)?;
    ensure!(command.stdout(file.try_clone()?).status()?.success(), "{command:?} failed");
    file.sync_all()?;
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), children_cpu()? - before);
    Ok(Cost { wall, cpu, memory: 0, read: 0 })
}

fn compare(one: &Path, other: &Path) -> Result<()> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    let size = one.metadata()?.len();
    ensure!(other.metadata()?.len() == size, "the restored disk has another size");
    let (mut a, mut b) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    for at in (0..size).step_by(MIB as usize) {
        one.read_exact_at(&mut a, at)?;
        other.read_exact_at(&mut b, at)?;
        ensure!(Id::of(&a) == Id::of(&b), "the restored disk differs at {at}");
    }
    Ok(())
}

fn increment(args: &Args, store: &Store, folder: &Path, report: &mut Report) -> Result<()> {
    let (disk, list) = (folder.join("grown"), folder.join("changed"));
    make_disk(args, &disk, args.increment)?;
    let endpoint = store.endpoint();
    let path = disk.to_string_lossy().into_owned();
    let list_path = list.to_string_lossy().into_owned();
    run(&mut restic(store, "restic-grown", &["init"]))?;
    restic_backup(store, "restic-grown", &disk)?;
    ours(&["backup", "--mapped", &endpoint, "ours-grown", &path])?;
    let changed = change(&disk, args.increment, &list)?;
    let before = (store.stored("ours-grown")?, store.stored("restic-grown")?);
    let they = restic_backup(store, "restic-grown", &disk)?;
    let we = ours(&["backup", &endpoint, "ours-grown", &path, &list_path])?;
    let stored = (store.stored("ours-grown")? - before.0, store.stored("restic-grown")? - before.1);
    let what = format!("1 % of {} MiB changed", args.increment);
    report.row(what, seconds(we), seconds(they), at_least(they.wall, we.wall, 30.0));
    let compared = format!("{} changed", megabytes(changed));
    let ratio = at_most(we.read as f64, changed as f64, 1.1);
    report.row("  read", megabytes(we.read), &compared, ratio);
    let ratio = at_most(stored.0 as f64, changed as f64, 1.5);
    let theirs = format!("{compared}, restic {}", megabytes(stored.1));
    report.row("  stored", megabytes(stored.0), theirs, ratio);
    fs::write(&list, "")?;
    let nothing = ours(&["backup", &endpoint, "ours-grown", &path, &list_path])?;
    report.row("nothing changed", seconds(nothing), "0.5 s", of_goal(nothing.wall, 0.5));
    check(store, "ours-grown")
}

fn memory(store: &Store, report: &mut Report) -> Result<()> {
    let endpoint = store.endpoint();
    let goal = 128 * MIB;
    for (what, work) in [("backup", "empty"), ("restore", "empty-back")] {
        let cost = ours(&[work, &endpoint, "empty"])?;
        let ratio = of_goal(cost.memory as f64, goal as f64);
        let what = format!("memory, {what} of 1 TiB with 1 GiB in it");
        report.row(what, megabytes(cost.memory), megabytes(goal), ratio);
    }
    Ok(())
}
