//! `network.NetworkService`: routes and interfaces, as the kernel tells them
//! over netlink.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use futures::TryStreamExt;
use rtnetlink::{
    Handle, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressMessage},
        link::{LinkAttribute, LinkFlags, LinkMessage},
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteNextHop},
    },
};
use selvage_api::{
    Code,
    network::{
        Interface, Interfaces, InterfacesResponse, Route, Routes, RoutesResponse,
        network_service_server::{NetworkService, NetworkServiceServer},
    },
};
use tonic::{Request, Response, Status};

/// Timeout of the kernel.
const NETLINK_TIMEOUT: Duration = Duration::from_secs(2);

/// Errors of reading the network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel cannot be asked.
    #[error("the kernel cannot be asked about its network: {0}")]
    Open(std::io::Error),
    /// The kernel does not tell.
    #[error("{what}: {error}")]
    Ask {
        /// Thing that was asked for.
        what: &'static str,
        /// Error of the kernel.
        error: rtnetlink::Error,
    },
    /// The kernel does not answer.
    #[error("the kernel does not answer about its network")]
    Late,
}

impl Error {
    /// Code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Open(_) | Self::Late => Code::Unavailable,
            Self::Ask { .. } => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code().grpc(), error.to_string())
    }
}

/// Serves the contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkApi;

impl NetworkApi {
    /// The server to mount.
    pub fn service(self) -> NetworkServiceServer<Self> {
        NetworkServiceServer::new(self)
    }
}

#[tonic::async_trait]
impl NetworkService for NetworkApi {
    async fn routes(&self, _: Request<()>) -> Result<Response<RoutesResponse>, Status> {
        let routes = ask(async |handle| routes(&handle).await).await?;
        Ok(Response::new(RoutesResponse { messages: vec![Routes { metadata: None, routes }] }))
    }

    async fn interfaces(&self, _: Request<()>) -> Result<Response<InterfacesResponse>, Status> {
        let interfaces = ask(async |handle| interfaces(&handle).await).await?;
        let messages = vec![Interfaces { metadata: None, interfaces }];
        Ok(Response::new(InterfacesResponse { messages }))
    }
}

/// A conversation with the kernel, over when this returns.
async fn ask<T>(question: impl AsyncFnOnce(Handle) -> Result<T, Error>) -> Result<T, Error> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Open)?;
    let answered = async {
        tokio::select! {
            answer = question(handle) => answer,
            () = connection => Err(Error::Late),
        }
    };
    tokio::time::timeout(NETLINK_TIMEOUT, answered).await.unwrap_or(Err(Error::Late))
}

async fn links(handle: &Handle) -> Result<Vec<LinkMessage>, Error> {
    let links: Result<Vec<_>, _> = handle.link().get().execute().try_collect().await;
    links.map_err(|error| Error::Ask { what: "listing interfaces", error })
}

async fn interfaces(handle: &Handle) -> Result<Vec<Interface>, Error> {
    let addresses: Result<Vec<_>, _> = handle.address().get().execute().try_collect().await;
    let addresses = addresses.map_err(|error| Error::Ask { what: "listing addresses", error })?;
    let mut by_index: HashMap<u32, Vec<String>> = HashMap::new();
    for address in &addresses {
        if let Some(text) = cidr(address) {
            by_index.entry(address.header.index).or_default().push(text);
        }
    }
    let links = links(handle).await?;
    let mut interfaces: Vec<Interface> = links
        .iter()
        .map(|link| interface(link, by_index.remove(&link.header.index).unwrap_or_default()))
        .collect();
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// An interface's own address; on a line with two ends not the other one's.
fn cidr(address: &AddressMessage) -> Option<String> {
    let find =
        |pick: fn(&AddressAttribute) -> Option<IpAddr>| address.attributes.iter().find_map(pick);
    let own = find(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let listed = find(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    });
    own.or(listed).map(|ip| format!("{ip}/{}", address.header.prefix_len))
}

fn interface(link: &LinkMessage, ipaddress: Vec<String>) -> Interface {
    let mut interface = Interface { index: link.header.index, ipaddress, ..Interface::default() };
    interface.flags = flags(link.header.flags);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name.clone(),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Address(bytes) if bytes.iter().any(|byte| *byte != 0) => {
                let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                interface.hardwareaddr = hex.join(":");
            }
            _ => {}
        }
    }
    interface
}

/// The flags added up as the original has them, one bit each.
fn flags(kernel: LinkFlags) -> i32 {
    const BITS: [(LinkFlags, i32); 5] = [
        (LinkFlags::Up, 1),
        (LinkFlags::Broadcast, 1 << 1),
        (LinkFlags::Loopback, 1 << 2),
        (LinkFlags::Pointopoint, 1 << 3),
        (LinkFlags::Multicast, 1 << 4),
    ];
    BITS.iter().filter(|(flag, _)| kernel.contains(*flag)).map(|(_, bit)| bit).sum()
}

