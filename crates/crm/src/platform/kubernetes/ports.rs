//! Addresses at which the ports of an instance are reached from the crm's
//! machine.
//!
//! For each port there are several ways in, tried in this order: the address
//! that the cluster's own balancer gave the Service, the Service's port on a
//! node (first on nodes that run a pod of the instance), and, where the crm is
//! itself in the cluster, the Service's address there and the pod. The first at
//! which a connection is taken is used; where none is, or none can be tried,
//! the first of all. Seen from elsewhere the cluster's inner addresses may be
//! somebody else's: they are never tried.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use selvage_api::{distributed_match_engine::LProto, edgeproto::AppInst};
use selvage_kube::{is_running, kube::api::DynamicObject};
use serde_json::Value;

use crate::{
    Error, Result,
    platform::{InstanceFacts, PortEndpoint},
};

/// Time a connection may take to be taken.
const TRIAL: Duration = Duration::from_millis(500);

/// Objects of an instance, as the cluster has them.
pub(super) struct InstanceObjects {
    pub(super) pods: Vec<Value>,
    pub(super) services: Vec<Value>,
    pub(super) nodes: Vec<DynamicObject>,
}

/// Addresses of ports, and whether all that can be tried take connections.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Endpoints {
    pub(super) all: Vec<PortEndpoint>,
    pub(super) answer: bool,
}

/// Given to every pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Returns whether this process is in the network that Services and pods are
/// in: on a node, or in a pod.
fn is_inside(nodes: &[DynamicObject]) -> bool {
    let ours = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    std::path::Path::new(ACCOUNT).exists() || addresses(nodes).any(ours)
}

/// A way to a port; lower kinds are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    Balancer,
    Node,
    Service,
    Pod,
}

/// The ports of an instance and where each is reached. What was found before
/// is kept while it holds.
pub(super) async fn endpoints(
    instance: &AppInst,
    found: &InstanceObjects,
    before: &InstanceFacts,
) -> Result<Endpoints> {
    let inside = is_inside(&found.nodes);
    let mut places = Endpoints { all: Vec::new(), answer: true };
    let mut taken: Option<Route> = None;
    let mut ports: Vec<(u16, bool)> = instance
        .mapped_ports
        .iter()
        .filter_map(|port| {
            Some((u16::try_from(port.internal_port).ok()?, port.proto() == LProto::Udp))
        })
        .collect();
    // Datagrams cannot be tried: they go the way that was found for the rest.
    ports.sort_by_key(|(_, udp)| *udp);
    for (internal, udp) in ports {
        let ways = ways(found, internal, udp, inside);
        let Some((_, first)) = ways.first().copied() else {
            return Err(unreachable(internal, udp));
        };
        let known =
            before.places.iter().find(|place| (place.internal, place.udp) == (internal, udp));
        let at = if udp {
            let same = ways.iter().find(|(way, _)| Some(*way) == taken);
            same.map_or(first, |(_, at)| *at)
        } else {
            let chosen = choose(&ways, known.map(|place| place.at)).await;
            places.answer &= chosen.is_some();
            taken = taken.or(chosen.map(|(way, _)| way));
            chosen.map_or(first, |(_, at)| at)
        };
        places.all.push(PortEndpoint { internal, udp, at });
    }
    places.all.sort_by_key(|place| (place.internal, place.udp));
    Ok(places)
}

fn unreachable(internal: u16, udp: bool) -> Error {
    let protocol = if udp { "udp" } else { "tcp" };
    Error::state(format!(
        "nothing leads to port {protocol}:{internal} from outside of the cluster: it takes a \
         Service of type LoadBalancer or NodePort"
    ))
}

async fn choose(
    ways: &[(Route, SocketAddr)],
    known: Option<SocketAddr>,
) -> Option<(Route, SocketAddr)> {
    let known = ways.iter().filter(|(_, at)| Some(*at) == known);
    for (way, at) in known.chain(ways) {
        let taken = tokio::time::timeout(TRIAL, tokio::net::TcpStream::connect(at)).await;
        if matches!(taken, Ok(Ok(_))) {
            return Some((*way, *at));
        }
    }
    None
}

/// All ways to a port, the best first.
fn ways(
    found: &InstanceObjects,
    internal: u16,
    udp: bool,
    inside: bool,
) -> Vec<(Route, SocketAddr)> {
    let mut ways = Vec::new();
    for service in &found.services {
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        for port in ports.into_iter().flatten().filter(|port| leads_to(port, internal, udp)) {
            ways.extend(ways_by(found, service, port));
        }
    }
    let pods = found.pods.iter().filter_map(|pod| address(&pod["status"]["podIP"]));
    ways.extend(pods.map(|ip| (Route::Pod, SocketAddr::new(ip, internal))));
    ways.retain(|(way, _)| inside || matches!(way, Route::Balancer | Route::Node));
    ways.sort_by_key(|(way, _)| *way);
    ways
}

fn leads_to(port: &Value, internal: u16, udp: bool) -> bool {
    let protocol = port["protocol"].as_str().unwrap_or("TCP");
    let number = |value: &Value| value.as_u64() == Some(u64::from(internal));
    (protocol == "UDP") == udp && (number(&port["port"]) || number(&port["targetPort"]))
}

