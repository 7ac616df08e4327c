//! Public ports and paths of an instance: [`allocate`] decides which of them lead to
//! the ports that its App names. `ports/tests.rs` has every case.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{App, AppInst, AppInstKey, CloudletKey, IpAccess},
};

use super::{
    Error, Result, access_ports, access_ports::PortSpec, deployment, manifest, names, names::dns,
};
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts};

/// Range for ports that cannot keep their number.
const REMAPPED: RangeInclusive<i32> = 10_000..=64_999;

/// Port at which load balancers serve http for everybody.
const HTTP_PORT: i32 = 443;
/// Port at which agents reach load balancers.
const SSH_PORT: i32 = 22;

const TCP_BIT: i32 = 1;
const UDP_BIT: i32 = 2;
/// Only in memory, never stored: http may be shared, but not with tcp.
const HTTP_BIT: i32 = 4;

/// Public port to the protocols that use it, as `CloudletRefs.root_lb_ports`.
pub(crate) type Bitmap = BTreeMap<i32, i32>;

/// Kind of entry point through which an AppInst is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Through the load balancer of its cloudlet, which many use.
    SharedBalancer,
    /// Through the load balancer of its cluster.
    DedicatedBalancer,
    /// Every service has an address of its own.
    PerService,
    /// It is a virtual machine with an address of its own.
    Machine,
    /// The developer runs it and publishes it.
    DefaultCloudlet,
}

/// `access` is the ip_access of the ClusterInst.
pub(crate) fn exposure(cloudlet: &CloudletKey, deployment: &str, access: IpAccess) -> Exposure {
    if names::is_default_cloudlet(cloudlet) {
        Exposure::DefaultCloudlet
    } else if deployment == deployment::VM {
        Exposure::Machine
    } else if names::has_ip_per_service(cloudlet) {
        Exposure::PerService
    } else if access == IpAccess::Dedicated {
        Exposure::DedicatedBalancer
    } else {
        Exposure::SharedBalancer
    }
}

/// Ports and paths that others hold where a new AppInst will be reached. Ports
/// matter on dedicated load balancers only: those of shared ones are in the
/// bitmap.
#[derive(Debug, Default)]
pub(crate) struct TakenPorts {
    pub(crate) ports: Bitmap,
    pub(crate) paths: BTreeSet<String>,
}

impl TakenPorts {
    /// From the other AppInsts with the same uri.
    pub(crate) fn by<'a>(others: impl IntoIterator<Item = &'a AppInst>) -> Self {
        let mut taken = Self::default();
        for port in others.into_iter().flat_map(|other| &other.mapped_ports) {
            if port.public_port > 0 {
                *taken.ports.entry(port.public_port).or_default() |= bit(port.proto());
            }
            if !port.path_prefix.is_empty() {
                taken.paths.insert(port.path_prefix.clone());
            }
        }
        taken
    }
}

fn bit(proto: LProto) -> i32 {
    match proto {
        LProto::Tcp => TCP_BIT,
        LProto::Udp => UDP_BIT,
        LProto::Http => HTTP_BIT,
        LProto::Unknown => 0,
    }
}

