//! Virtual machines on this machine, with QEMU: an instance is a machine of
//! its own, and there are no clusters.
//!
//! Machines run in sessions of their own and go on when the crm ends; the next
//! one finds them by the users that they run as. Each has a user, and a network
//! with the rules that containers have.

mod accelerator;
mod console;
mod dhcp;
mod image;
mod keys;
mod machine;
mod names;
mod network;
mod process;
mod qcow2;
mod qmp;
mod seed;
mod source;
mod tools;
mod user;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{AppInstKey, CloudletKey, ClusterInstKey},
};
use selvage_edge::{cloudlet_kind, deployment};
use selvage_fetch::Policy;
use selvage_runtime::{Exec, ExecSpec, LogOptions, LogStream, private_directory};
use tokio::{net::TcpStream, sync::OnceCell};

use self::{
    accelerator::Accelerator,
    console::Seats,
    image::{ImageRequest, Images},
    machine::{Machine, Plan},
    names::{Namer, Names},
    network::Networking,
    tools::Tools,
    user::User,
};
use super::{
    ClusterFacts, ClusterOrder, Forwarder, InstanceFacts, InstanceOrder, ListenWait, Platform,
    Resources, Usage, host,
    network::{Egress, Forwarding, Range},
};
use crate::{Error, ImageFolders, Result, error::During};

/// Interval of checking whether a machine takes connections, and time that it
/// may take to answer.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Lines of a log that tell why a machine ended.
const LOG_TAIL_LINES: u64 = 5;

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
    /// Range of the networks of machines.
    pub range: Range,
    /// Forwarder of what comes to public ports from other machines.
    pub forwarding: Forwarding,
    /// Networks that guests reach beside public addresses.
    pub egress: Egress,
}

/// The platform.
pub struct Machines {
    options: Options,
    namer: Namer,
    tools: Tools,
    images: Images,
    accelerator: OnceCell<Accelerator>,
    seats: Seats,
    networking: Networking,
    /// Addresses of machines that had none in the range: those that an earlier
    /// release made.
    moved: Mutex<HashMap<String, Ipv4Addr>>,
}

