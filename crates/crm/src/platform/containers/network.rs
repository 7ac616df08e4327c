//! Networks of clusters on one machine: a bridge for each cluster, a network
//! namespace with an address on it for each instance.
//!
//! Clusters cannot reach each other's instances: what comes in by one bridge
//! for another network is dropped by a routing rule. They reach each other's
//! public ports as everybody does.

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::TryStreamExt;
use nix::sched::CloneFlags;
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkMessage},
        rule::RuleAction,
    },
};
use tokio::sync::Mutex;

use super::{
    names::{ClusterNames, InstanceNames, Namer},
    namespaces,
};
use crate::{Error, Result, error::During};

/// Addresses of a cluster.
const CLUSTER_PREFIX: u8 = 24;
/// Before the rule that asks the main table.
const RULE_PRIORITY: u32 = 1000;
/// The interface as the container sees it.
const INSIDE: &str = "eth0";

/// The range that clusters have their networks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: Ipv4Addr,
    prefix: u8,
}

impl Default for Range {
    fn default() -> Self {
        Self { base: Ipv4Addr::new(10, 101, 0, 0), prefix: 16 }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl Range {
    /// Reads `10.101.0.0/16`, as `network_scheme` has it.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid("network_scheme", format!("{text:?} is not like 10.101.0.0/16"));
        let (base, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let base: Ipv4Addr = base.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if !(8..=CLUSTER_PREFIX).contains(&prefix) || !base.is_private() {
            return Err(Error::invalid(
                "network_scheme",
                "must be a private range with a prefix from 8 to 24",
            ));
        }
        let mask = u32::MAX << (32 - prefix);
        Ok(Self { base: Ipv4Addr::from(u32::from(base) & mask), prefix })
    }

    /// Number of networks.
    pub(super) fn size(self) -> u32 {
        1 << (CLUSTER_PREFIX - self.prefix)
    }

    /// Returns whether a network has addresses of this range.
    pub(super) fn meets(self, base: Ipv4Addr, prefix: u8) -> bool {
        let shorter = u32::from(self.prefix.min(prefix));
        let mask = u32::MAX.checked_shl(32 - shorter).unwrap_or(0);
        u32::from(self.base) & mask == u32::from(base) & mask
    }

    /// Returns whether two ranges have addresses in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.meets(other.base, other.prefix)
    }

    /// The address `host` of a network.
    pub(super) fn address(self, network: u32, host: u8) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) | (network << (32 - CLUSTER_PREFIX)) | u32::from(host))
    }
}

/// The networks of this machine.
#[derive(Clone)]
pub(super) struct Networks {
    pub(super) handle: Handle,
    range: Range,
    /// The kernel gives one list at a time over one socket.
    pub(super) lists: Arc<Mutex<()>>,
}

impl Networks {
    /// Must be called inside a tokio runtime.
    pub(super) fn open(range: Range) -> Result<Self> {
        let (connection, handle, _) =
            rtnetlink::new_connection().during("opening the kernel's network socket")?;
        tokio::spawn(connection);
        Ok(Self { handle, range, lists: Arc::default() })
    }

    pub(super) fn range(&self) -> Range {
        self.range
    }

    /// Makes a cluster's bridge, or sees that it is as it should be.
    pub(super) async fn provide_cluster(
        &self,
        names: &ClusterNames,
        network: u32,
        public: IpAddr,
    ) -> Result<()> {
        let bridge = &names.bridge;
        if self.index(bridge).await?.is_none() {
            let made = self.handle.link().add(LinkBridge::new(bridge).build()).execute().await;
            tolerate(made, EXISTS).during("making a bridge")?;
        }
        let index = self.index(bridge).await?.ok_or_else(|| gone(bridge))?;
        let address = self.range.address(network, 1);
        let added = self.handle.address().add(index, IpAddr::V4(address), CLUSTER_PREFIX);
        tolerate(added.execute().await, EXISTS).during("giving a bridge its address")?;
        if !is_ours(public) {
            let prefix = if public.is_ipv4() { 32 } else { 128 };
            let added = self.handle.address().add(index, public, prefix).execute().await;
            tolerate(added, EXISTS).during("giving a cluster its public address")?;
        }
        let up = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(up).execute().await.during("setting a bridge up")?;
        self.isolate(bridge).await
    }

