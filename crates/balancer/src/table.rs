//! Table of ports and their services.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, Port, Protocol, Service,
    error::Result,
    gate::{Context, Gate},
    http::Front,
    listen::Bound,
    published::Published,
    tcp, udp,
};

pub(crate) struct Table {
    addresses: Vec<IpAddr>,
    context: Arc<Context>,
    root: CancellationToken,
    closed: bool,
    services: BTreeMap<String, Arc<Published>>,
    fronts: BTreeMap<u16, Arc<Front>>,
}

impl Table {
    pub(crate) fn new(
        addresses: Vec<IpAddr>,
        context: Arc<Context>,
        root: CancellationToken,
    ) -> Self {
        let (services, fronts) = (BTreeMap::new(), BTreeMap::new());
        Self { addresses, context, root, closed: false, services, fronts }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Published>> {
        self.services.get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Published>> {
        self.services.values().cloned().collect()
    }

    /// Everything that can fail comes first; from then on nothing does.
    pub(crate) fn publish(&mut self, service: Service) -> Result<Departure> {
        if self.closed {
            return Err(Error::Closed);
        }
        for port in &service.ports {
            self.may_have(&service.id, port)?;
        }
        let before = self.get(&service.id).map(|before| before.gates()).unwrap_or_default();
        let mut bound = self.bind(&service, &before)?;
        let published = self
            .services
            .entry(service.id.clone())
            .or_insert_with(|| Published::new(service.id.clone(), self.context.clone()))
            .clone();
        let mut gates = Vec::new();
        for port in &service.ports {
            let gate = match before.iter().find(|gate| is_same(gate, port)) {
                Some(gate) => {
                    gate.change(port);
                    gate.clone()
                }
                None => {
                    let gate = Gate::new(port, &published, &self.root);
                    if let Some(bound) = bound.remove(&(port.protocol, port.public)) {
                        self.open(&gate, bound);
                    }
                    gate
                }
            };
            gates.push(gate);
        }
        let leaving =
            before.into_iter().filter(|gate| !gates.iter().any(|kept| Arc::ptr_eq(kept, gate)));
        let leaving: Vec<_> = leaving.collect();
        published.set_gates(gates);
        Ok(self.depart(leaving))
    }

    pub(crate) fn withdraw(&mut self, id: &str) -> Departure {
        let gates = self.services.remove(id).map(|service| service.gates());
        self.depart(gates.unwrap_or_default())
    }

    pub(crate) fn close(&mut self) -> Departure {
        self.closed = true;
        let services = std::mem::take(&mut self.services);
        self.depart(services.into_values().flat_map(|service| service.gates()).collect())
    }

    /// Checks that what is published leaves room for this port.
    fn may_have(&self, id: &str, port: &Port) -> Result<()> {
        if port.tls && self.context.raw_tls.is_none() {
            return Err(Error::NoCertificate { port: port.public });
        }
        let stream = port.protocol != Protocol::Udp;
        for (other, gate) in self.gates() {
            let beside = gate.public != port.public || (gate.protocol != Protocol::Udp) != stream;
            let own = other == id && gate.protocol == port.protocol;
            if beside || own {
                continue;
            }
            if (gate.protocol, port.protocol) != (Protocol::Http, Protocol::Http) {
                return Err(Error::Taken { port: port.public, protocol: port.protocol });
            }
            if gate.prefix == port.path_prefix {
                return Err(Error::PrefixTaken {
                    port: port.public,
                    prefix: port.path_prefix.clone(),
                    by: other.to_owned(),
                    wanted_by: id.to_owned(),
                });
            }
            if gate.encrypted() != port.tls {
                let reason = format!("{other:?} has port {} with tls {}", port.public, !port.tls);
                return Err(Error::invalid("ports.tls", reason));
            }
        }
        Ok(())
    }

    fn gates(&self) -> impl Iterator<Item = (&str, Arc<Gate>)> {
        let each = |service: &Arc<Published>| service.gates();
        self.services.iter().flat_map(move |(id, service)| {
            each(service).into_iter().map(move |gate| (id.as_str(), gate))
        })
    }

    /// Takes the ports that a service has not got yet.
    fn bind(
        &self,
        service: &Service,
        before: &[Arc<Gate>],
    ) -> Result<BTreeMap<(Protocol, u16), Bound>> {
        let mut bound = BTreeMap::new();
        for port in &service.ports {
            let key = (port.protocol, port.public);
            let had = before.iter().any(|gate| (gate.protocol, gate.public) == key);
            let shared = port.protocol == Protocol::Http && self.fronts.contains_key(&port.public);
            if !had && !shared && !bound.contains_key(&key) {
                bound.insert(key, Bound::new(&self.addresses, port.public, port.protocol)?);
            }
        }
        Ok(bound)
    }

    /// Begins to serve sockets.
    fn open(&mut self, gate: &Arc<Gate>, bound: Bound) {
        match bound {
            Bound::Datagrams(sockets) => {
                for socket in sockets {
                    gate.helpers.spawn(udp::serve(gate.clone(), socket));
                }
            }
            Bound::Streams(listeners) if gate.protocol == Protocol::Http => {
                let front = Front::new(self.context.clone(), &self.root);
                for listener in listeners {
                    let inside = front.clone();
                    let take = move |stream, peer| inside.enter(stream, peer);
                    front.helpers.spawn(tcp::accept(listener, front.stop.clone(), take));
                }
                self.fronts.insert(gate.public, front);
            }
            Bound::Streams(listeners) => {
                for listener in listeners {
                    let inside = gate.clone();
                    let take = move |stream, _| tcp::enter(&inside, stream);
                    gate.helpers.spawn(tcp::accept(listener, gate.stop.clone(), take));
                }
            }
        }
    }

    /// Brings the fronts up to date; what nobody is behind any more goes.
    fn depart(&mut self, gates: Vec<Arc<Gate>>) -> Departure {
        let mut behind: BTreeMap<u16, Vec<Arc<Gate>>> = BTreeMap::new();
        for (_, gate) in self.gates() {
            if gate.protocol == Protocol::Http {
                behind.entry(gate.public).or_default().push(gate);
            }
        }
        let mut fronts = Vec::new();
        self.fronts.retain(|port, front| match behind.remove(port) {
            Some(gates) => {
                let tls = gates.iter().any(|gate| gate.encrypted());
                front.set(gates, tls);
                true
            }
            None => {
                front.set(Vec::new(), false);
                fronts.push(front.clone());
                false
            }
        });
        Departure { gates, fronts }
    }
}

fn is_same(gate: &Gate, port: &Port) -> bool {
    (gate.protocol, gate.public, gate.prefix.as_str())
        == (port.protocol, port.public, port.path_prefix.as_str())
}

/// Service that is no longer published.
pub(crate) struct Departure {
    gates: Vec<Arc<Gate>>,
    fronts: Vec<Arc<Front>>,
}

impl Departure {
    pub(crate) fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.fronts.is_empty()
    }

    /// Lets nobody in any more.
    pub(crate) fn stop(&self) {
        for (stop, helpers) in self.doors() {
            stop.cancel();
            helpers.close();
        }
    }

    /// Returns when the sockets are closed.
    pub(crate) async fn closed(&self) {
        join_all(self.doors().map(|(_, helpers)| helpers.wait())).await;
    }

    fn doors(&self) -> impl Iterator<Item = (&CancellationToken, &TaskTracker)> {
        let gates = self.gates.iter().map(|gate| (&gate.stop, &gate.helpers));
        gates.chain(self.fronts.iter().map(|front| (&front.stop, &front.helpers)))
    }

    /// Gives those who are inside some time to leave, then cuts them off.
    pub(crate) async fn drain(&self, grace: Duration) {
        let gates = self.gates.iter().map(|gate| (&gate.cut, &gate.visits));
        let fronts = self.fronts.iter().map(|front| (&front.cut, &front.visits));
        let all: Vec<_> = gates.chain(fronts).collect();
        for (_, visits) in &all {
            visits.close();
        }
        let everybody = || join_all(all.iter().map(|(_, visits)| visits.wait()));
        if tokio::time::timeout(grace, everybody()).await.is_err() {
            let open: usize = all.iter().map(|(_, visits)| visits.len()).sum();
            tracing::info!(open, "connections cut after the drain time");
        }
        for (cut, _) in &all {
            cut.cancel();
        }
        everybody().await;
    }
}