impl Machines {
    /// Must be called inside a tokio runtime.
    pub fn open(cloudlet: &CloudletKey, options: Options) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let reason = "a cloudlet of virtual machines needs root, to give each machine a user \
                          and a network of its own";
            return Err(Error::state(reason));
        }
        let home = options.data.join("vm");
        private_directory(&home).during("making a place for machines")?;
        private_directory(&home.join("machines")).during("making a place for machines")?;
        let home = home.canonicalize().during("making a place for machines")?;
        let tools = Tools::find()?;
        Ok(Self {
            namer: Namer::new(cloudlet, &home)?,
            networking: Networking::open(cloudlet, &options)?,
            images: Images::open(home.join("images"), &options)?,
            options: Options { data: home, ..options },
            tools,
            accelerator: OnceCell::new(),
            seats: Seats::default(),
            moved: Mutex::default(),
        })
    }

    fn directory(&self) -> PathBuf {
        self.options.data.join("machines")
    }

    fn machine(&self, names: &Names) -> Result<Machine> {
        Machine::at(self.directory().join(&names.machine))
    }

    /// Address of a machine. One that an earlier release made gets one when it
    /// is first looked at.
    fn address(&self, names: &Names, facts: &InstanceFacts) -> Result<Ipv4Addr> {
        if let IpAddr::V4(address) = facts.address
            && self.options.range.network_of(address).is_some()
        {
            return Ok(address);
        }
        let mut moved = self.moved.lock();
        if let Some(address) = moved.get(&names.machine) {
            return Ok(*address);
        }
        // From the other end than new machines have theirs.
        let mut addresses = self.networking.addresses().rev();
        let free = |address: &Ipv4Addr| {
            moved.values().all(|taken| taken != address) && !self.networking.is_used(*address)
        };
        let address = addresses.find(free).ok_or_else(|| self.networking.full())?;
        moved.insert(names.machine.clone(), address);
        Ok(address)
    }

    /// Makes a machine anew and starts it.
    async fn make(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        let names = self.namer.instance(&order.key)?;
        let machine = self.machine(&names)?;
        let image = self.images.provide(&ImageRequest::of(order)).await?;
        order.progress.stops();
        machine.stop(&names.process, self.options.powerdown).await?;
        let plan = plan(order, &names, self.address(&names, facts)?);
        machine.make(&self.tools, &image, &plan).await?;
        self.start(&machine, order, &plan).await
    }

    async fn start(&self, machine: &Machine, order: &InstanceOrder, plan: &Plan<'_>) -> Result<()> {
        // Of the network that no machine has.
        let nobody = User::of(self.options.range.address(0, 0));
        let find = || Accelerator::find(&self.tools, &self.options.data, nobody);
        let accelerator = *self.accelerator.get_or_init(find).await;
        let seed = seed::disk(&order.app, &plan.names.machine)?;
        self.networking.provide(&order.key, plan.names, plan.address).await?;
        let network = self.networking.plug(&order.key).await?;
        machine.start(&self.tools, accelerator, plan, &seed, network).await?;
        self.until_it_answers(machine, order, plan).await
    }

    /// Returns when the machine takes connections, or has had its time. Fails
    /// when it has ended.
    async fn until_it_answers(
        &self,
        machine: &Machine,
        order: &InstanceOrder,
        plan: &Plan<'_>,
    ) -> Result<()> {
        let port = first_tcp_port(order);
        let mut wait = ListenWait::new(&order.progress, self.options.start_timeout);
        loop {
            if machine.process(plan.names).await?.is_none() {
                return Err(ended(machine).await);
            }
            let Some(port) = port else { return Ok(()) };
            if takes_connections((plan.address, port).into()).await {
                return Ok(());
            }
            if wait.is_over() {
                tracing::warn!(machine = plan.names.machine, "runs and takes no connections yet");
                return Ok(());
            }
            wait.not_yet(port);
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

fn plan<'a>(order: &InstanceOrder, names: &'a Names, address: Ipv4Addr) -> Plan<'a> {
    Plan {
        names,
        memory_mb: order.flavor.ram,
        cores: order.flavor.vcpus,
        disk_gb: order.flavor.disk,
        address,
    }
}

/// Port by which a machine shows that it serves.
fn first_tcp_port(order: &InstanceOrder) -> Option<u16> {
    let tcp = order.instance.mapped_ports.iter().find(|port| port.proto() != LProto::Udp)?;
    u16::try_from(tcp.internal_port).ok()
}

async fn takes_connections(place: SocketAddr) -> bool {
    let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect(place));
    matches!(connected.await, Ok(Ok(_)))
}