    /// Drops what comes from a cluster for any cluster's network. What
    /// is for this machine itself never gets to this rule.
    async fn isolate(&self, bridge: &str) -> Result<()> {
        let rule = self.handle.rule().add().v4();
        let rule = rule
            .input_interface(bridge)
            .destination_prefix(self.range.base, self.range.prefix)
            .priority(RULE_PRIORITY)
            .action(RuleAction::Blackhole);
        tolerate(rule.execute().await, EXISTS).during("keeping clusters apart")
    }

    pub(super) async fn remove_cluster(&self, names: &ClusterNames) -> Result<()> {
        self.remove_rules(&names.bridge).await?;
        self.remove_link(&names.bridge).await
    }

    async fn remove_rules(&self, bridge: &str) -> Result<()> {
        use rtnetlink::packet_route::rule::RuleAttribute;
        let listing = self.lists.lock().await;
        let mut rules = self.handle.rule().get(rtnetlink::IpVersion::V4).execute();
        let mut ours = Vec::new();
        while let Some(rule) = rules.try_next().await.during("listing routing rules")? {
            let by = rule.attributes.iter().any(
                |attribute| matches!(attribute, RuleAttribute::Iifname(name) if name == bridge),
            );
            if by {
                ours.push(rule);
            }
        }
        drop(listing);
        for rule in ours {
            let removed = self.handle.rule().del(rule).execute().await;
            tolerate(removed, GONE).during("removing a routing rule")?;
        }
        Ok(())
    }

    /// Makes the namespace of an instance, connected to its cluster's bridge.
    /// Of one that is there only what is missing is made; whether it was.
    pub(super) async fn provide_instance(
        &self,
        cluster: &ClusterNames,
        names: &InstanceNames,
        network: u32,
        address: Ipv4Addr,
    ) -> Result<bool> {
        let bridge = self.index(&cluster.bridge).await?.ok_or_else(|| gone(&cluster.bridge))?;
        let path = namespaces::path(&names.namespace);
        let gateway = self.range.address(network, 1);
        let room = Room { path, cable: names.cable.clone(), address, gateway };
        let there = is_mounted(&room.path) && self.index(&names.cable).await?.is_some();
        let there = there && {
            let room = room.clone();
            blocking(move || room.mend()).await?
        };
        if !there {
            self.remove_instance(names).await?;
            blocking(move || room.make()).await?;
        }
        self.plug(&names.cable, bridge).await?;
        Ok(there)
    }

    /// Connects a cable to a bridge, if it is not.
    async fn plug(&self, cable: &str, bridge: u32) -> Result<()> {
        let link = self.link(cable).await?.ok_or_else(|| gone(cable))?;
        let in_it = link.attributes.contains(&LinkAttribute::Controller(bridge));
        if in_it && link.header.flags.contains(LinkFlags::Up) {
            return Ok(());
        }
        let plugged = LinkUnspec::new_with_index(link.header.index).controller(bridge).up().build();
        self.handle.link().set(plugged).execute().await.during("connecting to the bridge")
    }

    pub(super) async fn remove_instance(&self, names: &InstanceNames) -> Result<()> {
        let path = namespaces::path(&names.namespace);
        blocking(move || namespaces::remove(&path)).await?;
        self.remove_link(&names.cable).await
    }

    /// Removes a namespace that nobody knows; its cable goes with it.
    pub(super) async fn remove_namespace(&self, name: &str) -> Result<()> {
        let path = namespaces::path(name);
        blocking(move || namespaces::remove(&path)).await
    }

