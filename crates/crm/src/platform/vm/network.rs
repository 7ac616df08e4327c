//! The network of a machine: a bridge and a namespace of its own, with the rules
//! that networks of containers have, and a server that tells the guest its
//! address.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use selvage_api::edgeproto::{AppInstKey, CloudletKey};

use super::{
    Options,
    dhcp::{Lease, Servers},
    machine::Network,
    names::Names,
};
use crate::{
    Error, Result,
    platform::{
        Forwarder,
        network::{
            Networks, Range,
            names::{InstanceNames, Namer},
            namespaces,
            nat::Nat,
            rules,
        },
    },
};

/// Addresses in the network of a machine: of the bridge, of the guest, and of
/// the namespace that the guest is in.
const GATEWAY: u8 = 1;
const GUEST: u8 = 2;
const SERVER: u8 = 254;
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// The networks of all machines.
pub(super) struct Networking {
    namer: Namer,
    networks: Networks,
    nat: Arc<Nat>,
    servers: Servers,
}

impl Networking {
    /// Must be called inside a tokio runtime.
    pub(super) fn open(cloudlet: &CloudletKey, options: &Options) -> Result<Self> {
        let (namer, networks) = (Namer::new(cloudlet)?, Networks::open(options.range)?);
        let (forwarding, egress) = (options.forwarding, options.egress.clone());
        let nat = Nat::new(&namer, networks.clone(), forwarding, egress);
        Ok(Self { networks, nat: Arc::new(nat), namer, servers: Servers::default() })
    }

    fn range(&self) -> Range {
        self.networks.range()
    }

    /// Fails if guests cannot be kept from this machine and its networks.
    pub(super) async fn check(&self) -> Result<()> {
        self.nat.check().await
    }

    pub(super) fn forwarder(&self) -> Arc<dyn Forwarder> {
        Arc::<Nat>::clone(&self.nat)
    }

    /// Addresses that guests can have, each in a network of its own. The first
    /// network is left out: its first address is the range's own.
    pub(super) fn addresses(&self) -> impl DoubleEndedIterator<Item = Ipv4Addr> + use<> {
        let range = self.range();
        (1..range.size()).map(move |network| range.address(network, GUEST))
    }

    pub(super) fn full(&self) -> Error {
        let networks = self.range().size() - 1;
        Error::state(format!("all {networks} networks of the cloudlet are in use"))
    }

    /// Returns whether the network of an address is there.
    pub(super) fn is_used(&self, address: Ipv4Addr) -> bool {
        self.number(address)
            .is_ok_and(|number| crate::platform::network::is_ours(self.at(number, GATEWAY).into()))
    }

    fn number(&self, address: Ipv4Addr) -> Result<u32> {
        let number = self.range().network_of(address);
        number.ok_or_else(|| Error::state(format!("{address} is not in the cloudlet's range")))
    }

    fn at(&self, number: u32, host: u8) -> Ipv4Addr {
        self.range().address(number, host)
    }

    /// Makes the network of a machine, or what is missing of it; whether its
    /// namespace was there.
    pub(super) async fn provide(
        &self,
        key: &AppInstKey,
        names: &Names,
        address: Ipv4Addr,
    ) -> Result<bool> {
        let (bridge, own) = (self.namer.machine(key)?, self.namer.instance(key)?);
        let number = self.number(address)?;
        let (gateway, server) = (self.at(number, GATEWAY), self.at(number, SERVER));
        self.networks.provide_cluster(&bridge, number, IpAddr::V4(gateway)).await?;
        self.nat.open().await?;
        let there = self.networks.provide_machine(&bridge, &own, server).await?;
        if !there {
            self.servers.end(&names.machine).await;
        }
        let lease = Lease {
            mac: names.mac,
            address,
            mask: MASK,
            gateway,
            server,
            name_servers: rules::name_servers(),
        };
        let namespace = namespaces::path(&own.namespace);
        self.servers.provide(&names.machine, &namespace, lease).await?;
        Ok(there)
    }

    /// A network card for a machine that starts.
    pub(super) async fn plug(&self, key: &AppInstKey) -> Result<Network> {
        let own = self.namer.instance(key)?;
        let card = self.networks.tap(&own).await?;
        Ok(Network { namespace: namespaces::path(&own.namespace), card })
    }

    /// Removes the network of a machine; with the last one go the rules of all.
    pub(super) async fn remove(&self, key: &AppInstKey, names: &Names) -> Result<()> {
        self.servers.end(&names.machine).await;
        self.networks.remove_instance(&self.namer.instance(key)?).await?;
        self.networks.remove_cluster(&self.namer.machine(key)?).await?;
        let (bridges, _) = self.networks.found(&self.namer).await?;
        if bridges.is_empty() { self.nat.close().await } else { Ok(()) }
    }

    /// Removes networks of machines that are none of these; says which.
    pub(super) async fn sweep(&self, known: &[AppInstKey]) -> Result<Vec<String>> {
        let own = known.iter().map(|key| self.namer.instance(key));
        let own: Vec<InstanceNames> = own.collect::<Result<_>>()?;
        let kept = known.iter().map(|key| Ok(self.namer.machine(key)?.bridge));
        let kept: Vec<String> = kept.collect::<Result<_>>()?;
        let (bridges, namespaces) = self.networks.found(&self.namer).await?;
        let mut swept = Vec::new();
        for namespace in namespaces {
            if own.iter().all(|names| names.namespace != namespace) {
                self.networks.remove_namespace(&namespace).await?;
                swept.push(format!("network namespace {namespace}"));
            }
        }
        for bridge in bridges {
            if !kept.contains(&bridge) {
                self.networks.remove_cluster(&Namer::behind(bridge.clone())).await?;
                swept.push(format!("bridge {bridge}"));
            }
        }
        if known.is_empty()
            && let Err(error) = self.nat.close().await
        {
            tracing::debug!(%error, "rules that nothing needs may be left");
        }
        Ok(swept)
    }
}
