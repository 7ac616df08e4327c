//! Cost of the load balancer for a bare connection: everything is measured once
//! straight over loopback and once through it, in turn.
//!
//! The balancer is a process of its own; the clients and the target are
//! threads of this one that do nothing but read and write. All of them share
//! the machine's cores, so that whatever a proxy needs is taken from those
//! who send and receive.
//!
//! Then the same from another machine, past the proxy by rules of the kernel.

mod kernel;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use selvage_balancer::{Balancer, Limits, Options, Port, Service};
use selvage_bench::{
    cost::Memory,
    report::{Report, at_least, of_goal},
};
use tokio::io::copy_bidirectional_with_sizes;

/// Address of everything that needs no network.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Pieces in which bulk is sent and received.
const PIECE: usize = 256 * 1024;

/// A message of the ping-pong.
const MESSAGE: usize = 64;

/// Measures the load balancer; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    work: Option<Work>,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of times that both paths are measured in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Connections that stand idle
    #[arg(long, default_value_t = 4000)]
    idle: usize,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Serves until its input ends
    #[command(hide = true)]
    Serve {
        target: SocketAddr,
        /// Address to listen on
        #[arg(long)]
        address: IpAddr,
        /// Instead of the balancer: copies in pieces of this size
        #[arg(long)]
        copy: Option<usize>,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Work::Serve { target, address, copy }) = args.work {
        return serve(target, address, copy);
    }
    let mut report = Report::new();
    throughput(&args, &mut report)?;
    latency(&args, &mut report)?;
    connecting(&args, &mut report)?;
    idle(&args, &mut report)?;
    kernel::run(&args, &mut report)?;
    report.print();
    Ok(())
}

#[tokio::main]
async fn serve(target: SocketAddr, address: IpAddr, copy: Option<usize>) -> Result<()> {
    let address = match copy {
        Some(size) => copying(target, address, size).await?,
        None => balancing(target, address).await?,
    };
    announce(address)?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    std::process::exit(0);
}

#[allow(clippy::print_stdout, reason = "this is how the address gets out")]
fn announce(address: SocketAddr) -> Result<()> {
    println!("{address}");
    Ok(std::io::stdout().flush()?)
}

async fn balancing(target: SocketAddr, address: IpAddr) -> Result<SocketAddr> {
    let limits = Limits { connections: 1_000_000, ..Limits::default() };
    let balancer =
        Balancer::new(Options { addresses: vec![address], limits, ..Options::default() });
    // Whoever else is on this machine has some of them.
    for public in 7100..7200 {
        let ports = vec![Port { public, targets: vec![target], ..Port::default() }];
        if balancer.publish(Service { id: "bench".into(), ports }).await.is_ok() {
            // The process ends with it.
            std::mem::forget(balancer);
            return Ok(SocketAddr::new(address, public));
        }
    }
    Err(anyhow!("no free port"))
}

/// The plainest proxy there is, to compare with.
async fn copying(target: SocketAddr, address: IpAddr, size: usize) -> Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind((address, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut target = tokio::net::TcpStream::connect(target).await?;
                client.set_nodelay(true)?;
                target.set_nodelay(true)?;
                copy_bidirectional_with_sizes(&mut client, &mut target, size, size).await
            });
        }
    });
    Ok(address)
}

/// A proxy in a process of its own.
struct Proxy {
    process: Child,
    address: SocketAddr,
}

impl Proxy {
    fn start(target: SocketAddr, copy: Option<usize>, address: IpAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(target.to_string()).args(["--address", &address.to_string()]);
        if let Some(size) = copy {
            command.args(["--copy", &size.to_string()]);
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line.trim().parse().with_context(|| format!("it said {line:?}"))?;
        Ok(Self { process, address })
    }
}

impl Proxy {
    /// CPU time of all its threads so far.
    fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += text.split(' ').next().context("no figure")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn target(serve: fn(TcpStream, &AtomicU64)) -> Result<(SocketAddr, Arc<AtomicU64>)> {
    target_at(Ipv4Addr::LOCALHOST, serve)
}

/// A target: each connection gets a thread.
fn target_at(
    address: Ipv4Addr,
    serve: fn(TcpStream, &AtomicU64),
) -> Result<(SocketAddr, Arc<AtomicU64>)> {
    let listener = TcpListener::bind((address, 0))?;
    let address = listener.local_addr()?;
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = counted.clone();
            let _ =
                thread::Builder::new().stack_size(64 * 1024).spawn(move || serve(stream, &count));
        }
    });
    Ok((address, count))
}

fn swallow(mut stream: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; PIECE];
    while let Ok(some @ 1..) = stream.read(&mut buffer) {
        count.fetch_add(some as u64, Relaxed);
    }
}

fn echo(mut stream: TcpStream, _: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; MESSAGE];
    while let Ok(some @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..some]).is_err() {
            break;
        }
    }
}

/// Threads that do something until told to stop.
struct Crowd {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Crowd {
    fn new(size: usize, work: impl Fn(&AtomicBool) -> Result<()> + Clone + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (stop, work) = (stop.clone(), work.clone());
            thread::spawn(move || work(&stop))
        };
        let threads = (0..size).map(start).collect();
        Self { stop, threads }
    }

    fn end(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow!("a thread broke"))??;
        }
        Ok(())
    }
}