    async fn remove_link(&self, name: &str) -> Result<()> {
        let Some(index) = self.index(name).await? else { return Ok(()) };
        tolerate(self.handle.link().del(index).execute().await, GONE)
            .during("removing an interface")
    }

    async fn index(&self, name: &str) -> Result<Option<u32>> {
        Ok(self.link(name).await?.map(|link| link.header.index))
    }

    async fn link(&self, name: &str) -> Result<Option<LinkMessage>> {
        let _listing = self.lists.lock().await;
        find_link(&self.handle, name).await
    }

    /// Bridges and namespaces of ours.
    pub(super) async fn found(&self, namer: &Namer) -> Result<(Vec<String>, Vec<String>)> {
        let listing = self.lists.lock().await;
        let mut links = self.handle.link().get().execute();
        let mut bridges = Vec::new();
        while let Some(link) = links.try_next().await.during("listing interfaces")? {
            let name = link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            });
            bridges.extend(name.filter(|name| name.starts_with(&namer.bridges())));
        }
        drop(listing);
        Ok((bridges, namespaces::list(&namer.namespaces())?))
    }
}

async fn find_link(handle: &Handle, name: &str) -> Result<Option<LinkMessage>> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    match links.try_next().await {
        Ok(link) => Ok(link),
        Err(error) if is(&error, GONE) => Ok(None),
        Err(error) => Err(error).during("looking for an interface"),
    }
}

/// Returns whether an address is one of this machine's.
fn is_ours(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

fn gone(name: &str) -> Error {
    Error::state(format!("the interface {name} is gone"))
}

const EXISTS: i32 = libc_errno::EEXIST;
const GONE: i32 = libc_errno::ENODEV;

/// Numbers of errors as netlink has them.
mod libc_errno {
    use nix::errno::Errno;

    pub(super) const EEXIST: i32 = Errno::EEXIST as i32;
    pub(super) const ENODEV: i32 = Errno::ENODEV as i32;
}

fn is(error: &rtnetlink::Error, number: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message)
        if message.code.is_some_and(|code| code.get() == -number))
}

/// Takes for done what was done already, or is gone already.
fn tolerate(outcome: Result<(), rtnetlink::Error>, number: i32) -> Result<(), rtnetlink::Error> {
    match outcome {
        Err(error) if is(&error, number) => Ok(()),
        other => other,
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| Error::state("work on the network was cut off"))?
}

/// The namespace of an instance, with its end of a cable.
#[derive(Clone)]
struct Room {
    path: PathBuf,
    /// The other end.
    cable: String,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
}

impl Room {
    fn make(self) -> Result<()> {
        on_a_thread(move || {
            namespaces::reserve(&self.path)?;
            let host = File::open("/proc/thread-self/ns/net").during("opening our namespace")?;
            nix::sched::unshare(CloneFlags::CLONE_NEWNET).during("making a namespace")?;
            rustix::mount::mount_bind("/proc/thread-self/ns/net", &self.path)
                .map_err(io::Error::from)
                .during("keeping a namespace")?;
            in_here(async |handle| {
                self.lay_cable(handle, &host).await?;
                if self.furnish(handle).await? { Ok(()) } else { Err(gone(INSIDE)) }
            })
        })
    }

    /// Makes what is missing in one that is there; whether it has a cable.
    fn mend(self) -> Result<bool> {
        on_a_thread(move || {
            let namespace = File::open(&self.path).during("opening a namespace")?;
            nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET)
                .during("entering a namespace")?;
            in_here(async |handle| self.furnish(handle).await)
        })
    }

    async fn lay_cable(&self, handle: &Handle, host: &File) -> Result<()> {
        let outside = LinkMessageBuilder::<LinkUnspec>::new()
            .name(&self.cable)
            .setns_by_fd(host.as_raw_fd())
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(INSIDE)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(outside)))
            .build();
        handle.link().add(pair).execute().await.during("making a cable")
    }

    /// Everything inside; false when there is no cable.
    async fn furnish(&self, handle: &Handle) -> Result<bool> {
        let up = |index| LinkUnspec::new_with_index(index).up().build();
        handle.link().set(up(1)).execute().await.during("setting the loopback up")?;
        let Some(link) = find_link(handle, INSIDE).await? else { return Ok(false) };
        let index = link.header.index;
        let added = handle.address().add(index, IpAddr::V4(self.address), CLUSTER_PREFIX);
        tolerate(added.execute().await, EXISTS).during("giving an instance its address")?;
        handle.link().set(up(index)).execute().await.during("setting the cable up")?;
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(self.gateway).build();
        let added = handle.route().add(route).execute().await;
        tolerate(added, EXISTS).during("adding the way out")?;
        Ok(true)
    }
}

