//! Ways between pods of different machines, and out of the cluster.

pub(crate) mod host_ports;
mod overlay;

use std::process::Stdio;

use selvage_api::selvage::kubernetes::MemberSpec;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{Error, Result};

/// Marks routes as ours.
const PROTOCOL: &str = "85";
/// Table of our rules.
const TABLE: &str = "selvage-pods";
/// Tables of kube-proxy.
const PROXY_TABLES: [(&str, &str); 2] = [("ip", "kube-proxy"), ("ip6", "kube-proxy")];

/// Makes everything as the spec has it.
pub(crate) async fn apply(spec: &MemberSpec) -> Result<()> {
    let network = spec.network.clone().unwrap_or_default();
    forward()?;
    let address = host_prefix(&network.dns_address);
    run("ip", &["address", "replace", &address, "dev", "lo"], None).await?;
    run("nft", &["-f", "-"], Some(&rules(&network.node_pod_cidr, &network.pod_cidr))).await?;
    let mut far = Vec::new();
    for route in &network.routes {
        if let Some(peer) = overlay::Peer::of(route).await? {
            far.push(peer);
            continue;
        }
        let arguments =
            ["route", "replace", &route.pod_cidr, "via", &route.address, "proto", PROTOCOL];
        run("ip", &arguments, None).await?;
    }
    overlay::apply(spec, &network.node_pod_cidr, &far).await?;
    for stale in routes().await? {
        if !network.routes.iter().any(|route| same_network(&route.pod_cidr, &stale)) {
            run("ip", &["route", "delete", &stale, "proto", PROTOCOL], None).await?;
        }
    }
    Ok(())
}

/// Removes everything again; tells what it removed, and what it could not.
pub(crate) async fn remove(spec: Option<&MemberSpec>) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for (family, table) in [("inet", TABLE)].into_iter().chain(PROXY_TABLES) {
        let listed = run("nft", &["list", "table", family, table], None).await;
        if listed.is_ok() {
            let gone = run("nft", &["delete", "table", family, table], None).await;
            note(format!("nftables {family} {table}"), gone, &mut removed, &mut left);
        }
    }
    host_ports::remove(&mut removed, &mut left).await;
    for route in routes().await.unwrap_or_default() {
        let gone = run("ip", &["route", "delete", &route, "proto", PROTOCOL], None).await;
        note(format!("route to {route}"), gone, &mut removed, &mut left);
    }
    match overlay::remove().await {
        Ok(false) => {}
        gone => note(format!("link {}", overlay::DEVICE), gone, &mut removed, &mut left),
    }
    if let Some(network) = spec.and_then(|spec| spec.network.as_ref()) {
        let address = host_prefix(&network.dns_address);
        let there = run("ip", &["-o", "address", "show", "dev", "lo"], None).await;
        if there.is_ok_and(|text| text.contains(&format!(" {address} "))) {
            let gone = run("ip", &["address", "delete", &address, "dev", "lo"], None).await;
            note(format!("address {address}"), gone, &mut removed, &mut left);
        }
    }
    (removed, left)
}

/// Writes down how something went.
pub(crate) fn note<T>(
    what: String,
    went: Result<T>,
    removed: &mut Vec<String>,
    left: &mut Vec<String>,
) {
    match went {
        Ok(_) => removed.push(what),
        Err(error) => left.push(format!("{what}: {error}")),
    }
}

fn host_prefix(address: &str) -> String {
    let bits = if address.contains(':') { 128 } else { 32 };
    format!("{address}/{bits}")
}

fn same_network(given: &str, shown: &str) -> bool {
    given == shown || given.strip_suffix("/32").is_some_and(|address| address == shown)
}

fn forward() -> Result<()> {
    const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
    let on = std::fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() == "1");
    if on { Ok(()) } else { std::fs::write(SWITCH, "1\n").map_err(Error::file(SWITCH)) }
}

/// Packets that pods send out of the cluster come from the machine. Replaces itself.
fn rules(own: &str, all: &str) -> String {
    format!(
        "table inet {TABLE} {{}}
delete table inet {TABLE}
table inet {TABLE} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {own} ip daddr != {all} masquerade
  }}
}}
"
    )
}

/// Networks that our routes lead to.
async fn routes() -> Result<Vec<String>> {
    let text = run("ip", &["route", "show", "proto", PROTOCOL], None).await?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Runs a program with arguments; what it prints, or why it failed.
pub(crate) async fn run(
    program: &'static str,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<String> {
    let failed = |text: String| Error::Program { program, text };
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).await.map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(failed(text.lines().next().unwrap_or("failed").to_owned()))
}
