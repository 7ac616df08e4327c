//! The way from public ports to instances: through a balancer for everybody,
//! and past it for those whom a forwarder of the platform can serve.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use parking_lot::Mutex;
use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{ClusterInst, IpAccess},
};
use selvage_balancer::{Balancer, Health, Limits, Options, Port, PortStatus, Protocol, Service};
use selvage_edge::access_ports;

use crate::{
    Error, Result,
    platform::{Connections, Forwarder, InstanceFacts, InstanceOrder, Listener, PortForward},
};

/// All balancers of a cloudlet: one for everybody, and one for each cluster
/// with an address of its own.
pub(crate) struct Publisher {
    shared: Vec<IpAddr>,
    tls: Option<Arc<rustls::ServerConfig>>,
    balancers: Mutex<HashMap<Vec<IpAddr>, Balancer>>,
    /// By which addresses an instance is reached.
    places: Mutex<HashMap<String, Vec<IpAddr>>>,
    forwarder: Option<Arc<dyn Forwarder>>,
    /// Listeners of an instance's public ports,
    listeners: Mutex<HashMap<String, Vec<Listener>>>,
    /// the forwards to it past its balancer,
    forwards: Mutex<HashMap<String, Vec<PortForward>>>,
    /// and who was there when they were last counted.
    forwarded: Mutex<HashMap<PortForward, Connections>>,
    /// Order of changes: what the forwarder is given last is what was seen
    /// last.
    turns: tokio::sync::Mutex<()>,
}

impl Publisher {
    pub(crate) fn new(
        shared: Vec<IpAddr>,
        tls: Option<Arc<rustls::ServerConfig>>,
        forwarder: Option<Arc<dyn Forwarder>>,
    ) -> Self {
        Self {
            shared,
            tls,
            balancers: Mutex::default(),
            places: Mutex::default(),
            forwarder,
            listeners: Mutex::default(),
            forwards: Mutex::default(),
            forwarded: Mutex::default(),
            turns: tokio::sync::Mutex::default(),
        }
    }

    /// Leads the ports of an instance to where it is.
    pub(crate) async fn publish(
        &self,
        key: &str,
        order: &InstanceOrder,
        cluster: Option<&ClusterInst>,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let dedicated = cluster.is_some_and(|cluster| cluster.ip_access() == IpAccess::Dedicated);
        let own = order.cluster_facts.as_ref().map(|facts| facts.address).filter(|_| dedicated);
        let addresses = own.map_or_else(|| self.shared.clone(), |own| vec![own]);
        let before = self.places.lock().get(key).cloned();
        if before.is_some_and(|before| before != addresses) {
            self.withdraw(key).await;
        }
        let certified = self.tls.is_some();
        // The port as the controller made it does not say whether it asks for TLS.
        let asked = access_ports::items(&order.app.access_ports)
            .map_err(|error| Error::invalid("access_ports", error.to_string()))?;
        let encrypted =
            |port: &AppPort| access_ports::asks_for_tls(&asked, port.proto(), port.internal_port);
        // Those without a public port are for neighbours in the cluster.
        let ports = order.instance.mapped_ports.iter().filter(|port| port.public_port != 0);
        let ports = ports.map(|port| public_port(port, facts, encrypted(port), certified));
        let ports = ports.collect::<Result<Vec<Port>>>()?;
        let balancer = self.balancer(&addresses);
        let (forwards, listeners) = (forwards(&addresses, &ports), listeners(&addresses, &ports));
        balancer.publish(Service { id: key.to_owned(), ports }).await?;
        self.places.lock().insert(key.to_owned(), addresses);
        self.forwards.lock().insert(key.to_owned(), forwards);
        self.listeners.lock().insert(key.to_owned(), listeners);
        self.set_forwards().await;
        Ok(())
    }

    /// Tells the forwarder which forwards there are. Those to a port that is not
    /// healthy are closed: what the balancer does then holds for everybody.
    async fn set_forwards(&self) {
        let Some(forwarder) = &self.forwarder else { return };
        let _turn = self.turns.lock().await;
        let listeners = self.listeners.lock().values().flatten().copied().collect();
        forwarder.set_listeners(listeners).await;
        let wanted = self.forwards.lock().clone();
        let mut all = BTreeMap::new();
        for (key, forwards) in wanted {
            let status = self.at(&key).and_then(|(_, balancer)| balancer.status(&key));
            let ports = status.map(|status| status.ports).unwrap_or_default();
            let sick = |forward: &PortForward| {
                let of_forward = |port: &&PortStatus| {
                    port.public == forward.public.port()
                        && (port.protocol == Protocol::Udp) == forward.udp
                };
                ports.iter().find(of_forward).is_some_and(|port| port.health.is_unhealthy())
            };
            all.extend(forwards.into_iter().map(|forward| (forward, !sick(&forward))));
        }
        forwarder.set_forwards(all).await;
    }

