//! Reconciles an object, by the state the controller gives it.

use std::{sync::Arc, time::Duration};

use selvage_api::edgeproto::TrackedState;
use selvage_edge::deployment;
use selvage_notify::ObjectKey;

use crate::{
    ClusterUpdate, Fault, Mode, ObjectKind, Resync, Stage, Verb,
    crm::{CrmInner, runtime},
    infra::Plan,
};

const INCONSISTENT: &str = "inconsistent Controller vs CRM state";

/// Looks at an object once. Calls for one object never overlap.
pub(crate) async fn consider(inner: Arc<CrmInner>, kind: ObjectKind, key: ObjectKey) {
    let reported = inner.reports.reported(kind, &key);
    let Some(wanted) = inner.reports.wanted(kind, &key) else {
        // An error about something that nobody wants and that is not there.
        if reported.is_some() && !inner.infra.has(kind, &key) {
            inner.reports.withdraw(kind, &key);
        }
        return;
    };
    match Verb::asked_by(wanted) {
        Some((verb, false)) => run(&inner, kind, verb, &key).await,
        Some((verb, true)) => resync(&inner, kind, verb, &key, reported).await,
        None => {}
    }
}

/// The controller believes that work is under way, and it is not.
async fn resync(
    inner: &Arc<CrmInner>,
    kind: ObjectKind,
    verb: Verb,
    key: &ObjectKey,
    reported: Option<TrackedState>,
) {
    let fits = match verb {
        Verb::Delete => reported.is_none_or(|state| state == TrackedState::Deleting),
        _ => reported.is_some_and(|state| {
            [verb.busy(), failure(inner, kind, verb), TrackedState::Ready].contains(&state)
        }),
    };
    let redo = inner.options.resync == Resync::Redo
        && (!fits || (verb == Verb::Delete && reported.is_none()));
    if redo {
        return run(inner, kind, verb, key).await;
    }
    if !fits {
        inner.infra.count(|counters| counters.inconsistent += 1);
        inner.reports.report(
            kind,
            key,
            verb.failed(),
            vec![INCONSISTENT.into()],
            runtime(Vec::new()),
        );
    }
}

async fn run(inner: &Arc<CrmInner>, kind: ObjectKind, verb: Verb, key: &ObjectKey) {
    let as_original = inner.options.cluster_update == ClusterUpdate::FailsAsTheOriginal;
    if (kind, verb) == (ObjectKind::Instance, Verb::Update) && as_original {
        return;
    }
    // Without its app an instance cannot be considered; the app's arrival
    // brings it back here.
    let needs_app = kind == ObjectKind::Instance && verb != Verb::Delete;
    if needs_app && inner.app_of(key).is_none() {
        return;
    }
    let fault = inner.faults.take(kind, verb, key);
    if fault == Some(Fault::Silent) {
        return;
    }
    inner.infra.count(|counters| *counters.begun.entry((kind, verb)).or_default() += 1);
    inner.pass(kind, verb, key, Stage::Begin).await;
    if let Some(missing) = missing(inner, kind, verb, key) {
        return fail(inner, kind, verb, key, vec![missing]);
    }
    inner.reports.report(kind, key, verb.busy(), Vec::new(), runtime(Vec::new()));
    // The end is told apart from the beginning, as the original's crm does.
    inner.flushed().await;
    match &fault {
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Disconnect) => inner.disconnect().await,
        Some(Fault::Crash { remember }) => {
            inner.crash(*remember);
            std::future::pending().await
        }
        Some(Fault::Late(delay)) => tokio::time::sleep(*delay).await,
        _ => {}
    }
    work(inner).await;
    inner.pass(kind, verb, key, Stage::End).await;
    end(inner, kind, verb, key, fault);
}

async fn work(inner: &CrmInner) {
    if let Mode::Auto { latency, jitter } = inner.options.mode {
        let takes = latency + jitter.mul_f64(rand::random());
        if takes > Duration::ZERO {
            tokio::time::sleep(takes).await;
        }
    }
}

/// Returns what has to exist before it can begin, and does not.
fn missing(inner: &CrmInner, kind: ObjectKind, verb: Verb, key: &ObjectKey) -> Option<String> {
    if (kind, verb) != (ObjectKind::Instance, Verb::Create) {
        return None;
    }
    let instance = inner.reports.instances.object(key)?;
    let flavor = instance.flavor.clone().unwrap_or_default();
    if inner.reports.flavors.find(&flavor).is_none() {
        return Some(format!("Flavor {} not found", flavor.name));
    }
    let cluster = instance.key.clone()?.cluster_inst_key.unwrap_or_default();
    let on_machine = inner.app_of(key).is_some_and(|app| app.deployment == deployment::VM);
    if !on_machine && inner.reports.clusters.find(&cluster).is_none() {
        let name = cluster.cluster_key.unwrap_or_default().name;
        return Some(format!("Cluster instance {name} not found"));
    }
    None
}

fn end(inner: &CrmInner, kind: ObjectKind, verb: Verb, key: &ObjectKey, fault: Option<Fault>) {
    let plan = plan(inner, kind, key);
    if let Some(Fault::Fail { errors, residue }) = fault {
        if residue {
            inner.infra.apply(kind, verb, key, plan);
        }
        let words = verb.failure(kind);
        let errors = errors.into_iter().map(|error| format!("{words}: {error}")).collect();
        return fail(inner, kind, verb, key, errors);
    }
    if (kind, verb) == (ObjectKind::Cluster, Verb::Update)
        && inner.options.cluster_update != ClusterUpdate::Works
    {
        let text = format!("{}: sim does not update clusters", verb.failure(kind));
        return fail(inner, kind, verb, key, vec![text]);
    }
    let containers = plan.containers.clone();
    inner.infra.apply(kind, verb, key, plan);
    inner.infra.count(|counters| *counters.done.entry((kind, verb)).or_default() += 1);
    if verb == Verb::Delete {
        inner.reports.withdraw(kind, key);
    } else {
        inner.reports.report(kind, key, TrackedState::Ready, Vec::new(), runtime(containers));
    }
}

fn fail(inner: &CrmInner, kind: ObjectKind, verb: Verb, key: &ObjectKey, errors: Vec<String>) {
    inner.infra.count(|counters| *counters.failed.entry((kind, verb)).or_default() += 1);
    inner.reports.report(kind, key, failure(inner, kind, verb), errors, runtime(Vec::new()));
}

/// The state in which a failure is reported.
fn failure(inner: &CrmInner, kind: ObjectKind, verb: Verb) -> TrackedState {
    let original = inner.options.cluster_update == ClusterUpdate::FailsAsTheOriginal;
    match (kind, verb) {
        (ObjectKind::Cluster, Verb::Update) if original => TrackedState::DeleteError,
        _ => verb.failed(),
    }
}

fn plan(inner: &CrmInner, kind: ObjectKind, key: &ObjectKey) -> Plan {
    match kind {
        ObjectKind::Cluster => Plan {
            nodes: inner.reports.clusters.object(key).map_or(0, |cluster| cluster.num_nodes),
            ..Plan::default()
        },
        ObjectKind::Instance => {
            let name = inner.app_of(key).and_then(|app| app.key.clone()).unwrap_or_default().name;
            Plan { containers: vec![format!("sim-{name}")], ..Plan::default() }
        }
    }
}
