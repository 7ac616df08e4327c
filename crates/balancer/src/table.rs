//! Table of ports and their services.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, Port, Protocol, Service,
    error::Result,
    frontend::{Context, Frontend},
    http::HttpPort,
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
    http_ports: BTreeMap<u16, Arc<HttpPort>>,
}

impl Table {
    pub(crate) fn new(
        addresses: Vec<IpAddr>,
        context: Arc<Context>,
        root: CancellationToken,
    ) -> Self {
        let (services, http_ports) = (BTreeMap::new(), BTreeMap::new());
        Self { addresses, context, root, closed: false, services, http_ports }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Published>> {
        self.services.get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Published>> {
        self.services.values().cloned().collect()
    }

    /// Publishes a service. All checks that can fail come first; after them
    /// nothing does.
    pub(crate) fn publish(&mut self, service: Service) -> Result<Draining> {
        if self.closed {
            return Err(Error::Closed);
        }
        for port in &service.ports {
            self.may_have(&service.id, port)?;
        }
        let before = self.get(&service.id).map(|before| before.frontends()).unwrap_or_default();
        let mut bound = self.bind(&service, &before)?;
        let published = self
            .services
            .entry(service.id.clone())
            .or_insert_with(|| Published::new(service.id.clone(), self.context.clone()))
            .clone();
        let mut frontends = Vec::new();
        for port in &service.ports {
            let frontend = match before.iter().find(|frontend| is_same(frontend, port)) {
                Some(frontend) => {
                    frontend.change(port);
                    frontend.clone()
                }
                None => {
                    let frontend = Frontend::new(port, &published, &self.root);
                    if let Some(bound) = bound.remove(&(port.protocol, port.public)) {
                        self.open(&frontend, bound);
                    }
                    frontend
                }
            };
            frontends.push(frontend);
        }
        let leaving = before
            .into_iter()
            .filter(|frontend| !frontends.iter().any(|kept| Arc::ptr_eq(kept, frontend)));
        let leaving: Vec<_> = leaving.collect();
        published.set_frontends(frontends);
        Ok(self.retire(leaving))
    }

    pub(crate) fn withdraw(&mut self, id: &str) -> Draining {
        let frontends = self.services.remove(id).map(|service| service.frontends());
        self.retire(frontends.unwrap_or_default())
    }

    pub(crate) fn close(&mut self) -> Draining {
        self.closed = true;
        let services = std::mem::take(&mut self.services);
        self.retire(services.into_values().flat_map(|service| service.frontends()).collect())
    }

    /// Checks that published ports do not conflict with this one.
    fn may_have(&self, id: &str, port: &Port) -> Result<()> {
        if port.tls && self.context.raw_tls.is_none() {
            return Err(Error::NoCertificate { port: port.public });
        }
        let stream = port.protocol != Protocol::Udp;
        for (other, frontend) in self.frontends() {
            let beside =
                frontend.public != port.public || (frontend.protocol != Protocol::Udp) != stream;
            let own = other == id && frontend.protocol == port.protocol;
            if beside || own {
                continue;
            }
            if (frontend.protocol, port.protocol) != (Protocol::Http, Protocol::Http) {
                return Err(Error::Taken { port: port.public, protocol: port.protocol });
            }
            if frontend.prefix == port.path_prefix {
                return Err(Error::PrefixTaken {
                    port: port.public,
                    prefix: port.path_prefix.clone(),
                    by: other.to_owned(),
                    wanted_by: id.to_owned(),
                });
            }
            if frontend.encrypted() != port.tls {
                let reason = format!("{other:?} has port {} with tls {}", port.public, !port.tls);
                return Err(Error::invalid("ports.tls", reason));
            }
        }
        Ok(())
    }

    fn frontends(&self) -> impl Iterator<Item = (&str, Arc<Frontend>)> {
        let each = |service: &Arc<Published>| service.frontends();
        self.services.iter().flat_map(move |(id, service)| {
            each(service).into_iter().map(move |frontend| (id.as_str(), frontend))
        })
    }

    /// Binds the ports that a service does not have yet.
    fn bind(
        &self,
        service: &Service,
        before: &[Arc<Frontend>],
    ) -> Result<BTreeMap<(Protocol, u16), Bound>> {
        let mut bound = BTreeMap::new();
        for port in &service.ports {
            let key = (port.protocol, port.public);
            let had = before.iter().any(|frontend| (frontend.protocol, frontend.public) == key);
            let shared =
                port.protocol == Protocol::Http && self.http_ports.contains_key(&port.public);
            if !had && !shared && !bound.contains_key(&key) {
                bound.insert(key, Bound::new(&self.addresses, port.public, port.protocol)?);
            }
        }
        Ok(bound)
    }

    /// Begins to serve sockets.
    fn open(&mut self, frontend: &Arc<Frontend>, bound: Bound) {
        match bound {
            Bound::Datagrams(sockets) => {
                for socket in sockets {
                    frontend.tasks.spawn(udp::serve(frontend.clone(), socket));
                }
            }
            Bound::Streams(listeners) if frontend.protocol == Protocol::Http => {
                let http_port = HttpPort::new(self.context.clone(), &self.root);
                for listener in listeners {
                    let inside = http_port.clone();
                    let take = move |stream, peer| inside.enter(stream, peer);
                    http_port.tasks.spawn(tcp::accept(listener, http_port.stop.clone(), take));
                }
                self.http_ports.insert(frontend.public, http_port);
            }
            Bound::Streams(listeners) => {
                for listener in listeners {
                    let inside = frontend.clone();
                    let take = move |stream, _| tcp::enter(&inside, stream);
                    frontend.tasks.spawn(tcp::accept(listener, frontend.stop.clone(), take));
                }
            }
        }
    }

    /// Updates the HTTP ports, and removes those without services.
    fn retire(&mut self, frontends: Vec<Arc<Frontend>>) -> Draining {
        let mut behind: BTreeMap<u16, Vec<Arc<Frontend>>> = BTreeMap::new();
        for (_, frontend) in self.frontends() {
            if frontend.protocol == Protocol::Http {
                behind.entry(frontend.public).or_default().push(frontend);
            }
        }
        let mut http_ports = Vec::new();
        self.http_ports.retain(|port, http_port| match behind.remove(port) {
            Some(frontends) => {
                let tls = frontends.iter().any(|frontend| frontend.encrypted());
                http_port.set(frontends, tls);
                true
            }
            None => {
                http_port.set(Vec::new(), false);
                http_ports.push(http_port.clone());
                false
            }
        });
        Draining { frontends, http_ports }
    }
}

fn is_same(frontend: &Frontend, port: &Port) -> bool {
    (frontend.protocol, frontend.public, frontend.prefix.as_str())
        == (port.protocol, port.public, port.path_prefix.as_str())
}

/// Ports that are no longer published, with connections that may still be open.
pub(crate) struct Draining {
    frontends: Vec<Arc<Frontend>>,
    http_ports: Vec<Arc<HttpPort>>,
}

impl Draining {
    pub(crate) fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.http_ports.is_empty()
    }

    /// Stops accepting connections.
    pub(crate) fn stop(&self) {
        for (stop, tasks) in self.listeners() {
            stop.cancel();
            tasks.close();
        }
    }

    /// Returns when the sockets are closed.
    pub(crate) async fn closed(&self) {
        join_all(self.listeners().map(|(_, tasks)| tasks.wait())).await;
    }

    fn listeners(&self) -> impl Iterator<Item = (&CancellationToken, &TaskTracker)> {
        let frontends = self.frontends.iter().map(|frontend| (&frontend.stop, &frontend.tasks));
        frontends.chain(self.http_ports.iter().map(|http_port| (&http_port.stop, &http_port.tasks)))
    }

    /// Gives open connections some time to end, then closes them.
    pub(crate) async fn drain(&self, grace: Duration) {
        let frontends =
            self.frontends.iter().map(|frontend| (&frontend.cut, &frontend.connections));
        let http_ports =
            self.http_ports.iter().map(|http_port| (&http_port.cut, &http_port.connections));
        let all: Vec<_> = frontends.chain(http_ports).collect();
        for (_, connections) in &all {
            connections.close();
        }
        let all_closed = || join_all(all.iter().map(|(_, connections)| connections.wait()));
        if tokio::time::timeout(grace, all_closed()).await.is_err() {
            let open: usize = all.iter().map(|(_, connections)| connections.len()).sum();
            tracing::info!(open, "connections cut after the drain time");
        }
        for (cut, _) in &all {
            cut.cancel();
        }
        all_closed().await;
    }
}