    /// Opens and closes forwards as the health of ports has it.
    pub(crate) async fn follow_health(&self) {
        if !self.forwards.lock().is_empty() {
            self.set_forwards().await;
        }
    }

    /// Drops what an earlier process had forwarded and nobody has published
    /// again.
    pub(crate) async fn settled(&self) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.settled().await;
        }
    }

    fn balancer(&self, addresses: &[IpAddr]) -> Balancer {
        let mut balancers = self.balancers.lock();
        let made = || {
            let options = Options {
                addresses: addresses.to_vec(),
                tls: self.tls.clone(),
                ..Options::default()
            };
            Balancer::new(options)
        };
        balancers.entry(addresses.to_vec()).or_insert_with(made).clone()
    }

    fn at(&self, key: &str) -> Option<(Vec<IpAddr>, Balancer)> {
        let place = self.places.lock().get(key).cloned()?;
        let balancer = self.balancers.lock().get(&place).cloned()?;
        Some((place, balancer))
    }

    /// Ends what was published of an instance; its ports are free afterwards.
    pub(crate) async fn withdraw(&self, key: &str) {
        let Some((place, balancer)) = self.at(key) else { return };
        let forwards = self.forwards.lock().remove(key).unwrap_or_default();
        self.listeners.lock().remove(key);
        self.set_forwards().await;
        let led = async {
            if let Some(forwarder) = &self.forwarder {
                forwarder.end(forwards, Limits::default().drain).await;
            }
        };
        tokio::join!(balancer.withdraw(key), led);
        self.places.lock().remove(key);
        let unused = !self.places.lock().values().any(|used| *used == place);
        if unused && place != self.shared {
            self.balancers.lock().remove(&place);
            balancer.close().await;
        }
    }

    /// Why an instance does not answer; empty when it does, or nobody can tell.
    pub(crate) fn unhealthy_reason(&self, key: &str) -> String {
        let status = self.at(key).and_then(|(_, balancer)| balancer.status(key));
        match status.map(|status| status.health) {
            Some(Health::Unhealthy { reason, .. }) => reason,
            _ => String::new(),
        }
    }

    /// Addresses of an instance's public ports.
    pub(crate) fn addresses(&self, key: &str) -> Vec<String> {
        let places = self.places.lock();
        places.get(key).into_iter().flatten().map(ToString::to_string).collect()
    }

    /// Counts anew who came past the balancers.
    pub(crate) async fn count(&self) {
        if let Some(forwarder) = &self.forwarder {
            *self.forwarded.lock() = forwarder.connections().await;
        }
    }

    /// Number of connections that an instance has, and has had: those of its
    /// balancer, and those past it as last counted.
    pub(crate) fn connections(&self, key: &str) -> Option<Connections> {
        let (_, balancer) = self.at(key)?;
        let mut sum = Connections::default();
        for port in balancer.status(key)?.ports {
            sum += Connections { active: port.connections as u64, total: port.total };
        }
        let forwarded = self.forwarded.lock();
        for forward in self.forwards.lock().get(key).into_iter().flatten() {
            sum += forwarded.get(forward).copied().unwrap_or_default();
        }
        Some(sum)
    }

    /// Ends everything that needs this process; forwards do not.
    pub(crate) async fn close(&self) {
        let all: Vec<Balancer> = self.balancers.lock().drain().map(|(_, it)| it).collect();
        for balancer in all {
            balancer.close().await;
        }
    }
}

/// A port as a balancer takes it. All HTTP is encrypted where there is a
/// certificate; what asks for encryption never goes without.
fn public_port(
    port: &AppPort,
    facts: &InstanceFacts,
    encrypted: bool,
    certified: bool,
) -> Result<Port> {
    let number = |field: &str, value: i32| {
        u16::try_from(value).ok().filter(|port| *port > 0).ok_or_else(|| {
            Error::invalid(format!("mapped_ports.{field}"), format!("{value} is no port"))
        })
    };
    let protocol = match port.proto() {
        LProto::Udp => Protocol::Udp,
        LProto::Http => Protocol::Http,
        LProto::Tcp | LProto::Unknown => Protocol::Tcp,
    };
    let (public, udp) = (number("public_port", port.public_port)?, protocol == Protocol::Udp);
    if encrypted && !certified {
        let reason = format!(
            "{protocol} port {public} is to speak TLS, and the cloudlet has no certificate for \
             its public ports: crm.https is not set"
        );
        return Err(Error::invalid("access_ports", reason));
    }
    Ok(Port {
        protocol,
        public,
        path_prefix: port.path_prefix.clone(),
        tls: encrypted || (protocol == Protocol::Http && certified),
        targets: vec![facts.place(number("internal_port", port.internal_port)?, udp)],
        health_path: None,
    })
}

