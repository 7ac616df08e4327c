//! What a crm does about an object, by the state the controller gives it.

use std::{sync::Arc, time::Duration};

use selvage_api::edgeproto::TrackedState;
use selvage_notify::ObjectKey;

use crate::{
    ClusterUpdate, Fault, Mode, Operation, Resync, Stage, What,
    crm::{World, runtime},
    infra::Plan,
};

const INCONSISTENT: &str = "inconsistent Controller vs CRM state";

/// Looks at an object once. Calls for one object never overlap.
pub(crate) async fn consider(world: Arc<World>, what: What, key: ObjectKey) {
    let reported = world.reports.reported(what, &key);
    let Some(wanted) = world.reports.wanted(what, &key) else {
        // An error about something that nobody wants and that is not there.
        if reported.is_some() && !world.ground.has(what, &key) {
            world.reports.withdraw(what, &key);
        }
        return;
    };
    match Operation::asked_by(wanted) {
        Some((operation, false)) => run(&world, what, operation, &key).await,
        Some((operation, true)) => resync(&world, what, operation, &key, reported).await,
        None => {}
    }
}

/// The controller believes that work is under way, and it is not.
async fn resync(
    world: &Arc<World>,
    what: What,
    operation: Operation,
    key: &ObjectKey,
    reported: Option<TrackedState>,
) {
    let fits = match operation {
        Operation::Delete => reported.is_none_or(|state| state == TrackedState::Deleting),
        _ => reported.is_some_and(|state| {
            [operation.busy(), failure(world, what, operation), TrackedState::Ready]
                .contains(&state)
        }),
    };
    let redo = world.options.resync == Resync::Redo
        && (!fits || (operation == Operation::Delete && reported.is_none()));
    if redo {
        return run(world, what, operation, key).await;
    }
    if !fits {
        world.ground.count(|counters| counters.inconsistent += 1);
        world.reports.report(
            what,
            key,
            operation.failed(),
            vec![INCONSISTENT.into()],
            runtime(Vec::new()),
        );
    }
}

async fn run(world: &Arc<World>, what: What, operation: Operation, key: &ObjectKey) {
    let as_original = world.options.cluster_update == ClusterUpdate::FailsAsTheOriginal;
    if (what, operation) == (What::Instance, Operation::Update) && as_original {
        return;
    }
    // Without its app an instance cannot be considered; the app's arrival
    // brings it back here.
    let needs_app = what == What::Instance && operation != Operation::Delete;
    if needs_app && world.app_of(key).is_none() {
        return;
    }
    let fault = world.faults.take(what, operation, key);
    if fault == Some(Fault::Silent) {
        return;
    }
    world.ground.count(|counters| *counters.begun.entry((what, operation)).or_default() += 1);
    world.pass(what, operation, key, Stage::Begin).await;
    if let Some(missing) = missing(world, what, operation, key) {
        return fail(world, what, operation, key, vec![missing]);
    }
    world.reports.report(what, key, operation.busy(), Vec::new(), runtime(Vec::new()));
    // The end is told apart from the beginning, as the original's crm does.
    world.flushed().await;
    match &fault {
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Disconnect) => world.disconnect().await,
        Some(Fault::Crash { remember }) => {
            world.crash(*remember);
            std::future::pending().await
        }
        Some(Fault::Late(delay)) => tokio::time::sleep(*delay).await,
        _ => {}
    }
    work(world).await;
    world.pass(what, operation, key, Stage::End).await;
    end(world, what, operation, key, fault);
}

async fn work(world: &World) {
    if let Mode::Auto { latency, jitter } = world.options.mode {
        let takes = latency + jitter.mul_f64(rand::random());
        if takes > Duration::ZERO {
            tokio::time::sleep(takes).await;
        }
    }
}

/// What has to be there before it can begin, and is not.
fn missing(world: &World, what: What, operation: Operation, key: &ObjectKey) -> Option<String> {
    if (what, operation) != (What::Instance, Operation::Create) {
        return None;
    }
    let instance = world.reports.instances.object(key)?;
    let flavor = instance.flavor.clone().unwrap_or_default();
    if world.reports.flavors.find(&flavor).is_none() {
        return Some(format!("Flavor {} not found", flavor.name));
    }
    let cluster = instance.key.clone()?.cluster_inst_key.unwrap_or_default();
    let on_machine = world.app_of(key).is_some_and(|app| app.deployment == "vm");
    if !on_machine && world.reports.clusters.find(&cluster).is_none() {
        let name = cluster.cluster_key.unwrap_or_default().name;
        return Some(format!("Cluster instance {name} not found"));
    }
    None
}

fn end(world: &World, what: What, operation: Operation, key: &ObjectKey, fault: Option<Fault>) {
    let plan = plan(world, what, key);
    if let Some(Fault::Fail { errors, residue }) = fault {
        if residue {
            world.ground.apply(what, operation, key, plan);
        }
        let words = operation.failure(what);
        let errors = errors.into_iter().map(|error| format!("{words}: {error}")).collect();
        return fail(world, what, operation, key, errors);
    }
    if (what, operation) == (What::Cluster, Operation::Update)
        && world.options.cluster_update != ClusterUpdate::Works
    {
        let text = format!("{}: sim does not update clusters", operation.failure(what));
        return fail(world, what, operation, key, vec![text]);
    }
    let containers = plan.containers.clone();
    world.ground.apply(what, operation, key, plan);
    world.ground.count(|counters| *counters.done.entry((what, operation)).or_default() += 1);
    if operation == Operation::Delete {
        world.reports.withdraw(what, key);
    } else {
        world.reports.report(what, key, TrackedState::Ready, Vec::new(), runtime(containers));
    }
}

fn fail(world: &World, what: What, operation: Operation, key: &ObjectKey, errors: Vec<String>) {
    world.ground.count(|counters| *counters.failed.entry((what, operation)).or_default() += 1);
    world.reports.report(what, key, failure(world, what, operation), errors, runtime(Vec::new()));
}

/// The state in which a failure is reported.
fn failure(world: &World, what: What, operation: Operation) -> TrackedState {
    let original = world.options.cluster_update == ClusterUpdate::FailsAsTheOriginal;
    match (what, operation) {
        (What::Cluster, Operation::Update) if original => TrackedState::DeleteError,
        _ => operation.failed(),
    }
}

fn plan(world: &World, what: What, key: &ObjectKey) -> Plan {
    match what {
        What::Cluster => Plan {
            nodes: world.reports.clusters.object(key).map_or(0, |cluster| cluster.num_nodes),
            ..Plan::default()
        },
        What::Instance => {
            let name = world.app_of(key).and_then(|app| app.key.clone()).unwrap_or_default().name;
            Plan { containers: vec![format!("sim-{name}")], ..Plan::default() }
        }
    }
}
