//! Virtual machines on this machine, with QEMU: an instance is a machine of
//! its own, and there are no clusters.
//!
//! Machines run in sessions of their own and go on when the crm ends; the next
//! one finds them by what their processes were told they are called.

mod accelerator;
mod console;
mod image;
mod keys;
mod machine;
mod names;
mod process;
mod qcow2;
mod qmp;
mod seed;
mod source;
mod tools;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{AppInstKey, CloudletKey, ClusterInstKey},
};
use selvage_fetch::Policy;
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream, private_directory};
use tokio::{io::AsyncReadExt, sync::OnceCell, time::Instant};

use self::{
    accelerator::Accelerator,
    console::Seats,
    image::{Images, Wish},
    machine::{Machine, Plan},
    names::{Namer, Names},
    tools::Tools,
};
use super::{
    ClusterFacts, ClusterOrder, InstanceFacts, InstanceOrder, Platform, PortEndpoint, Resources,
    Usage, host,
};
use crate::{Error, ImageFolders, Result, error::During};

/// Deployment that this platform runs.
const DEPLOYMENT: &str = "vm";
/// Ports that lead into machines. The kernel gives none of these away by
/// itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Interval of checking whether a machine takes connections, and time for which
/// one must stay open: the way into a machine takes each, and drops those that
/// the machine does not want.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
const OPEN: Duration = Duration::from_millis(500);
/// Lines of a log that tell why a machine ended.
const LAST_WORDS: u64 = 5;

/// Options of the platform.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of images and disks.
    pub data: PathBuf,
    /// Folders whose files may be images.
    pub images: ImageFolders,
    /// Hosts that other images may come from.
    pub policy: Policy,
    /// Time a machine may take until its first port takes connections;
    /// one that takes longer counts as made.
    pub start_timeout: Duration,
    /// Time a machine may take to turn itself off.
    pub powerdown: Duration,
}

/// The platform.
pub struct Machines {
    options: Options,
    namer: Namer,
    tools: Tools,
    images: Images,
    accelerator: OnceCell<Accelerator>,
    seats: Seats,
}

impl Machines {
    pub fn open(cloudlet: &CloudletKey, options: Options) -> Result<Self> {
        let home = options.data.join("vm");
        private_directory(&home).during("making a place for machines")?;
        private_directory(&home.join("machines")).during("making a place for machines")?;
        let home = home.canonicalize().during("making a place for machines")?;
        let tools = Tools::find()?;
        Ok(Self {
            namer: Namer::new(cloudlet, &home)?,
            images: Images::open(home.join("images"), &options, tools.clone())?,
            options: Options { data: home, ..options },
            tools,
            accelerator: OnceCell::new(),
            seats: Seats::default(),
        })
    }

    fn directory(&self) -> PathBuf {
        self.options.data.join("machines")
    }

    fn machine(&self, names: &Names) -> Result<Machine> {
        Machine::at(self.directory().join(&names.machine))
    }

    /// Makes a machine anew and starts it.
    async fn make(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        let names = self.namer.instance(&order.key)?;
        let machine = self.machine(&names)?;
        let image = self.images.provide(&Wish::of(order)).await?;
        machine.stop(&names.process, self.options.powerdown).await?;
        machine.make(&self.tools, &image, &plan(order, facts, &names)).await?;
        self.start(&machine, &names, order, facts).await
    }

    async fn start(
        &self,
        machine: &Machine,
        names: &Names,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let find = || Accelerator::find(&self.tools, &self.options.data);
        let accelerator = *self.accelerator.get_or_init(find).await;
        let seed = seed::disk(&order.app, &names.machine)?;
        machine.start(&self.tools, accelerator, &plan(order, facts, names), &seed).await?;
        self.until_it_answers(machine, names, facts).await
    }

