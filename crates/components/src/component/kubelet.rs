//! kubelet: runs the pods of this machine.

use selvage_api::selvage::kubernetes::Profile;
use serde_json::{Value, json};

use super::{Component, Gate, flags};
use crate::{
    Result,
    member::{File, KUBELET_ROOT, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "kubelet";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    let socket = Probe::Socket(member.paths.containerd_socket());
    Ok(Component {
        name: NAME,
        version: member.version_of(NAME),
        program: member.kubernetes(NAME)?,
        arguments: command(member),
        files: files(member)?,
        mounts: Vec::new(),
        host: true,
        gate: Some(Gate { name: "containerd", probe: socket }),
        health: health(),
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let mut files = member.kubeconfig(NAME, Profile::KubeletClient)?;
    files.extend(member.pair(Profile::KubeletServer)?);
    files.push(File::json("config.json", &config(member)));
    Ok(files)
}

fn config(member: &Member<'_>) -> Value {
    let at = |file: &str| member.path(NAME, file);
    let (network, worker) = (member.network(), member.worker());
    let socket = format!("unix://{}", member.paths.containerd_socket().display());
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": at("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": at("kubelet-server.crt"),
        "tlsPrivateKeyFile": at("kubelet-server.key"),
        "containerRuntimeEndpoint": socket,
        "cgroupDriver": "cgroupfs",
        // A group for each pod, on both versions of cgroups: without them (cgroupsPerQOS
        // false) the kubelet of 1.36 panics as soon as it compares a pod's limits.
        "cgroupRoot": format!("{}/pods", member.paths.cgroup),
        "enforceNodeAllocatable": ["none"],
        "clusterDNS": [network.dns_address],
        "clusterDomain": network.dns_domain,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "maxPods": if worker.max_pods == 0 { 110 } else { worker.max_pods },
        "failSwapOn": false,
        "failCgroupV1": false,
        "makeIPTablesUtilChains": false,
        "rotateCertificates": false,
        "resolvConf": "/etc/resolv.conf",
        "nodeStatusUpdateFrequency": "5s",
        // Shares of a disk are not what matters: a tenth of a large one is much.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1Gi",
            "imagefs.available": "1Gi",
            "nodefs.inodesFree": "1%",
            "imagefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 95,
        "imageGCLowThresholdPercent": 90,
    })
}

fn command(member: &Member<'_>) -> Vec<String> {
    let worker = member.worker();
    let mut arguments = flags([
        ("config", member.path(NAME, "config.json")),
        ("kubeconfig", member.path(NAME, "kubeconfig")),
        ("root-dir", KUBELET_ROOT.into()),
        ("node-ip", member.spec.address.clone()),
        ("hostname-override", member.spec.node.clone()),
    ]);
    if !worker.labels.is_empty() {
        let labels: Vec<String> =
            worker.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.push(format!("--node-labels={}", labels.join(",")));
    }
    if !worker.taints.is_empty() {
        arguments.push(format!("--register-with-taints={}", worker.taints.join(",")));
    }
    arguments
}

fn health() -> Probe {
    Probe::Page("http://127.0.0.1:10248/healthz".into())
}