/// Why a machine does not run any more, in its own words.
async fn ended(machine: &Machine) -> Error {
    let options = LogOptions { tail: Some(LOG_TAIL_LINES), ..LogOptions::default() };
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

/// A cloudlet of machines has no clusters.
fn no_clusters() -> Error {
    Error::state("a cloudlet of virtual machines has no clusters: deployment vm needs none")
}

#[async_trait]
impl Platform for Machines {
    fn kind(&self) -> &'static str {
        cloudlet_kind::MACHINES
    }

    async fn check(&self) -> Result<()> {
        self.networking.check().await
    }

    fn forwarder(&self) -> Option<Arc<dyn Forwarder>> {
        Some(self.networking.forwarder())
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
        if order.app.deployment != deployment::VM {
            let reason = format!(
                "{:?} does not run on a cloudlet of virtual machines: use {}",
                order.app.deployment,
                deployment::VM
            );
            return Err(Error::invalid("deployment", reason));
        }
        for port in &order.instance.mapped_ports {
            if u16::try_from(port.internal_port).ok().is_none_or(|port| port == 0) {
                let reason = format!("{} is no port", port.internal_port);
                return Err(Error::invalid("mapped_ports.internal_port", reason));
            }
        }
        let names = self.namer.instance(&order.key)?;
        let moved = self.moved.lock();
        let free = |address: &Ipv4Addr| {
            let taken = others.iter().any(|other| other.address == IpAddr::V4(*address));
            !taken && moved.values().all(|taken| taken != address)
        };
        let address = self.networking.addresses().find(free);
        let address = IpAddr::V4(address.ok_or_else(|| self.networking.full())?);
        Ok(InstanceFacts { containers: vec![names.machine], address, places: Vec::new() })
    }

    async fn create_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<()> {
        self.make(order, facts).await
    }

    async fn look_at_instance(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<InstanceFacts> {
        let names = self.namer.instance(&order.key)?;
        let address = IpAddr::V4(self.address(&names, facts)?);
        Ok(InstanceFacts { address, places: Vec::new(), ..facts.clone() })
    }

    async fn keep_instance(&self, order: &InstanceOrder, facts: &InstanceFacts) -> Result<bool> {
        let names = self.namer.instance(&order.key)?;
        let machine = self.machine(&names)?;
        let address = self.address(&names, facts)?;
        if machine.process(&names).await?.is_some() {
            console::bound(&machine.log()).during("shortening a console's log")?;
            let there = self.networking.provide(&order.key, &names, address).await?;
            if there && machine.user() == Some(User::of(address)) {
                return Ok(false);
            }
            // Without its card, or as a user that it shall not have.
            machine.stop(&names.process, self.options.powerdown).await?;
        }
        if machine.is_made() {
            self.start(&machine, order, &plan(order, &names, address)).await?;
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
        self.moved.lock().remove(&names.machine);
        self.networking.remove(key, &names).await?;
        self.images.tidy(&self.bases()?).map(drop)
    }

    async fn sweep(&self, _: &[ClusterInstKey], instances: &[AppInstKey]) -> Result<Vec<String>> {
        let known = instances.iter().map(|key| Ok(self.namer.instance(key)?.machine));
        let known: Vec<String> = known.collect::<Result<_>>()?;
        let (ours, processes) = (self.namer.processes(), known.clone());
        let strays = process::find(move |seen| {
            let machine = seen.name.strip_prefix(&ours);
            machine.is_some_and(|machine| !processes.iter().any(|known| known == machine))
        });
        let mut swept = Vec::new();
        for stray in strays.await? {
            stray.kill().await?;
            swept.push(format!("process of machine {}", stray.name));
        }
        for (name, machine) in self.found()? {
            if !known.contains(&name) {
                machine.stop(&self.namer.process(&name), Duration::ZERO).await?;
                machine.remove()?;
                swept.push(format!("machine {name}"));
            }
        }
        swept.extend(self.networking.sweep(instances).await?);
        swept.extend(self.images.tidy(&self.bases()?)?);
        Ok(swept)
    }

    /// Turns all machines off; their disks stay.
    async fn stop_all(&self) -> Result<Vec<String>> {
        let mut stopped = Vec::new();
        for (name, machine) in self.found()? {
            let process = self.namer.process(&name);
            if process::of(machine.user(), &process).await?.is_empty() {
                continue;
            }
            machine.stop(&process, self.options.powerdown).await?;
            stopped.push(format!("process of machine {name}"));
        }
        stopped.extend(self.networking.sweep(&[]).await?);
        Ok(stopped)
    }

    async fn tidy(&self) -> Result<Vec<String>> {
        self.images.tidy(&self.bases()?)
    }

    async fn usage(&self, key: &AppInstKey) -> Result<Usage> {
        let names = self.namer.instance(key)?;
        let found = self.machine(&names)?.process(&names).await?;
        let usage = found.and_then(|process| process.usage());
        usage.ok_or_else(|| selvage_runtime::Error::ProcessFinished.into())
    }

    async fn exec(&self, key: &AppInstKey, container: &str, spec: ExecSpec) -> Result<Exec> {
        let (names, machine) = self.one_of(key, container)?;
        let user = machine.user().ok_or(selvage_runtime::Error::ProcessFinished)?;
        console::open(&self.seats, &names.machine, &machine.console(), user, &spec).await
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