fn ways_by(found: &InstanceObjects, service: &Value, port: &Value) -> Vec<(Route, SocketAddr)> {
    let number = |name: &str| port[name].as_u64().and_then(|number| u16::try_from(number).ok());
    let mut ways = Vec::new();
    if let Some(own) = number("port") {
        let given = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
        let given = given.into_iter().flatten().filter_map(|entry| address(&entry["ip"]));
        ways.extend(given.map(|ip| (Route::Balancer, SocketAddr::new(ip, own))));
        let inside = address(&service["spec"]["clusterIP"]);
        ways.extend(inside.map(|ip| (Route::Service, SocketAddr::new(ip, own))));
    }
    if let Some(on_nodes) = number("nodePort").filter(|port| *port > 0) {
        let with_pods = |ip: &IpAddr| {
            let host = |pod: &Value| address(&pod["status"]["hostIP"]) == Some(*ip);
            !found.pods.iter().any(host)
        };
        let mut nodes: Vec<IpAddr> = addresses(&found.nodes).collect();
        nodes.sort_by_key(|ip| (with_pods(ip), *ip));
        ways.extend(nodes.into_iter().map(|ip| (Route::Node, SocketAddr::new(ip, on_nodes))));
    }
    ways
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// Addresses of nodes: the inner one of each, else the outer one.
pub(super) fn addresses(nodes: &[DynamicObject]) -> impl Iterator<Item = IpAddr> {
    nodes.iter().filter_map(|node| {
        let all = node.data.pointer("/status/addresses").and_then(Value::as_array)?;
        let of = |kind: &str| {
            let mut found = all.iter().filter(|entry| entry["type"] == kind);
            found.find_map(|entry| address(&entry["address"]))
        };
        of("InternalIP").or_else(|| of("ExternalIP"))
    })
}

/// The address of the first pod that runs.
pub(super) fn first_address(pods: &[Value]) -> Option<IpAddr> {
    pods.iter().filter(|pod| is_running(pod)).find_map(|pod| address(&pod["status"]["podIP"]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::distributed_match_engine::AppPort;
    use serde_json::json;

    use super::*;

    fn found() -> InstanceObjects {
        let node = |ip: &str| {
            let addresses = json!([{ "type": "Hostname", "address": "n" }, { "type": "InternalIP", "address": ip }]);
            serde_json::from_value(json!({ "metadata": {}, "status": { "addresses": addresses } }))
                .unwrap()
        };
        InstanceObjects {
            pods: vec![
                json!({ "status": { "phase": "Running", "podIP": "10.1.0.9", "hostIP": "203.0.113.2" } }),
            ],
            services: vec![json!({
                "spec": { "clusterIP": "10.96.0.4", "ports": [
                    { "port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP" },
                    { "port": 53, "targetPort": 53, "nodePort": 30053, "protocol": "UDP" },
                ] },
                "status": { "loadBalancer": { "ingress": [{ "ip": "198.51.100.1" }] } },
            })],
            nodes: vec![node("203.0.113.1"), node("203.0.113.2")],
        }
    }

    #[test]
    fn ways_are_in_order_and_nodes_with_pods_come_first() {
        let ways: Vec<String> =
            ways(&found(), 8080, false, true).iter().map(|(_, at)| at.to_string()).collect();
        let wanted = [
            "198.51.100.1:80",
            "203.0.113.2:30080",
            "203.0.113.1:30080",
            "10.96.0.4:80",
            "10.1.0.9:8080",
        ];
        assert_eq!(ways, wanted);
        assert!(super::ways(&found(), 53, false, true).iter().all(|(way, _)| *way == Route::Pod));
        assert_eq!(super::ways(&found(), 53, true, true)[0].1.to_string(), "198.51.100.1:53");
        // From outside the inner addresses are somebody else's.
        assert_eq!(super::ways(&found(), 8080, false, false).len(), 3);
        assert!(super::ways(&found(), 53, false, false).is_empty());
    }

    #[tokio::test]
    async fn the_way_that_takes_connections_is_taken() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let ways = [(Route::Node, closed), (Route::Pod, open)];
        assert_eq!(choose(&ways, None).await, Some((Route::Pod, open)));
        assert_eq!(choose(&ways[..1], None).await, None);
        assert_eq!(choose(&[], None).await, None);
    }

    #[tokio::test]
    async fn every_port_has_a_place() {
        let port = |proto: LProto, internal: i32| AppPort {
            proto: proto.into(),
            internal_port: internal,
            ..AppPort::default()
        };
        let mapped_ports = vec![port(LProto::Udp, 53)];
        let mut instance = AppInst { mapped_ports, ..AppInst::default() };
        let none = InstanceFacts {
            containers: vec![],
            address: IpAddr::from([0, 0, 0, 0]),
            places: vec![],
        };
        let found = found();
        let reached = endpoints(&instance, &found, &none).await.unwrap();
        let at: Vec<String> = reached.all.iter().map(|place| place.at.to_string()).collect();
        assert_eq!(at, ["198.51.100.1:53"]);
        instance.mapped_ports.push(port(LProto::Udp, 99));
        let error = endpoints(&instance, &found, &none).await.unwrap_err().to_string();
        assert!(error.starts_with("nothing leads to port udp:99 from outside"), "{error}");
    }
}