/// Listeners of these ports, of IPv4.
fn listeners(addresses: &[IpAddr], ports: &[Port]) -> Vec<Listener> {
    let at = |address: &IpAddr, port: &Port| match address {
        IpAddr::V4(address) => {
            let listener = SocketAddrV4::new(*address, port.public);
            Some((port.protocol == Protocol::Udp, listener))
        }
        IpAddr::V6(_) => None,
    };
    addresses.iter().flat_map(|ip| ports.iter().filter_map(move |port| at(ip, port))).collect()
}

/// The forwards past a balancer at these addresses: of bare tcp and udp, and in
/// IPv4, as far as others than this machine can ask for them.
fn forwards(addresses: &[IpAddr], ports: &[Port]) -> Vec<PortForward> {
    let outer = addresses.iter().filter_map(|address| match address {
        IpAddr::V4(address) if !address.is_loopback() => Some(*address),
        _ => None,
    });
    let outer: Vec<_> = outer.collect();
    let bare = ports.iter().filter(|port| port.protocol != Protocol::Http && !port.tls);
    let led = bare.flat_map(|port| {
        let [SocketAddr::V4(target)] = port.targets[..] else { return Vec::new() };
        let udp = port.protocol == Protocol::Udp;
        let forward = |address: &_| PortForward {
            udp,
            public: SocketAddrV4::new(*address, port.public),
            target,
        };
        outer.iter().map(forward).collect()
    });
    led.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn what_asks_for_encryption_never_goes_without() {
        let address = "10.101.1.2".parse().unwrap();
        let facts = InstanceFacts { containers: Vec::new(), address, places: Vec::new() };
        let port = |proto: LProto, internal_port| AppPort {
            proto: proto.into(),
            internal_port,
            public_port: 443,
            ..AppPort::default()
        };
        for (proto, number, asked, encrypted) in [
            (LProto::Tcp, 8080, true, true),
            (LProto::Tcp, 8082, true, true),
            (LProto::Tcp, 8083, false, false),
            (LProto::Http, 80, true, true),
            (LProto::Http, 81, false, true),
            (LProto::Udp, 8080, false, false),
        ] {
            let port = port(proto, number);
            let made = public_port(&port, &facts, asked, true).unwrap();
            assert_eq!(made.tls, encrypted, "{made:?}");
            let outside = ["198.51.100.4".parse().unwrap()];
            let led = !forwards(&outside, std::slice::from_ref(&made)).is_empty();
            assert_eq!(led, !encrypted, "{made:?}");
            let bare = public_port(&port, &facts, asked, false);
            assert_eq!(bare.is_ok_and(|made| !made.tls), !asked, "{made:?}");
        }
        let refused = public_port(&port(LProto::Tcp, 1), &facts, true, false).unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with("access_ports: tcp port 443"), "{text}");
        assert!(text.contains("crm.https"), "{text}");
    }

    #[test]
    fn forwards_are_for_bare_ports_that_others_can_reach() {
        let port = |protocol, tls| Port {
            protocol,
            public: 80,
            tls,
            targets: vec!["10.101.1.2:8080".parse().unwrap()],
            ..Port::default()
        };
        let addresses = ["127.0.0.1", "0.0.0.0", "::", "198.51.100.4"];
        let addresses = addresses.map(|address| address.parse().unwrap());
        let found = forwards(&addresses, &[port(Protocol::Udp, false)]);
        let public: Vec<_> = found.iter().map(|forward| forward.public.to_string()).collect();
        assert_eq!(public, ["0.0.0.0:80", "198.51.100.4:80"]);
        assert!(
            found.iter().all(|forward| forward.udp && forward.target.port() == 8080),
            "{found:?}"
        );
        let none = [port(Protocol::Http, false), port(Protocol::Tcp, true)];
        assert_eq!(forwards(&addresses, &none), []);
    }
}
