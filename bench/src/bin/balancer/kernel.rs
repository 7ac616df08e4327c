//! The way that clients from other machines take: past the balancer, by rules
//! of the kernel. A client and an instance are network namespaces; between
//! them is what the crm makes for a cluster.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
    process::Command,
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns};
use selvage_api::edgeproto::{
    CloudletKey, ClusterInst, ClusterInstKey, ClusterKey, Flavor, OperatorKey,
};
use selvage_bench::report::{Report, at_least, of_goal};
use selvage_crm::{
    FetchPolicy, Forwarding, ImageFolders, Platform, Registries,
    platform::{
        ClusterOrder, PortForward, Progress,
        containers::{self, Containers},
        network::{self, Range},
    },
};
use selvage_runtime::containerd;
use tokio::runtime::Runtime;

use crate::{Args, MESSAGE, Proxy, echo, flood, knock, middle, ping, swallow, target_at};

const CLIENT: &str = "slvbench-out";
const INSTANCE: &str = "slvbench-in";
const CABLES: [&str; 2] = ["slvbenchout", "slvbenchin"];
/// This machine as the client sees it.
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 250, 2);
const RANGE: &str = "10.199.0.0/16";
const INNER: Ipv4Addr = Ipv4Addr::new(10, 199, 1, 2);
/// The public port.
const PUBLIC: u16 = 7300;

/// A cluster, and the two on both sides of it.
struct Lab {
    tokio: Runtime,
    platform: Containers,
    cluster: ClusterInstKey,
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Lab {
    fn new() -> Result<Self> {
        let tokio = Runtime::new()?;
        let cloudlet = CloudletKey {
            operator_key: Some(OperatorKey { name: "bench".into() }),
            name: "kernel".into(),
        };
        let cluster = ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "bench".into() }),
            cloudlet_key: Some(cloudlet.clone()),
            developer: "bench".into(),
        };
        let platform = {
            let _inside = tokio.enter();
            Containers::open(&cloudlet, options()?)?
        };
        let lab = Self { tokio, platform, cluster };
        lab.build(&network::prefix(&cloudlet)?)?;
        Ok(lab)
    }

    fn build(&self, prefix: &str) -> Result<()> {
        let cluster = ClusterInst { key: Some(self.cluster.clone()), ..ClusterInst::default() };
        let order =
            ClusterOrder { cluster, flavor: Flavor::default(), progress: Progress::default() };
        let facts = self.platform.plan_cluster(&order, &[])?;
        self.tokio.block_on(self.platform.create_cluster(&order, &facts))?;
        let links = std::fs::read_dir("/sys/class/net")?.flatten();
        let mut links = links.map(|link| link.file_name().to_string_lossy().into_owned());
        let bridge = links.find(|link| link.starts_with(prefix)).context("no bridge")?;
        let [outer, inner] = CABLES;
        for (namespace, cable) in [(CLIENT, outer), (INSTANCE, inner)] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("link add {cable} type veth peer name eth0 netns {namespace}"))?;
            ip(&format!("link set {cable} up"))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
        }
        ip(&format!("addr add {NEAR}/30 dev {outer}"))?;
        ip(&format!("-n {CLIENT} addr add {FAR}/30 dev eth0"))?;
        ip(&format!("-n {CLIENT} route add default via {NEAR}"))?;
        ip(&format!("link set {inner} master {bridge}"))?;
        ip(&format!("-n {INSTANCE} addr add {INNER}/24 dev eth0"))?;
        ip(&format!("-n {INSTANCE} route add default via 10.199.1.1"))
    }

    /// Leads the public port to a port of the instance.
    fn forward(&self, port: u16) -> Result<()> {
        let forward = PortForward {
            udp: false,
            public: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PUBLIC),
            target: SocketAddrV4::new(INNER, port),
        };
        let forwarder = self.platform.forwarder().context("no forwarder")?;
        self.tokio.block_on(forwarder.set_forwards(BTreeMap::from([(forward, true)])));
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for cable in CABLES {
            let _ = ip(&format!("link del {cable}"));
        }
        for namespace in [CLIENT, INSTANCE] {
            let _ = ip(&format!("netns del {namespace}"));
        }
        let _ = self.tokio.block_on(self.platform.delete_cluster(&self.cluster));
    }
}

