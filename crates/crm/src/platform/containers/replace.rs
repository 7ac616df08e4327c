//! Replacing an instance without a moment in which nothing serves.
//!
//! An instance has two places, each with a container name and a network of its
//! own. The new version is started in the one that is free and has to prove
//! itself; until then the old one serves, and it stays if the new one fails.
//! An instance with volumes cannot have two that write to them: there the old
//! one is stopped for the proof, and started again if that fails.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use selvage_api::edgeproto::AppInstKey;
use selvage_balancer::Limits;
use tokio::{net::TcpStream, time::Instant};

use super::{Containers, HOSTS, PROBE_INTERVAL, first_tcp_port, volumes};
use crate::{
    Error, Result,
    platform::{
        InstanceFacts, InstanceOrder, ListenWait,
        network::{names::InstanceNames, sockets},
    },
};

/// Time that a container without a tcp port has to keep running to count as
/// started.
const PROBATION: Duration = Duration::from_secs(3);
/// Time between TERM and KILL for a container that is replaced.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Interval of checking whether anybody is left in one that is replaced,
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// and number of checks in a row that find nobody: who was led there just now
/// may be on the way.
const QUIET_LOOKS: u32 = 3;

impl Containers {
    /// Name that volumes and the record of who serves go by, whichever place is
    /// in use.
    pub(super) fn owner(&self, key: &AppInstKey) -> Result<String> {
        Ok(self.namer.instance(key)?.container)
    }

    /// Names of the place that these facts speak of, and of the other one.
    pub(super) fn places_of(
        &self,
        key: &AppInstKey,
        facts: &InstanceFacts,
    ) -> Result<(InstanceNames, InstanceNames)> {
        let (first, second) = (self.namer.instance(key)?, self.namer.standby(key)?);
        let in_second = facts.containers.first() == Some(&second.container);
        Ok(if in_second { (second, first) } else { (first, second) })
    }

    /// Name of the container that serves.
    pub(super) fn serving(&self, key: &AppInstKey) -> Result<String> {
        let owner = self.owner(key)?;
        let known = self.serving.lock().get(&owner).cloned();
        Ok(known.unwrap_or(owner))
    }

    pub(super) fn free_address(
        &self,
        order: &InstanceOrder,
        others: &[InstanceFacts],
    ) -> Result<Ipv4Addr> {
        let range = self.networks.range();
        let network = order.in_cluster()?.network;
        let mut addresses = HOSTS.map(|host| range.address(network, host));
        let free = |address: &Ipv4Addr| others.iter().all(|other| other.address != *address);
        addresses.find(free).ok_or_else(|| Error::state("the cluster has no address left"))
    }

    /// Makes a container in a place, whatever was there, and waits for it.
    pub(super) async fn start_anew(
        &self,
        order: &InstanceOrder,
        names: &InstanceNames,
        address: Ipv4Addr,
    ) -> Result<()> {
        self.serving.lock().insert(self.owner(&order.key)?, names.container.clone());
        self.run(order, names, address).await?;
        self.is_found(&order.key, &names.container)?;
        self.until_it_answers(order, &names.container, address).await
    }

    /// Starts the new version in the free place. It fails with the old one
    /// serving as before.
    pub(super) async fn replace(
        &self,
        order: &InstanceOrder,
        facts: &InstanceFacts,
        others: &[InstanceFacts],
    ) -> Result<InstanceFacts> {
        let (old, new) = self.places_of(&order.key, facts)?;
        let address = self.free_address(order, others)?;
        let has_volumes = !volumes::wanted(&order.app)?.is_empty();
        if has_volumes {
            // What cannot be had must not cost a stop.
            self.images.provide(order).await?;
            order.progress.stops();
            self.stop(&old).await?;
        }
        let started = async {
            self.run(order, &new, address).await?;
            self.prove(order, &new.container, address).await
        };
        if let Err(error) = started.await {
            if let Err(left) = self.discard(&new).await {
                tracing::warn!(container = new.container, error = %left, "not removed");
            }
            if has_volumes {
                self.options.runtime.start(self.namespace(), &old.container).await?;
            }
            return Err(error);
        }
        Ok(InstanceFacts {
            containers: vec![new.container],
            address: IpAddr::V4(address),
            places: Vec::new(),
        })
    }

    /// Returns when a new version serves; fails when it ended, or does not take
    /// connections in time.
    async fn prove(&self, order: &InstanceOrder, id: &str, address: Ipv4Addr) -> Result<()> {
        let port = first_tcp_port(order);
        let time = if port.is_some() { self.options.start_timeout } else { PROBATION };
        let mut wait = ListenWait::new(&order.progress, time);
        loop {
            let container = self.find(id).await?.ok_or_else(|| Error::missing(id))?;
            if !container.status.is_running() || container.restarts > 0 {
                return Err(self.ended(id, &container).await);
            }
            if let Some(port) = port
                && takes_connections(SocketAddr::from((address, port))).await
            {
                return Ok(());
            }
            match (wait.is_over(), port) {
                (false, port) => {
                    port.into_iter().for_each(|port| wait.not_yet(port));
                    tokio::time::sleep(PROBE_INTERVAL).await;
                }
                (true, None) => return Ok(()),
                (true, Some(port)) => {
                    let text = format!("the new version does not listen on port {port} yet");
                    return Err(Error::state(format!(
                        "{text}, {} s after its start",
                        time.as_secs()
                    )));
                }
            }
        }
    }

    /// Waits until those who were led to a container have left, or have had
    /// their time: nobody new is.
    async fn drain(&self, id: &str) {
        let Ok(Some(container)) = self.find(id).await else { return };
        let Some(pid) = container.pid else { return };
        let until = Instant::now() + Limits::default().drain;
        let mut quiet = 0;
        while quiet < QUIET_LOOKS && Instant::now() < until {
            match sockets::visitors(pid) {
                Ok(0) => quiet += 1,
                Ok(_) => quiet = 0,
                // It has ended.
                Err(_) => return,
            }
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    }

    async fn stop(&self, names: &InstanceNames) -> Result<()> {
        match self.options.runtime.stop(self.namespace(), &names.container, STOP_GRACE).await {
            Ok(_)
            | Err(
                selvage_runtime::Error::NotFound { .. } | selvage_runtime::Error::ProcessFinished,
            ) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets what was replaced end in peace, and removes it.
    pub(super) async fn retire(&self, names: &InstanceNames) -> Result<()> {
        self.drain(&names.container).await;
        self.stop(names).await?;
        self.discard(names).await
    }

    /// Removes what is in a place, if anything is.
    pub(super) async fn discard(&self, names: &InstanceNames) -> Result<()> {
        self.remove(&names.container).await?;
        self.networks.remove_instance(names).await?;
        self.hosts.leave(&names.container)?;
        self.files.remove(&names.container)
    }
}

/// Returns whether somebody listens there.
pub(super) async fn takes_connections(place: SocketAddr) -> bool {
    let connected = tokio::time::timeout(PROBE_INTERVAL * 20, TcpStream::connect(place));
    matches!(connected.await, Ok(Ok(_)))
}