async fn routes(handle: &Handle) -> Result<Vec<Route>, Error> {
    let links = links(handle).await?;
    let names: HashMap<u32, String> =
        links.iter().map(|link| (link.header.index, interface(link, Vec::new()).name)).collect();
    let mut routes = Vec::new();
    let four = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
    let six = RouteMessageBuilder::<std::net::Ipv6Addr>::new().build();
    for question in [four, six] {
        let listed: Result<Vec<_>, _> = handle.route().get(question).execute().try_collect().await;
        let listed = listed.map_err(|error| Error::Ask { what: "listing routes", error })?;
        routes.extend(listed.iter().flat_map(|message| rows(message, &names)));
    }
    Ok(routes)
}

/// One row for each next hop.
fn rows(message: &RouteMessage, names: &HashMap<u32, String>) -> Vec<Route> {
    let header = &message.header;
    let mut base = Route {
        scope: u32::from(u8::from(header.scope)),
        family: i32::from(u8::from(header.address_family)),
        protocol: i32::from(u8::from(header.protocol)),
        flags: header.flags.bits(),
        destination: match header.address_family {
            AddressFamily::Inet6 => "::/0".into(),
            _ => "0.0.0.0/0".into(),
        },
        ..Route::default()
    };
    let mut hops: &[RouteNextHop] = &[];
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                let length = header.destination_prefix_length;
                base.destination = format!("{}/{length}", text(address));
            }
            RouteAttribute::Priority(metric) => base.metric = *metric,
            RouteAttribute::PrefSource(address) => base.source = text(address),
            RouteAttribute::MultiPath(several) => hops = several,
            other => add_destination(&mut base, other, names),
        }
    }
    if hops.is_empty() {
        return vec![base];
    }
    let through = |hop: &RouteNextHop| {
        let mut route = base.clone();
        route.interface = names.get(&hop.interface_index).cloned().unwrap_or_default();
        hop.attributes.iter().for_each(|attribute| add_destination(&mut route, attribute, names));
        route
    };
    hops.iter().map(through).collect()
}

/// Adds the destination of a route.
fn add_destination(route: &mut Route, attribute: &RouteAttribute, names: &HashMap<u32, String>) {
    match attribute {
        RouteAttribute::Gateway(address) => route.gateway = text(address),
        RouteAttribute::Oif(index) => {
            route.interface = names.get(index).cloned().unwrap_or_default();
        }
        _ => {}
    }
}

fn text(address: &RouteAddress) -> String {
    match address {
        RouteAddress::Inet(ip) => ip.to_string(),
        RouteAddress::Inet6(ip) => ip.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_loopback_is_listed() {
        let reply = NetworkApi.interfaces(Request::new(())).await.unwrap().into_inner();
        assert_eq!(reply.messages.len(), 1);
        let interfaces = &reply.messages[0].interfaces;
        let loopback = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
        assert_eq!(loopback.flags, 1 | 1 << 2, "up and loopback");
        assert!(loopback.ipaddress.contains(&"127.0.0.1/8".to_owned()), "{loopback:?}");
        assert!(loopback.mtu > 0 && loopback.hardwareaddr.is_empty(), "{loopback:?}");
        assert!(interfaces.is_sorted_by_key(|interface| interface.index));
    }

    #[tokio::test]
    async fn routes_name_their_interface_and_network() {
        let reply = NetworkApi.routes(Request::new(())).await.unwrap().into_inner();
        let routes = &reply.messages[0].routes;
        let local = routes.iter().find(|route| route.destination.starts_with("127.0.0.")).unwrap();
        assert_eq!((local.interface.as_str(), local.family), ("lo", 2));
        assert_eq!(local.protocol, 2, "set by the kernel");
        assert!(routes.iter().all(|route| route.destination.contains('/')), "{routes:?}");
    }

    #[test]
    fn a_default_route_over_two_hops_is_two_rows() {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let hop = |index: u32, last: u8| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            let gateway = IpAddr::from([10, 0, 0, last]);
            hop.attributes = vec![RouteAttribute::Gateway(gateway.into())];
            hop
        };
        message.attributes = vec![
            RouteAttribute::Priority(100),
            RouteAttribute::MultiPath(vec![hop(1, 1), hop(2, 2)]),
        ];
        let names = HashMap::from([(1, "eth0".to_owned()), (2, "eth1".to_owned())]);
        let read: Vec<_> = rows(&message, &names)
            .into_iter()
            .map(|route| (route.interface, route.gateway, route.destination, route.metric))
            .collect();
        let row = |interface: &str, gateway: &str| {
            (interface.to_owned(), gateway.to_owned(), "0.0.0.0/0".to_owned(), 100)
        };
        assert_eq!(read, [row("eth0", "10.0.0.1"), row("eth1", "10.0.0.2")]);
    }
}