/// No container is run: nothing asks the runtime.
fn options() -> Result<containers::Options> {
    Ok(containers::Options {
        runtime: Arc::new(containerd::Containerd::new(containerd::Options::new("/nowhere"))),
        namespace: "bench".into(),
        range: Range::parse(RANGE)?,
        registries: Registries::default(),
        policy: FetchPolicy::default(),
        images: ImageFolders::default(),
        data: std::env::temp_dir(),
        lvmd: "/nowhere".into(),
        start_timeout: Duration::ZERO,
        forwarding: Forwarding::Kernel,
        egress: network::Egress::default(),
        users: selvage_runtime::Users::default(),
    })
}

/// Does something in a network namespace; threads that it starts are there too.
fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = File::open(Path::new("/run/netns").join(namespace))?;
    let worked = thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        });
        thread.join()
    });
    worked.map_err(|_| anyhow!("a thread broke"))?
}

/// The three paths from the client to the instance.
struct Paths {
    direct: SocketAddr,
    kernel: SocketAddr,
    proxy: Proxy,
}

impl Paths {
    fn new(lab: &Lab, port: u16) -> Result<Self> {
        lab.forward(port)?;
        let direct = SocketAddr::from((INNER, port));
        let proxy = Proxy::start(direct, None, IpAddr::V4(NEAR))?;
        Ok(Self { direct, kernel: SocketAddr::from((NEAR, PUBLIC)), proxy })
    }

    /// Measures all three in turn; the middle of each.
    fn measure(
        &self,
        rounds: usize,
        work: impl Fn(SocketAddr) -> Result<f64> + Sync,
    ) -> Result<[f64; 3]> {
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let places = [self.direct, self.kernel, self.proxy.address];
            for (place, figures) in places.into_iter().zip(&mut figures) {
                figures.push(inside(CLIENT, || work(place))?);
            }
        }
        let [direct, kernel, proxy] = figures;
        Ok([middle(direct)?, middle(kernel)?, middle(proxy)?])
    }
}

/// Measures it where that can be done.
pub(crate) fn run(args: &Args, report: &mut Report) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        report.row("by the kernel", "not measured", "needs root, ip and nft", "");
        return Ok(());
    }
    let lab = Lab::new()?;
    let time = Duration::from_secs(args.seconds);
    let serve = |work: fn(std::net::TcpStream, &AtomicU64)| {
        inside(INSTANCE, || target_at(Ipv4Addr::UNSPECIFIED, work))
    };
    let (address, count) = serve(swallow)?;
    let paths = Paths::new(&lab, address.port())?;
    for streams in [1, 4] {
        let [direct, kernel, proxy] =
            paths.measure(args.rounds, |to| flood(to, &count, streams, time))?;
        let compared = format!("{:.2} GB/s without it", direct / 1e9);
        let what = format!("from another machine by the kernel, {streams} connections");
        let measured = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
        report.row(what, measured(kernel), &compared, at_least(kernel, direct, 0.8));
        let ratio = format!("{:.2}x", proxy / direct);
        report.row("  by the proxy", measured(proxy), compared, ratio);
    }
    drop(paths);
    let (address, _) = serve(echo)?;
    let paths = Paths::new(&lab, address.port())?;
    let [direct, kernel, proxy] = paths.measure(args.rounds, |to| ping(to, time))?;
    let compared = format!("{direct:.0} us without it, goal 60 us");
    let what = format!("  p50 added to a ping-pong of {MESSAGE} bytes");
    let measured = |added: f64| format!("{added:.1} us");
    report.row(what, measured(kernel - direct), &compared, of_goal(kernel - direct, 60.0));
    let added = proxy - direct;
    report.row("  p50 added by the proxy", measured(added), compared, of_goal(added, 60.0));
    let [direct, kernel, proxy] = paths.measure(args.rounds, |to| knock(to, time))?;
    let compared = format!("{direct:.0}/s without it");
    for (what, rate) in [("by the kernel", kernel), ("by the proxy", proxy)] {
        let ratio = format!("{:.2}x", rate / direct);
        let what = format!("  connections with one message each, {what}");
        report.row(what, format!("{rate:.0}/s"), &compared, ratio);
    }
    Ok(())
}
