//! CoreDNS: names of services, on every machine that runs pods.
//!
//! It listens on the address of the DNS itself, which every such machine has on
//! its loopback: a name is answered without leaving the machine.

use selvage_api::selvage::kubernetes::Profile;

use super::{Component, api_answers};
use crate::{
    Result,
    member::{File, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "coredns";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    let version = member.versions().coredns;
    Ok(Component {
        name: NAME,
        program: member.artifacts.find(NAME, &version, NAME)?,
        arguments: command(member),
        files: files(member)?,
        mounts: Vec::new(),
        host: false,
        gate: Some(api_answers()),
        health: health(),
        version,
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let mut files = member.kubeconfig(NAME, Profile::Coredns)?;
    files.push(File::new("Corefile", corefile(member)));
    Ok(files)
}

fn corefile(member: &Member<'_>) -> String {
    let network = member.network();
    let upstream = if network.upstream_dns.is_empty() {
        let given = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        name_servers(&given)
    } else {
        network.upstream_dns.clone()
    };
    let forward = match upstream.join(" ") {
        none if none.is_empty() => none,
        some => format!("    forward . {some}\n"),
    };
    let (domain, address) = (&network.dns_domain, &network.dns_address);
    let kubeconfig = member.path(NAME, "kubeconfig");
    format!(
        ".:53 {{
    bind {address}
    errors
    ready 127.0.0.1:8181
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
{forward}    cache 30
    loadbalance
}}
"
    )
}

/// Servers that the machine asks, but for those on itself: a pod's question
/// would go in circles.
fn name_servers(resolv_conf: &str) -> Vec<String> {
    let words = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver "));
    let address = |word: &str| word.trim().parse::<std::net::IpAddr>().ok();
    let addresses = words.filter_map(address).filter(|address| !address.is_loopback());
    addresses.map(|address| address.to_string()).collect()
}

fn command(member: &Member<'_>) -> Vec<String> {
    vec!["-conf".into(), member.path(NAME, "Corefile")]
}

fn health() -> Probe {
    Probe::Page("http://127.0.0.1:8181/ready".into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_itself_is_not_asked() {
        let text = "search a\nnameserver 127.0.0.53\nnameserver 10.0.0.2\n nameserver ::1\n";
        assert_eq!(super::name_servers(text), ["10.0.0.2"]);
    }
}
