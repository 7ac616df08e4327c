//! kube-scheduler: finds nodes for pods.

use selvage_api::selvage::kubernetes::Profile;

use super::{Component, api_answers, flags};
use crate::{
    Result,
    member::{File, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "kube-scheduler";

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
    member.kubeconfig(NAME, Profile::Scheduler)
}

fn command(member: &Member<'_>) -> Vec<String> {
    let at = |file: &str| member.path(NAME, file);
    flags([
        ("kubeconfig", at("kubeconfig")),
        ("authentication-kubeconfig", at("kubeconfig")),
        ("authorization-kubeconfig", at("kubeconfig")),
        ("leader-elect", "true".into()),
        ("bind-address", "127.0.0.1".into()),
        ("profiling", "false".into()),
    ])
}

fn health() -> Probe {
    Probe::Page("https://127.0.0.1:10259/healthz".into())
}
