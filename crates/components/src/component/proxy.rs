//! kube-proxy: leads addresses of services to pods, by rules of the kernel.

use selvage_api::selvage::kubernetes::Profile;
use serde_json::{Value, json};

use super::{Component, api_answers};
use crate::{
    Result,
    member::{File, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "kube-proxy";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    Ok(Component {
        name: NAME,
        version: member.version_of(NAME),
        program: member.kubernetes(NAME)?,
        arguments: command(member),
        files: files(member)?,
        mounts: Vec::new(),
        host: true,
        gate: Some(api_answers()),
        health: health(),
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let mut files = member.kubeconfig(NAME, Profile::Proxy)?;
    files.push(File::json("config.json", &config(member)));
    Ok(files)
}

fn config(member: &Member<'_>) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": member.path(NAME, "kubeconfig") },
        "clusterCIDR": member.network().pod_cidr,
        "hostnameOverride": member.spec.node,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        // Limits of the whole machine are for its administrator.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}

fn command(member: &Member<'_>) -> Vec<String> {
    vec![format!("--config={}", member.path(NAME, "config.json"))]
}

fn health() -> Probe {
    Probe::Page("http://127.0.0.1:10256/livez".into())
}