/// Increase of a count in a second.
fn rate(count: &AtomicU64, time: Duration) -> f64 {
    // Once all are under way.
    thread::sleep(Duration::from_millis(300));
    let (before, start) = (count.load(Relaxed), Instant::now());
    thread::sleep(time);
    (count.load(Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
}

fn middle(mut figures: Vec<f64>) -> Result<f64> {
    ensure!(!figures.is_empty(), "nothing was measured");
    figures.sort_by(f64::total_cmp);
    Ok(figures[figures.len() / 2])
}

/// Bytes in a second over so many connections.
fn flood(to: SocketAddr, count: &AtomicU64, streams: usize, time: Duration) -> Result<f64> {
    let crowd = Crowd::new(streams, move |stop| {
        let mut stream = TcpStream::connect(to)?;
        let piece = vec![7; PIECE];
        while !stop.load(Relaxed) {
            stream.write_all(&piece)?;
        }
        Ok(stream.shutdown(Shutdown::Write)?)
    });
    let rate = rate(count, time);
    crowd.end()?;
    Ok(rate)
}

/// Measurements of a path: bytes in a second, and what a gigabyte costs.
#[derive(Default)]
struct Measured {
    rates: Vec<f64>,
    costs: Vec<f64>,
}

fn throughput(args: &Args, report: &mut Report) -> Result<()> {
    let (address, count) = target(swallow)?;
    let time = Duration::from_secs(args.seconds);
    let kinds =
        [("", None), ("copies by 64 KiB", Some(64 << 10)), ("copies by 1 MiB", Some(1 << 20))];
    for streams in [1, 4] {
        let start = |(_, copy)| Proxy::start(address, copy, HERE);
        let proxies = kinds.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let mut direct = Vec::new();
        let mut measured: Vec<Measured> = proxies.iter().map(|_| Measured::default()).collect();
        for _ in 0..args.rounds {
            direct.push(flood(address, &count, streams, time)?);
            for (proxy, path) in proxies.iter().zip(&mut measured) {
                let (bytes, cpu) = (count.load(Relaxed), proxy.cpu()?);
                path.rates.push(flood(proxy.address, &count, streams, time)?);
                let gigabytes = (count.load(Relaxed) - bytes) as f64 / 1e9;
                path.costs.push((proxy.cpu()? - cpu).as_secs_f64() * 1e3 / gigabytes);
            }
        }
        let direct = middle(direct)?;
        for ((what, _), path) in kinds.iter().zip(measured) {
            let (rate, cost) = (middle(path.rates)?, middle(path.costs)?);
            let name = match what {
                &"" => format!("throughput, {streams} connections"),
                what => format!("  a proxy that {what}"),
            };
            let verdict = match what {
                &"" => at_least(rate, direct, 0.8),
                _ => format!("{:.2}x", rate / direct).into(),
            };
            let measured = format!("{:.2} GB/s, {cost:.0} ms CPU/GB", rate / 1e9);
            report.row(name, measured, format!("{:.2} GB/s direct", direct / 1e9), verdict);
        }
    }
    Ok(())
}

/// The middle one of many round trips.
fn ping(to: SocketAddr, time: Duration) -> Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; MESSAGE];
    let mut figures = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let begin = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        figures.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    middle(figures)
}

fn latency(args: &Args, report: &mut Report) -> Result<()> {
    let (address, _) = target(echo)?;
    let proxy = Proxy::start(address, None, HERE)?;
    let time = Duration::from_secs(args.seconds);
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        direct.push(ping(address, time)?);
        through.push(ping(proxy.address, time)?);
    }
    let (direct, through) = (middle(direct)?, middle(through)?);
    report.row(
        "p50 that is added to a ping-pong of 64 bytes",
        format!("{:.0} us", through - direct),
        format!("{direct:.0} us direct, goal 60 us"),
        of_goal(through - direct, 60.0),
    );
    Ok(())
}

/// Connections in a second, each with one message and its answer.
fn knock(to: SocketAddr, time: Duration) -> Result<f64> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let crowd = Crowd::new(4, move |stop| {
        while !stop.load(Relaxed) {
            let mut stream = TcpStream::connect(to)?;
            stream.write_all(&[1; MESSAGE])?;
            stream.read_exact(&mut [0; MESSAGE])?;
            // Nothing lingers, or there are soon no ports left.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            counted.fetch_add(1, Relaxed);
        }
        Ok(())
    });
    let rate = rate(&count, time);
    crowd.end()?;
    Ok(rate)
}

fn connecting(args: &Args, report: &mut Report) -> Result<()> {
    let (address, _) = target(echo)?;
    let proxy = Proxy::start(address, None, HERE)?;
    let time = Duration::from_secs(args.seconds);
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        direct.push(knock(address, time)?);
        through.push(knock(proxy.address, time)?);
    }
    let (direct, through) = (middle(direct)?, middle(through)?);
    report.row(
        "connections with one message each",
        format!("{through:.0}/s"),
        format!("{direct:.0}/s direct"),
        format!("{:.2}x", through / direct),
    );
    Ok(())
}

fn idle(args: &Args, report: &mut Report) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let proxy = Proxy::start(listener.local_addr()?, None, HERE)?;
    let pid = proxy.process.id();
    let before = Memory::of(pid)?.resident;
    let mut held = Vec::new();
    for _ in 0..args.idle {
        let mut client = TcpStream::connect(proxy.address)?;
        client.write_all(&[1; MESSAGE])?;
        // Checks of health come this way too, and leave without a word.
        let target = loop {
            let (mut target, _) = listener.accept()?;
            if target.read_exact(&mut [0; MESSAGE]).is_ok() {
                break target;
            }
        };
        held.push((client, target));
    }
    let each = (Memory::of(pid)?.resident - before) as f64 / held.len() as f64;
    report.row(
        format!("memory of an idle connection ({} open)", held.len()),
        format!("{:.1} KB", each / 1e3),
        format!("{:.1} MB in all", Memory::of(pid)?.resident as f64 / 1e6),
        "",
    );
    Ok(())
}
