//! VXLAN to machines that no network is shared with: routers between do not know the
//! addresses of pods, and see packets between machines instead.

use std::collections::BTreeSet;

use selvage_api::selvage::kubernetes::{MemberSpec, Route};
use sha2::{Digest, Sha256};

use super::{PROTOCOL, run};
use crate::{Error, Result};

/// Device that packets for such machines leave by.
pub(super) const DEVICE: &str = "slv-vxlan";
/// Number of our network among those of the same port.
const NETWORK: &str = "8485";
/// UDP port, as IANA has it.
const PORT: &str = "4789";

/// Machine on another network, with the addresses of its pods.
pub(super) struct Peer<'a> {
    route: &'a Route,
    /// Device by which the machine is reached.
    device: String,
}

impl<'a> Peer<'a> {
    /// Returns a peer where a router is on the way to the machine, none where they share
    /// a network.
    pub(super) async fn of(route: &'a Route) -> Result<Option<Peer<'a>>> {
        let found = run("ip", &["-o", "route", "get", &route.address], None).await?;
        match device_behind_router(&found) {
            Some(device) => Ok(Some(Self { route, device: device.to_owned() })),
            None => Ok(None),
        }
    }
}

/// Device of a route as `ip route get` prints it, if it leads over a router.
fn device_behind_router(found: &str) -> Option<&str> {
    let after = |word: &str| {
        let mut words = found.split_whitespace().skip_while(|one| *one != word);
        words.nth(1)
    };
    after("via").and(after("dev"))
}

/// First address of a machine's pods, which none of them has: the machine's own in the
/// overlay.
fn inner_address(pod_cidr: &str) -> &str {
    pod_cidr.split_once('/').map_or(pod_cidr, |(address, _)| address)
}

/// Link address of a machine's device, which all others can compute.
fn link_address(machine: &str) -> String {
    let digest = Sha256::digest(machine);
    let bytes: Vec<String> = digest[..5].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("02:{}", bytes.join(":"))
}

/// Makes the overlay lead to these machines and to no other; without any there is none.
pub(super) async fn apply(spec: &MemberSpec, own_pods: &str, peers: &[Peer<'_>]) -> Result<()> {
    let Some(first) = peers.first() else {
        return remove().await.map(drop);
    };
    make_device(&spec.address, &first.device).await?;
    let own = format!("{}/32", inner_address(own_pods));
    run("ip", &["address", "replace", &own, "dev", DEVICE], None).await?;
    run("ip", &["link", "set", DEVICE, "up"], None).await?;
    for peer in peers {
        let Route { pod_cidr, address, .. } = peer.route;
        let (inner, link) = (inner_address(pod_cidr), link_address(address));
        let neighbour = ["neigh", "replace", inner, "lladdr", &link, "dev", DEVICE];
        run("ip", &[&neighbour[..], &["nud", "permanent"]].concat(), None).await?;
        run("bridge", &["fdb", "replace", &link, "dev", DEVICE, "dst", address], None).await?;
        let route = ["route", "replace", pod_cidr, "via", inner, "dev", DEVICE, "onlink"];
        run("ip", &[&route[..], &["proto", PROTOCOL]].concat(), None).await?;
    }
    forget_others(peers).await
}

/// Makes the device; one that is there for another address or device is made anew.
async fn make_device(address: &str, device: &str) -> Result<()> {
    let link = link_address(address);
    let shown = run("ip", &["-d", "-o", "link", "show", "dev", DEVICE], None).await;
    let wanted = [format!(" local {address} "), format!(" dev {device} "), format!(" {link} ")];
    match shown {
        Ok(text) if wanted.iter().all(|words| text.contains(words)) => return Ok(()),
        Ok(_) => drop(remove().await?),
        Err(_) => {}
    }
    let made = ["link", "add", DEVICE, "address", &link, "type", "vxlan", "id", NETWORK];
    let ends = ["dstport", PORT, "local", address, "dev", device, "nolearning"];
    run("ip", &[&made[..], &ends].concat(), None).await.map(drop)
}

/// Removes what leads to machines that are no longer there.
async fn forget_others(peers: &[Peer<'_>]) -> Result<()> {
    let links: BTreeSet<String> =
        peers.iter().map(|peer| link_address(&peer.route.address)).collect();
    let shown = run("bridge", &["fdb", "show", "dev", DEVICE], None).await?;
    for line in shown.lines() {
        let mut words = line.split(' ');
        let (Some(link), Some("dst"), Some(address)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !links.contains(link) {
            run("bridge", &["fdb", "delete", link, "dev", DEVICE, "dst", address], None).await?;
        }
    }
    let inner: BTreeSet<&str> =
        peers.iter().map(|peer| inner_address(&peer.route.pod_cidr)).collect();
    let shown = run("ip", &["neigh", "show", "dev", DEVICE, "nud", "permanent"], None).await?;
    for address in shown.lines().filter_map(|line| line.split(' ').next()) {
        if !inner.contains(address) {
            run("ip", &["neigh", "delete", address, "dev", DEVICE], None).await?;
        }
    }
    Ok(())
}

/// Removes the overlay; tells whether there was one.
pub(super) async fn remove() -> Result<bool> {
    let gone = run("ip", &["link", "delete", DEVICE], None).await;
    match gone {
        Ok(_) => Ok(true),
        Err(Error::Program { text, .. }) if text.contains("Cannot find device") => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_is_for_machines_behind_a_router() {
        let far = "10.9.0.1 via 10.1.0.2 dev eth0 src 10.1.0.1 uid 0 \\    cache ";
        assert_eq!(device_behind_router(far), Some("eth0"));
        let near = "10.1.0.9 dev eth0 src 10.1.0.1 uid 0 \\    cache ";
        assert_eq!(device_behind_router(near), None);
    }

    #[test]
    fn link_addresses_are_local_and_differ() {
        let (one, other) = (link_address("10.0.0.1"), link_address("10.0.0.2"));
        assert!(one.starts_with("02:") && one.len() == 17, "{one}");
        assert_ne!(one, other);
    }
}
