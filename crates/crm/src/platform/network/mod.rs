//! Networks of clusters on one machine: a bridge for each cluster, a network
//! namespace with an address on it for each instance.
//!
//! Clusters cannot reach each other's instances: what comes in by one bridge
//! for another network is dropped by a routing rule. They reach each other's
//! public ports as everybody does.
//!
//! A virtual machine is in no cluster: it has a bridge of its own, and in its
//! namespace a tap instead of an address.

mod collisions;
mod conntrack;
mod filter;
pub(in crate::platform) mod names;
pub mod namespaces;
pub(in crate::platform) mod nat;
mod range;
mod room;
pub(in crate::platform) mod rules;
pub(in crate::platform) mod sockets;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
};

use futures::TryStreamExt;
use rtnetlink::{
    Handle, LinkBridge, LinkUnspec,
    packet_route::{
        link::{LinkAttribute, LinkFlags, LinkMessage},
        rule::RuleAction,
    },
};
use selvage_api::edgeproto::CloudletKey;
use tokio::sync::Mutex;

pub(in crate::platform) use self::room::guest_socket;
use self::{
    names::{ClusterNames, InstanceNames, Namer},
    range::CLUSTER_PREFIX,
    room::{Inside, Room},
};
pub use self::{nat::Forwarding, range::Range, rules::Egress};
use crate::{Error, Result, error::During};

/// Before the rule that asks the main table.
const RULE_PRIORITY: u32 = 1000;
/// The interface as a container sees it.
const INSIDE: &str = "eth0";

/// Text that the names of bridges, control groups and rules of a cloudlet have
/// in them.
pub fn prefix(cloudlet: &CloudletKey) -> Result<String> {
    Ok(Namer::new(cloudlet)?.bridges())
}

/// Networks of a cloudlet that are on this machine.
pub(crate) struct Survey {
    /// Bridges of its clusters.
    pub(crate) bridges: Vec<String>,
    /// Network of this machine that has addresses of the cloudlet's range.
    pub(crate) collision: Option<String>,
}

/// Looks at the networks of this machine. Must be called inside a tokio
/// runtime.
pub(crate) async fn survey(cloudlet: &CloudletKey, range: Range) -> Result<Survey> {
    let (namer, networks) = (Namer::new(cloudlet)?, Networks::open(range)?);
    let (bridges, _) = networks.found(&namer).await?;
    Ok(Survey { bridges, collision: networks.collision(&namer).await? })
}

/// The networks of this machine.
#[derive(Clone)]
pub(in crate::platform) struct Networks {
    pub(in crate::platform) handle: Handle,
    range: Range,
    /// The kernel gives one list at a time over one socket.
    pub(in crate::platform) lists: Arc<Mutex<()>>,
}

impl Networks {
    /// Must be called inside a tokio runtime.
    pub(in crate::platform) fn open(range: Range) -> Result<Self> {
        let (connection, handle, _) =
            rtnetlink::new_connection().during("opening the kernel's network socket")?;
        tokio::spawn(connection);
        Ok(Self { handle, range, lists: Arc::default() })
    }

    pub(in crate::platform) fn range(&self) -> Range {
        self.range
    }

    /// Makes a cluster's bridge, or sees that it is as it should be.
    pub(in crate::platform) async fn provide_cluster(
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

    pub(in crate::platform) async fn remove_cluster(&self, names: &ClusterNames) -> Result<()> {
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
    pub(in crate::platform) async fn provide_instance(
        &self,
        cluster: &ClusterNames,
        names: &InstanceNames,
        network: u32,
        address: Ipv4Addr,
    ) -> Result<bool> {
        let gateway = self.range.address(network, 1);
        self.provide_room(cluster, names, Inside::Container { address, gateway }).await
    }

    /// The same of a virtual machine: `address` is this machine's own in that
    /// network, from which the guest learns its own.
    pub(in crate::platform) async fn provide_machine(
        &self,
        bridge: &ClusterNames,
        names: &InstanceNames,
        address: Ipv4Addr,
    ) -> Result<bool> {
        self.provide_room(bridge, names, Inside::Machine { address }).await
    }

    async fn provide_room(
        &self,
        cluster: &ClusterNames,
        names: &InstanceNames,
        inside: Inside,
    ) -> Result<bool> {
        let bridge = self.index(&cluster.bridge).await?.ok_or_else(|| gone(&cluster.bridge))?;
        let path = namespaces::path(&names.namespace);
        let room = Room { path, cable: names.cable.clone(), inside };
        let there = is_mounted(&room.path) && self.index(&names.cable).await?.is_some();
        let there = there && {
            let room = room.clone();
            blocking(move || room.mend()).await?
        };
        if !there {
            tracing::debug!(namespace = names.namespace, "its network is made");
            self.remove_instance(names).await?;
            blocking(move || room.make()).await?;
        }
        self.plug(&names.cable, bridge).await?;
        Ok(there)
    }

    /// Network card for a virtual machine, connected in its namespace. It is
    /// there for as long as the descriptor is.
    pub(in crate::platform) async fn tap(&self, names: &InstanceNames) -> Result<OwnedFd> {
        let path = namespaces::path(&names.namespace);
        blocking(move || room::tap(&path)).await
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

    pub(in crate::platform) async fn remove_instance(&self, names: &InstanceNames) -> Result<()> {
        let path = namespaces::path(&names.namespace);
        blocking(move || namespaces::remove(&path)).await?;
        self.remove_link(&names.cable).await
    }

    /// Removes a namespace that nobody knows; its cable goes with it.
    pub(in crate::platform) async fn remove_namespace(&self, name: &str) -> Result<()> {
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
    pub(in crate::platform) async fn found(
        &self,
        namer: &Namer,
    ) -> Result<(Vec<String>, Vec<String>)> {
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
        Ok(Some(link)) => Ok(Some(link)),
        // The kernel says of one that is not there that it is not. Whoever took
        // silence for that would replace what runs.
        Ok(None) => Err(Error::state(format!("nothing was heard of the interface {name}"))),
        Err(error) if is(&error, GONE) => Ok(None),
        Err(error) => Err(error).during("looking for an interface"),
    }
}

/// Returns whether an address is one of this machine's.
pub(in crate::platform) fn is_ours(address: IpAddr) -> bool {
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

    pub(in crate::platform) const EEXIST: i32 = Errno::EEXIST as i32;
    pub(in crate::platform) const ENODEV: i32 = Errno::ENODEV as i32;
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

pub(in crate::platform) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| Error::state("work on the network was cut off"))?
}

/// Bytes that came in and went out by the cable of the namespace that a
/// process is in.
pub(in crate::platform) fn traffic(pid: u32) -> Option<(u64, u64)> {
    counted(&fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?)
}

fn counted(table: &str) -> Option<(u64, u64)> {
    let row = table.lines().find_map(|line| line.trim().strip_prefix(INSIDE)?.strip_prefix(':'))?;
    let mut columns = row.split_whitespace().map(|column| column.parse().ok());
    Some((columns.next()??, columns.nth(7)??))
}

pub(in crate::platform) fn is_mounted(path: &Path) -> bool {
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
    async fn an_interface_is_gone_only_if_the_kernel_says_so() {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        drop(connection);
        assert!(find_link(&handle, "lo").await.is_err());
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        let connection = tokio::spawn(connection);
        assert!(find_link(&handle, "lo").await.unwrap().is_some());
        assert!(find_link(&handle, "none-such").await.unwrap().is_none());
        connection.abort();
    }

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
}
