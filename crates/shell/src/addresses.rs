//! Addresses of this machine at which the other end may reach it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use futures::TryStreamExt;
use rtnetlink::packet_route::address::AddressAttribute;

/// Every address is tried with every one of the other end; more than these
/// only delay.
const MAX_ADDRESSES: usize = 8;
/// Timeout of the kernel's list of addresses.
const LIST_TIMEOUT: Duration = Duration::from_millis(500);
/// Somewhere behind every router; nothing is sent there.
const REMOTE_PROBES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// This machine's addresses, the likeliest first: those from which the other
/// end's are reached, the one to the world, loopback, and the rest.
pub(crate) async fn usable(others: &[IpAddr]) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let sources = others.iter().chain(&REMOTE_PROBES).filter_map(|there| source(*there));
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
    for address in sources.chain(loopback).chain(listed().await) {
        if is_usable(address) && !found.contains(&address) {
            found.push(address);
        }
    }
    found.truncate(MAX_ADDRESSES);
    found
}

/// Source address of packets to `there`.
fn source(there: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match there {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(there, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// All addresses of all interfaces; none where the kernel does not tell.
async fn listed() -> Vec<IpAddr> {
    let Ok((connection, handle, _)) = rtnetlink::new_connection() else { return Vec::new() };
    let asking = async {
        tokio::select! {
            messages = handle.address().get().execute().try_collect::<Vec<_>>() => messages.ok(),
            () = connection => None,
        }
    };
    let messages =
        tokio::time::timeout(LIST_TIMEOUT, asking).await.ok().flatten().unwrap_or_default();
    let attributes = messages.into_iter().flat_map(|message| message.attributes);
    let own = attributes.filter_map(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(ip),
        _ => None,
    });
    own.collect()
}

/// Addresses of one link mean nothing without the link's name.
fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_unspecified() && !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_unspecified() && !ip.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_machine_is_reached_at_loopback_and_from_where_it_is_asked() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let found = usable(&[loopback]).await;
        assert_eq!(found.first(), Some(&loopback));
        assert!(found.len() <= MAX_ADDRESSES);
        assert!(usable(&[]).await.contains(&loopback));
        assert!(found.iter().all(|address| is_usable(*address)));
    }
}
