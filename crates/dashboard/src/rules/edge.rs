//! Cloudlets, clusters, instances and operations.

use std::collections::HashSet;

use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{Object, Severity},
};

use super::{Context, Finding};
use crate::{
    facts::each,
    text::{outside, quoted},
};

const NAME: usize = 200;

fn named(object: &Object) -> String {
    outside(&object.name, NAME)
}

fn cloudlet_command(object: &Object) -> String {
    let name = object.name.strip_prefix(&object.organisation).unwrap_or(&object.name);
    format!(
        "selvage cloudletinfo show --operator {} --name {}",
        quoted(&object.organisation),
        quoted(name.trim_start_matches('/'))
    )
}

pub(super) fn cloudlet_offline(context: &Context<'_>, found: &mut Vec<Finding>) {
    for cloudlet in each(&context.facts.cloudlets) {
        let (word, severity) = match cloudlet.state {
            CloudletState::Offline => ("is offline", Severity::Critical),
            // Registered, and nobody has been there yet.
            CloudletState::NotPresent | CloudletState::Unknown => {
                ("has no agent yet", Severity::Notice)
            }
            CloudletState::Ready | CloudletState::Errors => continue,
        };
        let object = &cloudlet.object;
        let command = match severity {
            Severity::Notice => {
                format!(
                    "selvage join-token create {}",
                    quoted(&format!("cloudlet/{}", object.name))
                )
            }
            _ => cloudlet_command(object),
        };
        let summary = format!("Cloudlet {} {word}", named(object));
        found.push(Finding::new(object, summary, command).severity(severity));
    }
}

pub(super) fn cloudlet_errors(context: &Context<'_>, found: &mut Vec<Finding>) {
    let bad = |state| state == CloudletState::Errors;
    for cloudlet in each(&context.facts.cloudlets).filter(|cloudlet| bad(cloudlet.state)) {
        let object = &cloudlet.object;
        let summary = format!("Cloudlet {} reports errors", named(object));
        let finding = Finding::new(object, summary, cloudlet_command(object));
        found.push(finding.detail(&cloudlet.errors.join("; ")));
    }
}

fn failed(state: TrackedState) -> Option<&'static str> {
    match state {
        TrackedState::CreateError => Some("could not be created"),
        TrackedState::UpdateError => Some("could not be updated"),
        TrackedState::DeleteError => Some("could not be deleted"),
        _ => None,
    }
}

/// The app's own name in `developer/app:version@…`.
fn app_of(object: &Object) -> &str {
    let after = object.name.strip_prefix(&object.organisation).unwrap_or(&object.name);
    let after = after.trim_start_matches('/');
    after.split(':').next().unwrap_or(after)
}

pub(super) fn instance_failed(context: &Context<'_>, found: &mut Vec<Finding>) {
    for instance in each(&context.facts.instances) {
        let Some(word) = failed(instance.state) else { continue };
        let object = &instance.object;
        let command = format!(
            "selvage appinst show --developer {} --appname {}",
            quoted(&object.organisation),
            quoted(app_of(object))
        );
        let summary = format!("Instance {} {word}", named(object));
        found.push(Finding::new(object, summary, command).detail(&instance.errors.join("; ")));
    }
}

fn logs(object: &Object) -> String {
    format!("selvage logs {} --tail 50", quoted(app_of(object)))
}

pub(super) fn instance_crash_loop(context: &Context<'_>, found: &mut Vec<Finding>) {
    let most = context.thresholds.crash_loop;
    for instance in each(&context.facts.instances).filter(|instance| instance.restarts >= most) {
        let object = &instance.object;
        let summary = format!("Instance {} crashes again and again", named(object));
        let detail =
            format!("its containers were replaced {} times in ten minutes", instance.restarts);
        found.push(Finding::new(object, summary, logs(object)).detail(&detail));
    }
}

pub(super) fn instance_unhealthy(context: &Context<'_>, found: &mut Vec<Finding>) {
    let offline =
        each(&context.facts.cloudlets).filter(|cloudlet| cloudlet.state == CloudletState::Offline);
    let away: HashSet<&str> = offline.map(|cloudlet| cloudlet.object.name.as_str()).collect();
    for instance in each(&context.facts.instances) {
        let ready = instance.state == TrackedState::Ready;
        // What is wrong then is the cloudlet.
        if !ready || instance.unhealthy.is_empty() || away.contains(instance.cloudlet.as_str()) {
            continue;
        }
        let object = &instance.object;
        let summary = format!("Instance {} does not answer", named(object));
        found.push(Finding::new(object, summary, logs(object)).detail(&instance.unhealthy));
    }
}

pub(super) fn cluster_failed(context: &Context<'_>, found: &mut Vec<Finding>) {
    for cluster in each(&context.facts.clusters) {
        let Some(word) = failed(cluster.state) else { continue };
        let object = &cluster.object;
        let command =
            format!("selvage clusterinst show --developer {}", quoted(&object.organisation));
        let summary = format!("Cluster {} {word}", named(object));
        found.push(Finding::new(object, summary, command).detail(&cluster.errors.join("; ")));
    }
}

pub(super) fn kaas_cluster(context: &Context<'_>, found: &mut Vec<Finding>) {
    for cluster in each(&context.facts.kaas) {
        let (word, severity) = match cluster.status {
            ClusterStatus::Error => ("does not work", Severity::Critical),
            ClusterStatus::Degraded => ("is degraded", Severity::Warning),
            _ => continue,
        };
        let object = &cluster.object;
        let summary = format!("Kubernetes cluster {} {word}", named(object));
        let command = format!("selvage kaas show {}", quoted(&object.name));
        let finding = Finding::new(object, summary, command).severity(severity);
        found.push(finding.detail(&cluster.message));
    }
}

pub(super) fn operation_stuck(context: &Context<'_>, found: &mut Vec<Finding>) {
    for operation in each(&context.facts.operations) {
        let Some(updated) = operation.updated else { continue };
        let silent = context.now.duration_since(updated);
        if silent.unsigned_abs() < context.thresholds.operation_stuck || silent.is_negative() {
            continue;
        }
        let object = &operation.object;
        let summary = format!("{} makes no progress", outside(&operation.kind, NAME));
        let command = format!("selvage operation follow {}", quoted(&object.name));
        let detail = format!("step {} of {}", operation.step, object.key);
        found.push(Finding::new(object, summary, command).detail(&detail).since(Some(updated)));
    }
}