    /// Returns when the machine takes connections, or has had its time. Fails
    /// when it has ended.
    async fn until_it_answers(
        &self,
        machine: &Machine,
        names: &Names,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let place = facts.places.iter().find(|place| !place.udp).map(|place| place.at);
        let until = Instant::now() + self.options.start_timeout;
        let mut up = false;
        loop {
            if process::one(&names.process).await?.is_none() {
                return Err(ended(machine).await);
            }
            let Some(place) = place else { return Ok(()) };
            up = up || machine.has_network().await;
            if up && stays_open(place).await {
                return Ok(());
            }
            if Instant::now() >= until {
                tracing::warn!(machine = names.machine, "runs and takes no connections yet");
                return Ok(());
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// The machine of an instance, by the only name it has.
    fn one_of(&self, key: &AppInstKey, container: &str) -> Result<(Names, Machine)> {
        let names = self.namer.instance(key)?;
        if !container.is_empty() && container != names.machine {
            return Err(Error::missing(format!("machine {container:?} of the instance")));
        }
        let machine = self.machine(&names)?;
        Ok((names, machine))
    }

    /// Images that disks build on.
    fn bases(&self) -> Result<Vec<PathBuf>> {
        let mut bases = Vec::new();
        for (_, machine) in self.found()? {
            bases.extend(machine.base());
        }
        Ok(bases)
    }

    /// Machines that have a directory, by name.
    fn found(&self) -> Result<Vec<(String, Machine)>> {
        let entries = std::fs::read_dir(self.directory()).during("looking for machines")?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.map(|name| Ok((name.clone(), Machine::at(self.directory().join(name))?))).collect()
    }
}

fn plan<'a>(order: &InstanceOrder, facts: &'a InstanceFacts, names: &'a Names) -> Plan<'a> {
    Plan {
        names,
        memory_mb: order.flavor.ram,
        cores: order.flavor.vcpus,
        disk_gb: order.flavor.disk,
        places: &facts.places,
    }
}

/// Returns whether a connection is taken and not dropped at once.
async fn stays_open(place: SocketAddr) -> bool {
    let tried = async {
        let mut stream = tokio::net::TcpStream::connect(place).await.ok()?;
        let mut first = [0];
        match tokio::time::timeout(OPEN, stream.read(&mut first)).await {
            // It speaks first, or waits for the other side to.
            Ok(Ok(1)) | Err(_) => Some(()),
            Ok(_) => None,
        }
    };
    matches!(tokio::time::timeout(OPEN * 4, tried).await, Ok(Some(())))
}

/// Why a machine does not run any more, in its own words.
async fn ended(machine: &Machine) -> Error {
    let options = LogOptions { follow: false, tail: Some(LAST_WORDS) };
    let mut words = Vec::new();
    if let Ok(mut log) = selvage_runtime::logs::follow_file(machine.log(), options).await {
        while let Some(Ok(piece)) = log.next().await {
            words.extend_from_slice(&piece);
        }
    }
    let words = String::from_utf8_lossy(&words);
    let words = words.trim();
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    Error::state(format!("the machine ended{words}"))
}

/// A port of this machine that is free, beside those that are spoken for.
fn free_port(first: u16, udp: bool, taken: impl Fn(u16) -> bool) -> Result<u16> {
    let size = PORTS.end - PORTS.start;
    let numbers = (0..size).map(|step| PORTS.start + (first % size + step) % size);
    let free = |port: &u16| {
        let place = (Ipv4Addr::LOCALHOST, *port);
        let bound =
            if udp { UdpSocket::bind(place).map(drop) } else { TcpListener::bind(place).map(drop) };
        !taken(*port) && bound.is_ok()
    };
    let mut numbers = numbers.filter(free);
    numbers.next().ok_or_else(|| Error::state("there is no port left that leads to a machine"))
}

/// A cloudlet of machines has no clusters.
fn no_clusters() -> Error {
    Error::state("a cloudlet of virtual machines has no clusters: deployment vm needs none")
}

#[async_trait]
impl Platform for Machines {
    fn kind(&self) -> &'static str {
        "vm"
    }

    async fn resources(&self) -> Result<Resources> {
        host::resources(&self.options.data).await
    }

    fn plan_cluster(&self, _: &ClusterOrder, _: &[ClusterFacts]) -> Result<ClusterFacts> {
        Err(no_clusters())
    }

    async fn create_cluster(&self, _: &ClusterOrder, _: &ClusterFacts) -> Result<()> {
        Err(no_clusters())
    }

    async fn update_cluster(&self, _: &ClusterOrder, _: &ClusterFacts) -> Result<ClusterFacts> {
        Err(no_clusters())
    }

    async fn keep_cluster(&self, _: &ClusterInstKey, _: &ClusterFacts) -> Result<()> {
        Err(no_clusters())
    }

    /// There is none to be missed.
    async fn delete_cluster(&self, _: &ClusterInstKey) -> Result<()> {
        Ok(())
    }

    fn plan_instance(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        if order.app.deployment != DEPLOYMENT {
            let reason = format!(
                "{:?} does not run on a cloudlet of virtual machines: use {DEPLOYMENT}",
                order.app.deployment
            );
            return Err(Error::invalid("deployment", reason));
        }
        let names = self.namer.instance(&order.key)?;
        let mut places: Vec<PortEndpoint> = Vec::new();
        for port in &order.instance.mapped_ports {
            let internal = u16::try_from(port.internal_port).ok().filter(|port| *port > 0);
            let internal = internal.ok_or_else(|| {
                let reason = format!("{} is no port", port.internal_port);
                Error::invalid("mapped_ports.internal_port", reason)
            })?;
            let udp = port.proto() == LProto::Udp;
            let all = others.iter().flat_map(|other| &other.places).chain(&places);
            let held: Vec<u16> =
                all.filter(|place| place.udp == udp).map(|place| place.at.port()).collect();
            let free = free_port(names.seed, udp, |port| held.contains(&port))?;
            places.push(PortEndpoint {
                internal,
                udp,
                at: SocketAddr::from((Ipv4Addr::LOCALHOST, free)),
            });
        }
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(InstanceFacts { containers: vec![names.machine], address, places })
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.make(order, facts).await
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        let names = self.namer.instance(&order.key)?;
        let machine = self.machine(&names)?;
        if process::one(&names.process).await?.is_some() {
            console::bound(&machine.log()).during("shortening a console's log")?;
            return Ok(false);
        }
        if machine.is_made() {
            self.start(&machine, &names, order, facts).await?;
        } else {
            self.make(order, facts).await?;
        }
        Ok(true)
    }

    async fn delete_instance(&self, key: &AppInstKey) -> Result<()> {
        let names = self.namer.instance(key)?;
        let machine = self.machine(&names)?;
        machine.stop(&names.process, self.options.powerdown).await?;
        machine.remove()?;
        self.images.tidy(&self.bases()?).map(drop)
    }

    async fn sweep(&self, _: &[ClusterInstKey], instances: &[AppInstKey]) -> Result<Vec<String>> {
        let known = instances.iter().map(|key| Ok(self.namer.instance(key)?.machine));
        let known: Vec<String> = known.collect::<Result<_>>()?;
        let (ours, processes) = (self.namer.processes(), known.clone());
        let strays = process::find(move |found| {
            let machine = found.strip_prefix(&ours);
            machine.is_some_and(|machine| !processes.iter().any(|known| known == machine))
        });
        let mut swept = Vec::new();
        for stray in strays.await? {
            stray.kill().await?;
            swept.push(format!("process of machine {}", stray.name));
        }
        for (name, machine) in self.found()? {
            if !known.contains(&name) {
                machine.remove()?;
                swept.push(format!("machine {name}"));
            }
        }
        swept.extend(self.images.tidy(&self.bases()?)?);
        Ok(swept)
    }

    /// Turns all machines off; their disks stay.
    async fn stop_all(&self) -> Result<Vec<String>> {
        let ours = self.namer.processes();
        let running = process::find(move |found| found.starts_with(&ours)).await?;
        let mut stopped = Vec::new();
        for process in running {
            let name = process.name.strip_prefix(&self.namer.processes()).unwrap_or_default();
            let machine = Machine::at(self.directory().join(name))?;
            machine.stop(&process.name, self.options.powerdown).await?;
            stopped.push(format!("process of machine {name}"));
        }
        Ok(stopped)
    }

    async fn tidy(&self) -> Result<Vec<String>> {
        self.images.tidy(&self.bases()?)
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        let names = self.namer.instance(key)?;
        let found = process::one(&names.process).await?;
        let usage = found.and_then(|process| process.usage());
        usage.ok_or_else(|| selvage_runtime::Error::ProcessFinished.into())
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        let (names, machine) = self.one_of(key, container)?;
        console::open(&self.seats, &names.machine, &machine.console(), &spec).await
    }

    async fn logs(
        &self,
        key: &AppInstKey,
        container: &str,
        options: LogOptions,
    ) -> Result<LogStream> {
        let (_, machine) = self.one_of(key, container)?;
        Ok(selvage_runtime::logs::follow_file(machine.log(), options).await?)
    }
}
