//! kube-controller-manager: makes true what objects ask for.

use selvage_api::selvage::kubernetes::Profile;

use super::{Component, api_answers, flags};
use crate::{
    Result,
    member::{File, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "kube-controller-manager";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    Ok(Component {
        name: NAME,
        version: member.version_of(NAME),
        program: member.kubernetes(NAME)?,
        arguments: command(member),
        files: files(member)?,
        mounts: Vec::new(),
        host: false,
        gate: Some(api_answers()),
        health: health(),
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let mut files = member.kubeconfig(NAME, Profile::ControllerManager)?;
    let key = member.control_plane()?.service_account_key.as_bytes();
    files.push(File::new("service-account.key", key));
    files.push(File::new("front-proxy-ca.crt", member.authorities().front_proxy));
    Ok(files)
}

/// It signs nothing: the authority's key is not on this machine. Nor does it
/// give out addresses for pods: the spec does.
fn command(member: &Member<'_>) -> Vec<String> {
    let (network, at) = (member.network(), |file: &str| member.path(NAME, file));
    flags([
        ("kubeconfig", at("kubeconfig")),
        ("authentication-kubeconfig", at("kubeconfig")),
        ("authorization-kubeconfig", at("kubeconfig")),
        ("client-ca-file", at("ca.crt")),
        ("requestheader-client-ca-file", at("front-proxy-ca.crt")),
        ("root-ca-file", at("ca.crt")),
        ("service-account-private-key-file", at("service-account.key")),
        ("use-service-account-credentials", "true".into()),
        ("controllers", "*,bootstrap-signer-controller,token-cleaner-controller".into()),
        ("cluster-name", member.spec.cluster.clone()),
        ("cluster-cidr", network.pod_cidr),
        ("service-cluster-ip-range", network.service_cidr),
        ("allocate-node-cidrs", "false".into()),
        ("leader-elect", "true".into()),
        ("bind-address", "127.0.0.1".into()),
        ("profiling", "false".into()),
    ])
}

fn health() -> Probe {
    Probe::Page("https://127.0.0.1:10257/healthz".into())
}
