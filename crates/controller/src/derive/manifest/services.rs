//! The Services of a manifest: which of them leads to a port of the App.

use selvage_api::distributed_match_engine::LProto;
use serde_json::Value;

use super::{
    super::{Error, Result, access_ports, access_ports::PortSpec, names},
    yaml,
};

/// Ports that a Service forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    name: String,
    ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServicePort {
    udp: bool,
    target: u64,
}

/// The Services of a manifest, in its order.
pub(crate) fn services(manifest: &str) -> Result<Vec<Service>> {
    let documents = yaml::read_all(manifest).map_err(unreadable)?;
    Ok(find_services(&objects(&documents)))
}

/// The name of the first Service that leads to a port.
pub(crate) fn service_of(services: &[Service], proto: LProto, port: u16) -> Option<&str> {
    let udp = proto == LProto::Udp;
    let leads = |service: &&Service| {
        service.ports.iter().any(|found| found.udp == udp && found.target == u64::from(port))
    };
    services.iter().find(leads).map(|service| service.name.as_str())
}

/// Checks that a manifest that somebody supplied is one, and that every access
/// port can be reached through it.
pub(crate) fn check_ports_served(manifest: &str, ports: &[PortSpec]) -> Result<()> {
    let documents = yaml::read_all(manifest).map_err(unreadable)?;
    for (number, document) in documents.iter().enumerate() {
        if !document["kind"].is_string() {
            return Err(unreadable(format!("document {} has no kind", number + 1)));
        }
    }
    let services = find_services(&objects(&documents));
    if let Some(service) = services.iter().find(|service| !names::is_label(&service.name)) {
        return Err(unreadable(format!("\"{}\" cannot be the name of a Service", service.name)));
    }
    for spec in ports {
        for port in spec.ports() {
            if service_of(&services, spec.proto, port).is_none() {
                return Err(missing(spec.proto, port));
            }
        }
    }
    Ok(())
}

fn missing(proto: LProto, port: u16) -> Error {
    let transport = if proto == LProto::Udp { "UDP" } else { "TCP" };
    Error::invalid(format!(
        "access port {}:{port} is missing from the deployment manifest: \
         it needs a Service with protocol {transport} and targetPort {port}",
        access_ports::proto_name(proto)
    ))
}

fn unreadable(reason: String) -> Error {
    Error::invalid(format!("invalid deployment manifest, {reason}"))
}

/// Documents, and what is in those that are lists.
fn objects(documents: &[Value]) -> Vec<&Value> {
    let mut found = Vec::new();
    for document in documents {
        match (document["kind"].as_str(), document["items"].as_array()) {
            (Some("List"), Some(items)) => found.extend(items),
            _ => found.push(document),
        }
    }
    found
}

fn find_services(objects: &[&Value]) -> Vec<Service> {
    let mut named = Vec::new();
    for object in objects {
        collect_named_ports(object, &mut named);
    }
    let service = |object: &&&Value| object["kind"] == "Service";
    objects.iter().filter(service).map(|object| read_service(object, &named)).collect()
}

fn read_service(object: &Value, named: &[(&str, u64)]) -> Service {
    let ports = object["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    Service {
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        ports: ports.iter().filter_map(|port| read_port(port, named)).collect(),
    }
}

/// The target is a number, the name of a container's port, or left out when
/// it is the port itself.
fn read_port(port: &Value, named: &[(&str, u64)]) -> Option<ServicePort> {
    let target = match &port["targetPort"] {
        Value::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => named.iter().find(|(known, _)| known == name)?.1,
        },
        Value::Number(number) if number.as_u64() != Some(0) => number.as_u64()?,
        _ => port["port"].as_u64()?,
    };
    let udp = match port["protocol"].as_str() {
        None | Some("TCP") => false,
        Some("UDP") => true,
        Some(_) => return None,
    };
    Some(ServicePort { udp, target })
}

/// Names of container ports, wherever there are containers. The depth of a
/// document is bounded by its reader.
fn collect_named_ports<'a>(value: &'a Value, found: &mut Vec<(&'a str, u64)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_named_ports(item, found)),
        Value::Object(members) => {
            if let (Some(name), Some(port)) = (
                members.get("name").and_then(Value::as_str),
                members.get("containerPort").and_then(Value::as_u64),
            ) {
                found.push((name, port));
            }
            members.values().for_each(|member| collect_named_ports(member, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MANIFEST: &str = "\
apiVersion: v1
kind: List
items:
- kind: Service
  metadata: {name: web}
  spec:
    ports:
    - {port: 80, targetPort: http}
    - {port: 81}
- kind: Service
  metadata: {name: second}
  spec: {ports: [{port: 81}, {port: 7, targetPort: \"9000\", protocol: UDP}, {port: 5, protocol: SCTP}]}
---
kind: Deployment
spec: {template: {spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}}}
";

    fn check(ports: &str) -> Result<(), String> {
        let ports = access_ports::parse(ports).unwrap();
        check_ports_served(MANIFEST, &ports).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_service_that_leads_to_a_port_is_found() {
        let services = services(MANIFEST).unwrap();
        assert_eq!(service_of(&services, LProto::Tcp, 8080), Some("web"));
        assert_eq!(service_of(&services, LProto::Http, 81), Some("web"));
        assert_eq!(service_of(&services, LProto::Udp, 9000), Some("second"));
        assert_eq!(service_of(&services, LProto::Udp, 81), None);
        assert_eq!(service_of(&services, LProto::Tcp, 80), None);
        assert_eq!(service_of(&services, LProto::Tcp, 5), None);
    }

    #[test]
    fn every_access_port_needs_a_service() {
        check("").unwrap();
        check("tcp:8080,http:81,udp:9000").unwrap();
        assert_eq!(
            check("tcp:81,udp:81").unwrap_err(),
            "access port udp:81 is missing from the deployment manifest: \
             it needs a Service with protocol UDP and targetPort 81"
        );
        assert_eq!(
            check("http:80").unwrap_err(),
            "access port http:80 is missing from the deployment manifest: \
             it needs a Service with protocol TCP and targetPort 80"
        );
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let refusal = |text| check_ports_served(text, &[]).unwrap_err().to_string();
        assert_eq!(refusal("a: 1"), "invalid deployment manifest, document 1 has no kind");
        assert_eq!(refusal("some text"), "invalid deployment manifest, document 1 has no kind");
        assert!(refusal("a: [").starts_with("invalid deployment manifest, document 1: "));
        assert_eq!(
            refusal("kind: Service\nmetadata: {name: A_b}\n"),
            "invalid deployment manifest, \"A_b\" cannot be the name of a Service"
        );
    }
}
