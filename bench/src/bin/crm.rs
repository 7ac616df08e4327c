//! Time from asking for an instance until it takes connections,
//! through a controller and the crm of a cloudlet, against `runc run` of the
//! same image; how long a command in the instance takes to its first byte, and
//! how fast it can write, against `runc exec`.
//!
//! Both sides start the same web server and both count until it takes a
//! connection. What a commit of the controller's store costs is measured by
//! calls that do nothing else.

use std::{
    io::Read,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use selvage_api::edgeproto::{
    self as wire, app_api_client::AppApiClient, app_inst_api_client::AppInstApiClient,
    cloudlet_api_client::CloudletApiClient, cluster_inst_api_client::ClusterInstApiClient,
    developer_api_client::DeveloperApiClient, exec_api_client::ExecApiClient,
    flavor_api_client::FlavorApiClient, operator_api_client::OperatorApiClient,
};
use selvage_bench::{
    edge::{self, House},
    report::{Report, at_most, of_goal},
};
use selvage_crm::{Crm, Forwarding, ImageFolders, Settings, Site};
use selvage_kit::tasks::Tasks;
use selvage_notify::ClientOptions;
use selvage_runtime::{ImageBuilder, Runtime, Users, oci};
use selvage_shell::{
    Conversation, Frame,
    peer::{Offer, Options},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const PORT: u16 = 8080;
/// Interval at which to ask whether a server takes connections.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A command that says two bytes.
const ECHO: [&str; 3] = ["/bin/busybox", "echo", "x"];
/// A command that writes [`MUCH`].
const ZEROES: [&str; 6] =
    ["/bin/busybox", "dd", "if=/dev/zero", "bs=64k", "count=1024", "status=none"];
const MUCH: usize = 64 << 20;
/// Number of times that is done on each path.
const STREAMS: usize = 3;
/// Goal for the first byte of a command, in seconds.
const FIRST_BYTE: f64 = 0.3;

/// Measures a cloudlet; prints figures with ratios. Needs root, runc and
/// busybox.
#[derive(Debug, Parser)]
struct Args {
    /// Number of times each path is taken, in turn
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(nix::unistd::geteuid().is_root(), "containers need root");
    let folder = tempfile::tempdir()?;
    let bare = Bare::prepare(&folder.path().join("bare"))?;
    let site = Cloud::start(folder.path()).await?;
    let (mut runc, mut ours, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds {
        runc.push(bare.run(round)?);
        ours.push(site.create().await?);
        site.delete().await?;
        commits.push(site.commit(round).await?);
    }
    let (first, much) = exec(&bare, &site, args.rounds).await?;
    site.close().await?;
    let (runc, ours, commit) = (median(runc), median(ours), median(commits));
    let mut report = Report::new();
    let shown = |time: f64| format!("{:.1} ms", time * 1e3);
    report.row("a commit of the store by gRPC", shown(commit), "", "");
    report.row(
        "AppInst from the call to READY, image here, less a commit",
        shown(ours - commit),
        format!("runc run, until it takes connections: {}", shown(runc)),
        at_most(ours - commit, runc, 1.3),
    );
    for (way, took) in first.ours() {
        report.row(
            format!("first byte of a command in it, {way}"),
            shown(took),
            format!("runc exec: {}", shown(first.alone)),
            of_goal(took, FIRST_BYTE),
        );
        report.row("", "", "", format!("{:.2}x runc exec", took / first.alone));
    }
    let speed = |took: f64| format!("{:.0} MB/s", MUCH as f64 / took / 1e6);
    for (way, took) in much.ours() {
        report.row(
            format!("64 MiB out of a command in it, {way}"),
            speed(took),
            format!("runc exec into a pipe: {}", speed(much.alone)),
            format!("{:.3}x", much.alone / took),
        );
    }
    report.print();
    Ok(())
}

/// Seconds with runc alone, by the direct way, and by the other.
struct Paths {
    alone: f64,
    direct: f64,
    relayed: f64,
}

impl Paths {
    fn ours(&self) -> [(&'static str, f64); 2] {
        [("directly", self.direct), ("through the controller", self.relayed)]
    }
}

/// Time of commands to their first byte, and to write much.
async fn exec(bare: &Bare, site: &Cloud, rounds: usize) -> Result<(Paths, Paths)> {
    let id = bare.start()?;
    site.create().await?;
    let first = by_all_paths(bare, site, &id, rounds, &ECHO, 1).await?;
    let much = by_all_paths(bare, site, &id, STREAMS, &ZEROES, MUCH).await?;
    site.delete().await?;
    Bare::stop(&id)?;
    Ok((first, much))
}

/// Time until a command has written so many bytes.
async fn by_all_paths(
    bare: &Bare,
    site: &Cloud,
    id: &str,
    rounds: usize,
    words: &[&str],
    bytes: usize,
) -> Result<Paths> {
    let (mut alone, mut direct, mut relayed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.push(bare.reads(id, words, bytes)?);
        direct.push(site.reads(true, words, bytes).await?);
        relayed.push(site.reads(false, words, bytes).await?);
    }
    let [alone, direct, relayed] = [alone, direct, relayed].map(median);
    Ok(Paths { alone, direct, relayed })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn busybox() -> Result<Vec<u8>> {
    std::fs::read("/bin/busybox").context("busybox is not installed")
}

/// runc with a bundle, and nothing around it.
struct Bare {
    bundle: PathBuf,
    port: u16,
}

impl Bare {
    fn prepare(bundle: &Path) -> Result<Self> {
        let root = bundle.join("rootfs");
        for folder in ["bin", "www", "proc", "sys", "dev", "tmp"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let program = root.join("bin/busybox");
        std::fs::write(&program, busybox()?)?;
        std::os::unix::fs::symlink("busybox", root.join("bin/httpd"))?;
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let made = Command::new("runc").arg("spec").current_dir(bundle).status();
        ensure!(made.context("runc is not installed")?.success(), "runc spec failed");
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let file = bundle.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        let words = ["/bin/httpd", "-f", "-p", &port.to_string(), "-h", "/www"];
        config["process"]["args"] = serde_json::json!(words);
        config["process"]["terminal"] = false.into();
        let namespaces = config["linux"]["namespaces"].as_array_mut().context("no namespaces")?;
        // That of the host: the container can be reached at once.
        namespaces.retain(|namespace| namespace["type"] != "network");
        std::fs::write(&file, config.to_string())?;
        Ok(Self { bundle: bundle.to_owned(), port })
    }

    fn run(&self, round: usize) -> Result<Duration> {
        let id = format!("selvage-bench-{}-{round}", std::process::id());
        let start = Instant::now();
        let ran = Command::new("runc")
            .args(["run", "-d", "--bundle"])
            .arg(&self.bundle)
            .arg(&id)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        let answers = ran.success() && until_it_answers(([127, 0, 0, 1], self.port).into());
        let took = start.elapsed();
        Command::new("runc").args(["delete", "-f", &id]).status()?;
        ensure!(answers, "runc run did not start the server");
        Ok(took)
    }
}

impl Bare {
    /// A container to run commands in.
    fn start(&self) -> Result<String> {
        let id = format!("selvage-bench-{}", std::process::id());
        let mut run = Command::new("runc");
        run.args(["run", "-d", "--bundle"]).arg(&self.bundle).arg(&id);
        let ran = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(ran.success(), "runc run failed");
        Ok(id)
    }

    fn reads(&self, id: &str, words: &[&str], bytes: usize) -> Result<Duration> {
        let start = Instant::now();
        let mut run = Command::new("runc");
        run.args(["exec", id]).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = run.spawn()?;
        let out = child.stdout.as_mut().context("no pipe")?;
        let (mut buffer, mut read) = (vec![0; 64 * 1024], 0);
        while read < bytes {
            let more = out.read(&mut buffer)?;
            ensure!(more > 0, "runc exec wrote {read} bytes of {bytes}");
            read += more;
        }
        let took = start.elapsed();
        child.wait()?;
        Ok(took)
    }

    fn stop(id: &str) -> Result<()> {
        Command::new("runc").args(["delete", "-f", id]).status()?;
        Ok(())
    }
}

fn until_it_answers(place: SocketAddr) -> bool {
    let until = Instant::now() + START_TIMEOUT;
    while Instant::now() < until {
        if TcpStream::connect(place).is_ok() {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// A controller and the crm of a cloudlet, with an app and a cluster.
struct Cloud {
    house: House,
    tasks: Tasks,
    channel: Channel,
    instance: wire::AppInst,
    cluster: wire::ClusterInst,
}

impl Cloud {
    async fn start(folder: &Path) -> Result<Self> {
        let house = House::open(&folder.join("store")).await?;
        let mut channels = house.channels(1).await?;
        let channel = channels.pop().context("no connection")?;
        let key = wire::CloudletKey {
            operator_key: Some(wire::OperatorKey { name: "bench".into() }),
            name: "here".into(),
        };
        let flavor = wire::Flavor { ram: 64, vcpus: 1, disk: 1, ..edge::flavor("small") };
        let app = image(folder, &flavor)?;
        FlavorApiClient::new(channel.clone()).create_flavor(flavor.clone()).await?;
        let operator = wire::Operator { key: key.operator_key.clone(), ..Default::default() };
        OperatorApiClient::new(channel.clone()).create_operator(operator).await?;
        let developer = wire::Developer {
            key: app.key.clone().and_then(|key| key.developer_key),
            ..Default::default()
        };
        DeveloperApiClient::new(channel.clone()).create_developer(developer).await?;
        let mut cloudlets = CloudletApiClient::new(channel.clone());
        to_end(cloudlets.create_cloudlet(edge::cloudlet(key.clone())).await?).await?;
        AppApiClient::new(channel.clone()).create_app(app.clone()).await?;
        let tasks = Tasks::new(CancellationToken::new());
        let crm = Crm::open(settings(folder, key.clone(), house.address).await?).await?;
        Arc::new(crm).spawn(&tasks);
        let cluster = wire::ClusterInst {
            deployment: "docker".into(),
            ip_access: wire::IpAccess::Dedicated.into(),
            num_masters: 0,
            num_nodes: 0,
            ..edge::cluster_inst(key, &flavor)
        };
        let mut clusters = ClusterInstApiClient::new(channel.clone());
        // The cloudlet may not have said yet that it is there.
        let until = Instant::now() + START_TIMEOUT;
        loop {
            match clusters.create_cluster_inst(cluster.clone()).await {
                Ok(stream) => break to_end(stream).await?,
                Err(status) if Instant::now() > until => return Err(status.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        let instance = edge::app_inst(app.key.unwrap_or_default(), &cluster);
        let site = Self { house, tasks, channel, instance, cluster };
        // The image is fetched once, and not counted.
        site.create().await?;
        site.delete().await?;
        Ok(site)
    }

    async fn create(&self) -> Result<Duration> {
        let mut client = AppInstApiClient::new(self.channel.clone());
        let start = Instant::now();
        to_end(client.create_app_inst(self.instance.clone()).await?).await?;
        Ok(start.elapsed())
    }

    async fn delete(&self) -> Result<()> {
        let mut client = AppInstApiClient::new(self.channel.clone());
        to_end(client.delete_app_inst(self.instance.clone()).await?).await
    }

    /// From the call until a command has written so many bytes.
    async fn reads(&self, direct: bool, words: &[&str], bytes: usize) -> Result<Duration> {
        let start = Instant::now();
        let mut talk = self.run(direct, words).await?;
        let mut read = 0;
        while read < bytes {
            match talk.incoming.recv().await {
                Some(Frame::Data(more)) => read += more.len(),
                other => bail!("the command wrote {read} bytes of {bytes}: {other:?}"),
            }
        }
        let took = start.elapsed();
        talk.close().await;
        Ok(took)
    }

    async fn run(&self, direct: bool, words: &[&str]) -> Result<Conversation> {
        let mut client = ExecApiClient::new(self.channel.clone());
        let mut request = wire::ExecRequest {
            app_inst_key: self.instance.key.clone(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            ..Default::default()
        };
        let mut talk = if direct {
            let offer = Offer::make(Options::default()).await?;
            request.offer = offer.text().to_owned();
            let reply = client.run_command(request).await?.into_inner();
            offer.accept(&reply.answer).with_context(|| reply.err)?
        } else {
            let reply = client.run_command(request).await?.into_inner();
            let token = reply.relay.rsplit_once('/').with_context(|| reply.err.clone())?.1;
            selvage_shell::attach(self.channel.clone(), token.to_owned(), |_| {}).await?
        };
        ensure!(talk.opened().await, "the crm was not reached");
        talk.outgoing.send(Frame::Size { columns: 0, rows: 0 }).await?;
        Ok(talk)
    }

    async fn commit(&self, round: usize) -> Result<Duration> {
        let flavor = edge::flavor(format!("commit-{round}"));
        let mut client = FlavorApiClient::new(self.channel.clone());
        let start = Instant::now();
        client.create_flavor(flavor).await?;
        Ok(start.elapsed())
    }

    async fn close(self) -> Result<()> {
        let mut clusters = ClusterInstApiClient::new(self.channel.clone());
        to_end(clusters.delete_cluster_inst(self.cluster.clone()).await?).await?;
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(START_TIMEOUT).await;
        self.house.close().await
    }
}

/// Reads what a call tells until it is done.
async fn to_end(response: tonic::Response<tonic::Streaming<wire::Result>>) -> Result<()> {
    let mut stream = response.into_inner();
    while let Some(response) = stream.message().await? {
        if response.code != 0 {
            bail!("{}", response.message);
        }
    }
    Ok(())
}

/// A web server in a busybox, as an image in a file.
fn image(folder: &Path, flavor: &wire::Flavor) -> Result<wire::App> {
    let words = ["/bin/httpd", "-f", "-p", &PORT.to_string(), "-h", "/www"].map(str::to_owned);
    let image = ImageBuilder::busybox(&busybox()?, &["httpd"])?.command(words);
    let path = folder.join("web.tar");
    image.write("localhost/web:1", &path)?;
    Ok(wire::App {
        image_path: format!("file://{}", path.display()),
        access_ports: format!("tcp:{PORT}"),
        deployment: "docker".into(),
        ..edge::app("web", flavor)
    })
}

async fn settings(
    folder: &Path,
    cloudlet: wire::CloudletKey,
    controller: SocketAddr,
) -> Result<Settings> {
    let mut options = oci::Options::new(folder.join("containers"));
    options.state = folder.join("run");
    let runtime: Arc<dyn Runtime> = Arc::new(oci::Oci::open(options).await?);
    let data = folder.join("data");
    std::fs::create_dir_all(&data)?;
    Ok(Settings {
        cloudlet,
        node: "bench".into(),
        site: Site::parse("common: {network_scheme: 10.99.0.0/16}")?,
        lvmd: data.join("lvmd.sock"),
        data,
        notify: ClientOptions {
            addresses: vec![controller.to_string()],
            ..ClientOptions::default()
        },
        runtime,
        namespace: "selvage".into(),
        images: ImageFolders::new([folder.to_owned()]),
        pull_secrets: None,
        private_hosts: Vec::new(),
        addresses: vec![IpAddr::from([127, 0, 0, 1])],
        forwarding: Forwarding::default(),
        users: Users::OwnIfPossible,
        egress: selvage_crm::Egress::default(),
        tls: None,
        start_timeout: START_TIMEOUT,
        grace: Duration::from_secs(60),
        resync_interval: Duration::from_secs(10),
        samples: Duration::from_secs(15),
    })
}