/// The ports of a new AppInst, in the order of its App. Those on a shared load
/// balancer are recorded in `root_lb_ports`, which is left as it was when
/// there are not enough.
pub(crate) fn allocate(
    app: &App,
    key: &AppInstKey,
    exposure: Exposure,
    root_lb_ports: &mut Bitmap,
    taken: &TakenPorts,
) -> Result<Vec<AppPort>> {
    let services = match app.deployment.as_str() {
        // A manifest that cannot be read names no services.
        deployment::KUBERNETES if exposure != Exposure::DefaultCloudlet => {
            manifest::services(&app.deployment_manifest).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let held = match exposure {
        Exposure::SharedBalancer => root_lb_ports.clone(),
        Exposure::DedicatedBalancer => taken.ports.clone(),
        _ => Bitmap::new(),
    };
    let mut balancer = Balancer { exposure, held, paths: &taken.paths };
    let specs = access_ports::parse(&app.access_ports)?;
    if specs.iter().any(|spec| spec.proto == LProto::Http && !spec.internal_only) {
        balancer.reserve_http()?;
    }
    let mut mapped = Vec::new();
    for spec in &specs {
        for internal in spec.ports() {
            let mut port = AppPort::default();
            port.set_proto(balancer.proto(spec.proto));
            port.internal_port = i32::from(internal);
            if !spec.internal_only {
                balancer.expose(&mut port, key)?;
            }
            if port.proto() != LProto::Http {
                let found = manifest::service_of(&services, port.proto(), internal);
                port.fqdn_prefix = found.map(|name| format!("{name}.")).unwrap_or_default();
            }
            mapped.push(port);
        }
    }
    if exposure == Exposure::SharedBalancer {
        *root_lb_ports = balancer.held;
    }
    Ok(mapped)
}

struct Balancer<'a> {
    exposure: Exposure,
    held: Bitmap,
    paths: &'a BTreeSet<String>,
}

impl Balancer<'_> {
    /// Without a load balancer nobody routes by path, so http is plain tcp.
    fn proto(&self, proto: LProto) -> LProto {
        match (self.exposure, proto) {
            (Exposure::PerService | Exposure::Machine, LProto::Http) => LProto::Tcp,
            (_, proto) => proto,
        }
    }

    /// Before the other ports, so that none of them takes the port of http.
    /// On shared load balancers it is never given away.
    fn reserve_http(&mut self) -> Result<()> {
        if self.exposure != Exposure::DedicatedBalancer {
            return Ok(());
        }
        let held = self.held.entry(HTTP_PORT).or_default();
        if *held & TCP_BIT != 0 {
            return Err(no_free_ports());
        }
        *held |= HTTP_BIT;
        Ok(())
    }

    fn expose(&mut self, port: &mut AppPort, key: &AppInstKey) -> Result<()> {
        match (self.exposure, port.proto()) {
            (_, LProto::Unknown) => {
                return Err(Error::invalid("Unknown protocol in use for this app"));
            }
            (Exposure::DefaultCloudlet, _) => {}
            (Exposure::PerService | Exposure::Machine, _) => port.public_port = port.internal_port,
            (_, LProto::Http) => {
                port.public_port = HTTP_PORT;
                port.path_prefix = self.path(key, port.internal_port);
            }
            (_, proto @ (LProto::Tcp | LProto::Udp)) => {
                port.public_port = self.take(port.internal_port, proto)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, wanted: i32, proto: LProto) -> Result<i32> {
        let reserved =
            self.exposure == Exposure::SharedBalancer && [SSH_PORT, HTTP_PORT].contains(&wanted);
        let found = if !reserved && self.is_free(wanted, proto) {
            wanted
        } else {
            let mut others = REMAPPED;
            others.find(|port| self.is_free(*port, proto)).ok_or_else(no_free_ports)?
        };
        *self.held.entry(found).or_default() |= bit(proto);
        Ok(found)
    }

    fn is_free(&self, port: i32, proto: LProto) -> bool {
        let conflicting = match proto {
            LProto::Udp => UDP_BIT,
            _ => TCP_BIT | HTTP_BIT,
        };
        self.held.get(&port).is_none_or(|held| held & conflicting == 0)
    }

    /// The path of the original, or one that also names the cluster when
    /// another instance of the same App has it.
    fn path(&self, key: &AppInstKey, port: i32) -> String {
        let app = key.app_or_empty();
        let developer = dns(&app.developer_or_empty().name);
        let base = format!("{developer}/{}{}", dns(&app.name), dns(&app.version));
        let cluster = dns(&key.cluster_inst_or_empty().cluster_or_empty().name);
        let mut path = format!("{base}/p{port}");
        let mut attempt = 1_u32;
        while self.paths.contains(&path) {
            let number = if attempt > 1 { format!("-{attempt}") } else { String::new() };
            path = format!("{base}/{cluster}{number}/p{port}");
            attempt += 1;
        }
        path
    }
}

/// Refuses ports that the platform needs itself. Virtual machines have an
/// address of their own and may use all.
pub(crate) fn check_reserved(ports: &[PortSpec], deployment: &str) -> Result<()> {
    let taken =
        |spec: &&PortSpec| !spec.is_udp() && spec.ports().any(|port| i32::from(port) == SSH_PORT);
    match ports.iter().find(taken) {
        Some(port) if deployment != deployment::VM => Err(Error::invalid(format!(
            "Invalid Access Ports: {port}, port {SSH_PORT} is reserved for SSH to load balancers"
        ))),
        _ => Ok(()),
    }
}

fn no_free_ports() -> Error {
    Error::exhausted("no free external ports")
}

/// Gives back what [`allocate`] recorded for this AppInst, and nothing else.
pub(crate) fn release(mapped: &[AppPort], exposure: Exposure, root_lb_ports: &mut Bitmap) {
    if exposure != Exposure::SharedBalancer {
        return;
    }
    for port in mapped.iter().filter(|port| port.proto() != LProto::Http) {
        if let Some(held) = root_lb_ports.get_mut(&port.public_port) {
            *held &= !bit(port.proto());
            if *held == 0 {
                root_lb_ports.remove(&port.public_port);
            }
        }
    }
}

#[cfg(test)]
mod tests;
