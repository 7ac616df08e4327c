//! Networks that a machine has already and that the range of a cloudlet would
//! collide with: those of its interfaces, and those that it has routes to.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
};

use futures::TryStreamExt;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::LinkAttribute,
        route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType},
    },
};

use super::{Networks, Range, names::Namer};
use crate::{Result, error::During};

/// A network that a machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Network {
    base: Ipv4Addr,
    prefix: u8,
    /// Name of its interface; empty where it has none.
    interface: String,
    kind: &'static str,
}

impl Networks {
    /// Returns a network of this machine, other than the clusters' own, that
    /// has addresses of the range in it.
    pub(in crate::platform) async fn collision(&self, namer: &Namer) -> Result<Option<String>> {
        let names = self.interfaces().await?;
        let mut found = self.addresses(&names).await?;
        found.extend(self.routes(&names).await?);
        let ours = namer.interfaces();
        found.retain(|network| !ours.iter().any(|own| network.interface.starts_with(own)));
        Ok(found.iter().find(|network| network.meets(self.range())).map(Network::to_string))
    }

    /// Networks with public addresses that this machine is in, other than those of
    /// these bridges: they are its operator's. Private ones nobody reaches anyway.
    pub(in crate::platform) async fn connected(&self, bridges: &str) -> Result<BTreeSet<String>> {
        let found = self.addresses(&self.interfaces().await?).await?;
        let own = |network: &&Network| {
            let private = network.base.is_private() || network.base.is_loopback();
            !private && !network.interface.starts_with(bridges)
        };
        Ok(found.iter().filter(own).map(Network::masked).collect())
    }

    async fn interfaces(&self) -> Result<HashMap<u32, String>> {
        let _listing = self.lists.lock().await;
        let mut links = self.handle.link().get().execute();
        let mut names = HashMap::new();
        while let Some(link) = links.try_next().await.during("listing interfaces")? {
            let index = link.header.index;
            names.extend(link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some((index, name)),
                _ => None,
            }));
        }
        Ok(names)
    }

    async fn addresses(&self, names: &HashMap<u32, String>) -> Result<Vec<Network>> {
        let _listing = self.lists.lock().await;
        let mut addresses = self.handle.address().get().execute();
        let mut found = Vec::new();
        while let Some(message) = addresses.try_next().await.during("listing addresses")? {
            let base = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(std::net::IpAddr::V4(address)) => Some(*address),
                _ => None,
            });
            let interface = names.get(&message.header.index).cloned().unwrap_or_default();
            let prefix = message.header.prefix_len;
            found.extend(base.map(|base| Network { base, prefix, interface, kind: "address" }));
        }
        Ok(found)
    }

    async fn routes(&self, names: &HashMap<u32, String>) -> Result<Vec<Network>> {
        let _listing = self.lists.lock().await;
        let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let mut routes = self.handle.route().get(all).execute();
        let mut found = Vec::new();
        while let Some(route) = routes.try_next().await.during("listing routes")? {
            found.extend(network_of(&route, names));
        }
        Ok(found)
    }
}

/// Network that a route of the main table leads to; none of a default route.
fn network_of(route: &RouteMessage, names: &HashMap<u32, String>) -> Option<Network> {
    let header = &route.header;
    let prefix = header.destination_prefix_length;
    if header.table != RouteHeader::RT_TABLE_MAIN
        || header.kind != RouteType::Unicast
        || prefix == 0
    {
        return None;
    }
    let base = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
        _ => None,
    })?;
    let interface = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => names.get(index).cloned(),
        _ => None,
    });
    Some(Network { base, prefix, interface: interface.unwrap_or_default(), kind: "route" })
}

impl Network {
    /// The network that an address is in.
    fn masked(&self) -> String {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        format!("{}/{}", Ipv4Addr::from(u32::from(self.base) & mask), self.prefix)
    }

    fn meets(&self, range: Range) -> bool {
        range.meets(self.base, self.prefix)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.base, self.prefix)?;
        if self.interface.is_empty() { Ok(()) } else { write!(f, " of {}", self.interface) }
    }
}