/// A namespace belongs to a thread: what is done in another one is done on a
/// thread of its own, which ends.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = std::thread::Builder::new().name("namespace".into());
    let done = thread.spawn(work).during("starting a thread")?;
    done.join().map_err(|_| Error::state("work in a namespace failed"))?
}

/// Talks to the kernel about the namespace that this thread is in.
fn in_here<T>(work: impl AsyncFnOnce(&Handle) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.during("working in a namespace")?.block_on(async {
        let (connection, handle, _) =
            rtnetlink::new_connection().during("opening the kernel's network socket")?;
        let connection = tokio::spawn(connection);
        let done = work(&handle).await;
        connection.abort();
        done
    })
}

/// Bytes that came in and went out by the cable of the namespace that a
/// process is in.
pub(super) fn traffic(pid: u32) -> Option<(u64, u64)> {
    counted(&fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?)
}

fn counted(table: &str) -> Option<(u64, u64)> {
    let row = table.lines().find_map(|line| line.trim().strip_prefix(INSIDE)?.strip_prefix(':'))?;
    let mut columns = row.split_whitespace().map(|column| column.parse().ok());
    Some((columns.next()??, columns.nth(7)??))
}

pub(super) fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let parent = path.parent().and_then(device);
    device(path).is_some_and(|own| Some(own) != parent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[tokio::test]
    async fn many_lists_are_asked_for_at_once() {
        let networks = Networks::open(Range::default()).unwrap();
        let asked = (0..64).map(|_| networks.remove_rules("none such"));
        for answer in futures::future::join_all(asked).await {
            answer.unwrap();
        }
    }

    #[test]
    fn traffic_is_counted_inside() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                     eth0: 710 9 0 0 0 0 0 0 1234 8 0 0 0 0 0 0\n";
        assert_eq!(counted(table), Some((710, 1234)));
        assert_eq!(counted("lo: 1 2"), None);
    }

    #[test]
    fn ranges_meet_what_is_in_them_and_what_they_are_in() {
        let range = Range::parse("10.7.0.0/16").unwrap();
        let meets = |base: &str, prefix| range.meets(base.parse().unwrap(), prefix);
        assert!(meets("10.7.9.1", 32) && meets("10.7.200.0", 24) && meets("10.0.0.0", 8));
        assert!(meets("10.7.0.0", 16) && meets("10.6.0.0", 15) && meets("0.0.0.0", 0));
        assert!(!meets("10.8.0.0", 16) && !meets("10.6.255.255", 32) && !meets("192.168.0.0", 16));
    }

    #[test]
    fn ranges_are_read_and_bad_ones_refused() {
        let range = Range::parse("10.7.9.1/16").unwrap();
        assert_eq!(range.size(), 256);
        assert_eq!(range.address(3, 2), Ipv4Addr::new(10, 7, 3, 2));
        assert_eq!(
            Range::parse("192.168.5.0/24").unwrap().address(0, 1).to_string(),
            "192.168.5.1"
        );
        for bad in ["", "10.0.0.0", "8.8.0.0/16", "10.0.0.0/25", "10.0.0.0/7", "x/16", "10.0.0.0/x"]
        {
            let error = Range::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("network_scheme: "), "{error}");
        }
    }
}
