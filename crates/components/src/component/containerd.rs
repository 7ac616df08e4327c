//! containerd: runs the containers of pods, with runc and CNI plugins.
//!
//! It has a socket and folders of its own: one that the machine uses for other
//! things is not touched.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Component;
use crate::{
    Result,
    artifact::SHIM,
    member::{File, Member},
    network::host_ports,
    probe::Probe,
};

pub(super) const NAME: &str = "containerd";

/// Holds the namespaces of pods; made on this machine.
pub(crate) const PAUSE_IMAGE: &str = "selvage.local/pause:1";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    let version = member.versions().containerd;
    // containerd finds it beside itself, or in its PATH.
    member.artifacts.find(NAME, &version, SHIM)?;
    Ok(Component {
        name: NAME,
        program: member.artifacts.find(NAME, &version, NAME)?,
        arguments: command(member),
        files: files(member)?,
        mounts: Vec::new(),
        host: true,
        gate: None,
        health: health(member),
        version,
    })
}

/// Folder of the plugins.
fn plugins(member: &Member<'_>) -> Result<PathBuf> {
    let plugin = member.artifacts.find("cni", &member.versions().cni, "ptp")?;
    Ok(plugin.parent().map_or_else(|| PathBuf::from("/opt/cni/bin"), Path::to_owned))
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    Ok(vec![
        File::new("config.toml", config(member)?),
        File::json("10-pods.conflist", &pods(member)?),
    ])
}

/// A path as TOML writes it.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

fn config(member: &Member<'_>) -> Result<String> {
    let paths = member.paths;
    let runc = member.artifacts.find(NAME, &member.versions().containerd, "runc")?;
    let root = quoted(&paths.data(NAME));
    let state = quoted(&paths.run.join("state"));
    let socket = quoted(&paths.containerd_socket());
    let (bin, conf) = (quoted(&plugins(member)?), quoted(&paths.component(NAME)));
    let runc = quoted(&runc);
    let shims = format!("{}/shims", paths.cgroup);
    // Without the right to lower it, no container would start.
    let restrict = !may_lower_oom_score();
    Ok(format!(
        r#"version = 2
root = {root}
state = {state}
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]

[grpc]
address = {socket}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = {restrict}

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {bin}
conf_dir = {conf}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = {runc}
SystemdCgroup = false
ShimCgroup = "{shims}"
"#
    ))
}

/// Every pod has a link and a route of its own. On a bridge, answers of pods
/// beside each other would go past the rules that lead to services, unless the
/// kernel shows bridged packets to them, which not every one can. What leaves
/// the cluster is given the machine's address by rules of our own.
fn pods(member: &Member<'_>) -> Result<serde_json::Value> {
    let link = json!({
        "type": "ptp",
        "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "dataDir": member.paths.data("cni"),
            "ranges": [[{ "subnet": member.network().node_pod_cidr }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    });
    let plugins: Vec<_> =
        std::iter::once(link).chain(host_ports::plugin(&plugins(member)?)).collect();
    Ok(json!({ "cniVersion": "0.4.0", "name": host_ports::NETWORK, "plugins": plugins }))
}

/// Returns whether this machine lets us have processes that the kernel kills last.
fn may_lower_oom_score() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> SYS_RESOURCE & 1 == 1)
}

fn command(member: &Member<'_>) -> Vec<String> {
    vec!["--config".into(), member.path(NAME, "config.toml")]
}

fn health(member: &Member<'_>) -> Probe {
    Probe::Socket(member.paths.containerd_socket())
}
