//! The way from public ports to instances.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use selvage_api::{
    distributed_match_engine::LProto,
    edgeproto::{AppInst, ClusterInst, IpAccess},
};
use selvage_balancer::{Balancer, Health, Options, Port, Protocol, Service};

use crate::{Error, Result, platform::InstanceFacts};

/// All balancers of a cloudlet: one for everybody, and one for each cluster
/// with an address of its own.
pub(crate) struct Publisher {
    shared: Vec<IpAddr>,
    tls: Option<Arc<rustls::ServerConfig>>,
    balancers: Mutex<HashMap<Vec<IpAddr>, Balancer>>,
    /// By which addresses an instance is reached.
    places: Mutex<HashMap<String, Vec<IpAddr>>>,
}

impl Publisher {
    pub(crate) fn new(shared: Vec<IpAddr>, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        Self { shared, tls, balancers: Mutex::default(), places: Mutex::default() }
    }

    /// Leads the ports of an instance to where it is.
    pub(crate) async fn publish(
        &self,
        key: &str,
        instance: &AppInst,
        cluster: Option<&ClusterInst>,
        own: Option<IpAddr>,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let dedicated = cluster.is_some_and(|cluster| cluster.ip_access() == IpAccess::Dedicated);
        let own = own.filter(|_| dedicated);
        let addresses = own.map_or_else(|| self.shared.clone(), |own| vec![own]);
        let before = self.places.lock().get(key).cloned();
        if before.is_some_and(|before| before != addresses) {
            self.withdraw(key).await;
        }
        let ports = instance.mapped_ports.iter();
        let ports = ports.map(|port| {
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
            Ok(Port {
                protocol,
                public: number("public_port", port.public_port)?,
                path_prefix: port.path_prefix.clone(),
                tls: protocol == Protocol::Http && self.tls.is_some(),
                targets: vec![facts.place(
                    number("internal_port", port.internal_port)?,
                    protocol == Protocol::Udp,
                )],
                health_path: None,
            })
        });
        let ports = ports.collect::<Result<Vec<Port>>>()?;
        let balancer = self.balancer(&addresses);
        balancer.publish(Service { id: key.to_owned(), ports }).await?;
        self.places.lock().insert(key.to_owned(), addresses);
        Ok(())
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
        balancer.withdraw(key).await;
        self.places.lock().remove(key);
        let unused = !self.places.lock().values().any(|used| *used == place);
        if unused && place != self.shared {
            self.balancers.lock().remove(&place);
            balancer.close().await;
        }
    }

    /// Why an instance does not answer; empty when it does, or nobody can tell.
    pub(crate) fn trouble(&self, key: &str) -> String {
        let status = self.at(key).and_then(|(_, balancer)| balancer.status(key));
        match status.map(|status| status.health) {
            Some(Health::Unhealthy { reason, .. }) => reason,
            _ => String::new(),
        }
    }

    /// Where an instance's public ports are.
    pub(crate) fn addresses(&self, key: &str) -> Vec<String> {
        let places = self.places.lock();
        places.get(key).into_iter().flatten().map(ToString::to_string).collect()
    }

    /// How many connections an instance has, and has had.
    pub(crate) fn connections(&self, key: &str) -> Option<(u64, u64)> {
        let (_, balancer) = self.at(key)?;
        let status = balancer.status(key)?;
        let add = |sum: (u64, u64), port: &selvage_balancer::PortStatus| {
            (sum.0 + port.connections as u64, sum.1 + port.total)
        };
        Some(status.ports.iter().fold((0, 0), add))
    }

    /// Ends everything.
    pub(crate) async fn close(&self) {
        let all: Vec<Balancer> = self.balancers.lock().drain().map(|(_, it)| it).collect();
        for balancer in all {
            balancer.close().await;
        }
    }
}
