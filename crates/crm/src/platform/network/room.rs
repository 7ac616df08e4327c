//! The network namespace of an instance, seen from inside.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    sched::CloneFlags,
    sys::socket::{setsockopt, sockopt::BindToDevice},
};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::link::{InfoData, InfoKind, InfoVeth},
};

use super::{CLUSTER_PREFIX, EXISTS, INSIDE, find_link, gone, namespaces, tolerate};
use crate::{Error, Result, error::During};

/// Bridge in the namespace of a virtual machine, between cable and tap.
const JUNCTION: &str = "guest";
/// Network card of a virtual machine.
const TAP: &str = "tap0";

/// The namespace of an instance, with its end of a cable.
#[derive(Clone)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// The other end.
    pub(super) cable: String,
    pub(super) inside: Inside,
}

/// Inhabitant of a namespace.
#[derive(Clone, Copy)]
pub(super) enum Inside {
    /// A container, with the address of the instance.
    Container { address: Ipv4Addr, gateway: Ipv4Addr },
    /// A virtual machine, beside an address of ours.
    Machine { address: Ipv4Addr },
}

impl Room {
    pub(super) fn make(self) -> Result<()> {
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
    pub(super) fn mend(self) -> Result<bool> {
        on_a_thread(move || {
            enter(&self.path)?;
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
        handle.link().set(up(1)).execute().await.during("setting the loopback up")?;
        let Some(link) = find_link(handle, INSIDE).await? else { return Ok(false) };
        let cable = link.header.index;
        match self.inside {
            Inside::Container { address, gateway } => {
                give_address(handle, cable, address).await?;
                handle.link().set(up(cable)).execute().await.during("setting the cable up")?;
                let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
                let added = handle.route().add(route).execute().await;
                tolerate(added, EXISTS).during("adding the way out")?;
            }
            // No way out: what the guest sends is not for this namespace, and
            // what runs the guest has nobody else to talk to.
            Inside::Machine { address } => {
                let made = handle.link().add(LinkBridge::new(JUNCTION).build()).execute().await;
                tolerate(made, EXISTS).during("making a bridge")?;
                let junction = junction(handle).await?;
                give_address(handle, junction, address).await?;
                handle.link().set(up(junction)).execute().await.during("setting a bridge up")?;
                plug(handle, cable, junction).await?;
            }
        }
        Ok(true)
    }
}

fn up(index: u32) -> rtnetlink::packet_route::link::LinkMessage {
    LinkUnspec::new_with_index(index).up().build()
}

async fn give_address(handle: &Handle, link: u32, address: Ipv4Addr) -> Result<()> {
    let added = handle.address().add(link, IpAddr::V4(address), CLUSTER_PREFIX);
    tolerate(added.execute().await, EXISTS).during("giving an instance its address")
}

async fn junction(handle: &Handle) -> Result<u32> {
    let found = find_link(handle, JUNCTION).await?;
    found.map(|link| link.header.index).ok_or_else(|| gone(JUNCTION))
}

async fn plug(handle: &Handle, link: u32, bridge: u32) -> Result<()> {
    let plugged = LinkUnspec::new_with_index(link).controller(bridge).up().build();
    handle.link().set(plugged).execute().await.during("connecting to the bridge")
}

/// Makes the network card of a virtual machine in its namespace.
pub(super) fn tap(path: &Path) -> Result<OwnedFd> {
    let path = path.to_owned();
    on_a_thread(move || {
        enter(&path)?;
        let tap = selvage_memory::tap(TAP).during("making a machine's network card")?;
        in_here(async |handle| {
            let link = find_link(handle, TAP).await?.ok_or_else(|| gone(TAP))?;
            plug(handle, link.header.index, junction(handle).await?).await
        })?;
        Ok(tap)
    })
}

/// Socket for datagrams between this process and a virtual machine.
pub(in crate::platform) fn guest_socket(path: &Path, port: u16) -> Result<UdpSocket> {
    let path = path.to_owned();
    on_a_thread(move || {
        enter(&path)?;
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            socket.set_broadcast(true)?;
            socket.set_nonblocking(true)?;
            setsockopt(&socket, BindToDevice, &JUNCTION.into())?;
            Ok(socket)
        };
        open().during("listening to a machine")
    })
}

/// Enters a namespace, with this thread alone.
fn enter(path: &Path) -> Result<()> {
    let namespace = File::open(path).during("opening a namespace")?;
    nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).during("entering a namespace")
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
