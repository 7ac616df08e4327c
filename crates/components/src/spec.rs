//! Checks of what a machine is told to be: all that is wrong is named at once.

use std::net::{IpAddr, SocketAddr};

use selvage_api::selvage::kubernetes::{ClusterNetwork, ControlPlane, MemberSpec, Versions};

use crate::{Error, Result};

/// Returns whether it is a DNS label of at most 63 characters.
pub(crate) fn is_label(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(fine)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns whether it is a version that may stand in a path: digits, dots, and what
/// distributions put behind.
pub(crate) fn is_version(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '~');
    text.is_empty()
        || (text.len() <= 64
            && text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(fine)
            && !text.contains(".."))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
        _ => false,
    }
}

fn is_machine_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback() && !address.is_unspecified())
}

/// Refuses a spec that cannot be made real.
pub(crate) fn check(spec: &MemberSpec) -> Result<()> {
    let mut wrong = Vec::new();
    let mut need = |fine: bool, text: &str| {
        if !fine {
            wrong.push(text.to_owned());
        }
    };
    need(spec.generation > 0, "generation: must be at least 1");
    need(is_label(&spec.cluster), "cluster: must be a DNS label");
    need(is_label(&spec.node), "node: must be a DNS label");
    need(is_machine_address(&spec.address), "address: must be an IP address, not of the loopback");
    need(!spec.api_servers.is_empty(), "api_servers: at least one is needed");
    let sockets = spec.api_servers.iter().all(|one| one.parse::<SocketAddr>().is_ok());
    need(sockets, "api_servers: must be ADDRESS:PORT each");
    let authorities = spec.authorities.clone().unwrap_or_default();
    need(is_pem(&authorities.kubernetes), "authorities.kubernetes: must be PEM");
    need(
        spec.control_plane.is_some() || spec.worker.is_some() || spec.hibernated,
        "control_plane, worker: at least one is needed",
    );
    if spec.control_plane.is_some() {
        need(is_pem(&authorities.etcd), "authorities.etcd: must be PEM");
        need(is_pem(&authorities.front_proxy), "authorities.front_proxy: must be PEM");
    }
    wrong.extend(check_versions(&spec.versions.clone().unwrap_or_default()));
    match &spec.network {
        Some(network) => wrong.extend(check_network(network)),
        None => wrong.push("network: is needed".into()),
    }
    if let Some(plane) = &spec.control_plane {
        wrong.extend(check_control_plane(plane, &spec.node));
    }
    wrong.extend(check_worker(spec));
    if wrong.is_empty() { Ok(()) } else { Err(Error::Invalid(wrong)) }
}

fn is_pem(text: &str) -> bool {
    text.contains("-----BEGIN CERTIFICATE-----")
}

fn check_versions(versions: &Versions) -> Vec<String> {
    [
        ("kubernetes", &versions.kubernetes),
        ("etcd", &versions.etcd),
        ("coredns", &versions.coredns),
        ("containerd", &versions.containerd),
        ("cni", &versions.cni),
        ("kubelet", &versions.kubelet),
    ]
    .into_iter()
    .filter(|(_, version)| !is_version(version))
    .map(|(name, version)| format!("versions.{name}: {version:?} is no version"))
    .collect()
}

fn check_network(network: &ClusterNetwork) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, cidr) in [
        ("pod_cidr", &network.pod_cidr),
        ("service_cidr", &network.service_cidr),
        ("node_pod_cidr", &network.node_pod_cidr),
    ] {
        if !is_cidr(cidr) {
            wrong.push(format!("network.{name}: {cidr:?} is no CIDR"));
        }
    }
    if network.dns_address.parse::<IpAddr>().is_err() {
        wrong.push("network.dns_address: must be an IP address".into());
    }
    let domain = &network.dns_domain;
    if !domain.is_empty() && !domain.split('.').all(is_label) {
        wrong.push(format!("network.dns_domain: {domain:?} is no domain"));
    }
    for route in &network.routes {
        if !is_cidr(&route.pod_cidr) || !is_machine_address(&route.address) {
            wrong.push(format!(
                "network.routes: {:?} by {:?} is no route",
                route.pod_cidr, route.address
            ));
        }
    }
    if network.upstream_dns.iter().any(|server| server.parse::<IpAddr>().is_err()) {
        wrong.push("network.upstream_dns: must be IP addresses".into());
    }
    wrong
}

fn check_control_plane(plane: &ControlPlane, node: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !plane.etcd.iter().any(|peer| peer.name == node) {
        wrong.push(format!("control_plane.etcd: {node:?} itself is not among them"));
    }
    for peer in &plane.etcd {
        if !is_label(&peer.name) || !is_machine_address(&peer.address) {
            wrong.push(format!("control_plane.etcd: {:?} is no member", peer.name));
        }
    }
    if !plane.service_account_key.contains("PRIVATE KEY-----") {
        wrong.push("control_plane.service_account_key: must be PEM".into());
    }
    if !is_version(&plane.controllers_version) {
        wrong.push("control_plane.controllers_version: is no version".into());
    }
    wrong
}

/// Labels and taints become arguments of the kubelet, joined by commas.
fn check_worker(spec: &MemberSpec) -> Vec<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let is_text = |text: &str| text.len() <= 317 && text.chars().all(fine);
    let mut wrong = Vec::new();
    if let Some(worker) = &spec.worker {
        for (key, value) in &worker.labels {
            if key.is_empty() || !is_text(key) || !is_text(value) {
                wrong.push(format!("worker.labels: {key:?} is no label"));
            }
        }
        for taint in &worker.taints {
            let (pair, effect) = taint.rsplit_once(':').unwrap_or((taint, ""));
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
            if key.is_empty() || !is_text(key) || !is_text(value) || !known {
                wrong.push(format!("worker.taints: {taint:?} is no taint"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::selvage::kubernetes::Worker;

    use super::*;

    #[test]
    fn everything_that_is_wrong_is_named() {
        let error = check(&MemberSpec::default()).unwrap_err().to_string();
        for field in
            ["generation", "cluster", "node", "address", "api_servers", "authorities", "network"]
        {
            assert!(error.contains(&format!("{field}:")) || error.contains(field), "{error}");
        }
    }

    #[test]
    fn a_version_is_no_way_out_of_a_folder() {
        for bad in ["../../bin", "1/2", "v1.2.3", "1..2", " 1"] {
            let versions = Versions { kubernetes: bad.into(), ..Versions::default() };
            assert_eq!(check_versions(&versions).len(), 1, "{bad}");
        }
        for good in ["", "1.36.4", "1.6.20~ds1", "3.7.0-rc.1"] {
            let versions = Versions { kubernetes: good.into(), ..Versions::default() };
            assert!(check_versions(&versions).is_empty(), "{good}");
        }
    }

    #[test]
    fn a_label_does_not_become_another_argument() {
        let worker = Worker {
            labels: [("a,b".to_owned(), "c".to_owned())].into(),
            taints: vec!["x=y:Sometimes".into(), "ok=1:NoSchedule".into()],
            ..Worker::default()
        };
        let spec = MemberSpec { worker: Some(worker), ..MemberSpec::default() };
        let wrong = check_worker(&spec);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }
}
