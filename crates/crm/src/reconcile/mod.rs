//! Reconciles a cluster or an instance, by the state that the controller
//! gives it and by what is there.

mod clusters;
mod context;
mod instances;
mod orders;
mod removal;

use selvage_api::edgeproto::{AppInstRuntime, TrackedState};
use selvage_edge::{ObjectKind, Verb};
use selvage_notify::ObjectKey;
use selvage_work::Failure;
use tokio::time::Instant;

use self::{
    clusters::{create_cluster, keep_cluster, update_cluster},
    instances::{create_instance, keep_serving, update_instance},
    removal::{delete, remove, unmentioned},
};
pub(crate) use self::{context::AgentContext, instances::rediscover};
use crate::{Error, installed::Phase};

/// Looks at an object once and does what is to be done. Calls for one object
/// never overlap.
pub(crate) async fn consider(
    agent: &AgentContext,
    kind: ObjectKind,
    key: &ObjectKey,
) -> Result<(), Failure> {
    let Some(wanted) = agent.caches.wanted(kind, key) else {
        agent.failed.lock().remove(&(kind, key.text().to_owned()));
        agent.updated.lock().remove(&(kind, key.text().to_owned()));
        return Ok(unmentioned(agent, kind, key).await?);
    };
    agent.unmentioned.lock().remove(&(kind, key.text().to_owned()));
    let asked = Verb::asked_by(wanted);
    if agent.has_just_failed(kind, key, asked.map(|(verb, _)| verb)) {
        return Ok(());
    }
    match asked {
        // Without its app an instance cannot be considered; the app's arrival
        // brings it back here.
        Some((Verb::Create | Verb::Update, _)) if !agent.has_app(kind, key) => {}
        Some((Verb::Update, begun)) if agent.is_updated(kind, key, begun) => {
            keep(agent, kind, key).await?;
        }
        Some((verb, _)) => run(agent, kind, verb, key).await?,
        None if wanted == TrackedState::Ready => {
            agent.updated.lock().remove(&(kind, key.text().to_owned()));
            keep(agent, kind, key).await?;
        }
        None if wanted == TrackedState::UpdateError && kind == ObjectKind::Instance => {
            keep_serving(agent, key).await?;
        }
        None => {}
    }
    Ok(())
}

async fn run(
    agent: &AgentContext,
    kind: ObjectKind,
    verb: Verb,
    key: &ObjectKey,
) -> Result<(), Failure> {
    let work = async {
        match (kind, verb) {
            (_, Verb::Delete) => delete(agent, kind, key).await,
            (ObjectKind::Cluster, Verb::Create) => create_cluster(agent, key).await,
            (ObjectKind::Cluster, Verb::Update) => update_cluster(agent, key).await,
            (ObjectKind::Instance, Verb::Create) => create_instance(agent, key).await,
            (ObjectKind::Instance, Verb::Update) => update_instance(agent, key).await,
        }
    };
    // The controller may not have heard yet that it is made, and whatever is
    // wrong with it now is no reason to take it away.
    let made = agent.installed.get(kind, key.text()).is_some_and(|row| row.phase.is_whole());
    let Err(error) = work.await else { return Ok(()) };
    if made && verb == Verb::Create {
        note_unhealthy(agent, kind, key, &error);
        return Err(error.into());
    }
    let text = format!("{}: {}", verb.failure(kind), with_sources(&error));
    let failure = Failure::new(error.code(), text.clone());
    agent.failed.lock().insert((kind, key.text().to_owned()), (verb, Instant::now()));
    if verb == Verb::Create
        && let Err(error) = remove(agent, kind, key).await
    {
        tracing::error!(key = key.text(), %error, "what a failure left could not be removed");
    }
    let runtime = match (kind, verb) {
        // What was to be replaced runs on.
        (ObjectKind::Instance, Verb::Update) => {
            let facts = agent.installed.instance(key.text());
            agent.runtime(key, facts.map(|facts| facts.containers).unwrap_or_default())
        }
        _ => AppInstRuntime::default(),
    };
    agent.caches.report(kind, key, verb.failed(), vec![text], runtime);
    Err(failure)
}

pub(crate) fn with_sources(error: &Error) -> String {
    selvage_api::chain(error)
}

/// Sees to it that what should run runs.
async fn keep(agent: &AgentContext, kind: ObjectKind, key: &ObjectKey) -> Result<(), Failure> {
    let kept = async {
        if agent.installed.get(kind, key.text()).is_some_and(|row| row.phase == Phase::Updating) {
            // Nobody waits for an update any more.
            agent.installed.note(kind, key.text(), Phase::Made).await?;
        }
        match kind {
            ObjectKind::Cluster => keep_cluster(agent, key).await,
            ObjectKind::Instance => create_instance(agent, key).await,
        }
    };
    let kept: crate::Result<()> = kept.await;
    kept.map_err(|error| {
        note_unhealthy(agent, kind, key, &error);
        error.into()
    })
}

fn note_unhealthy(agent: &AgentContext, kind: ObjectKind, key: &ObjectKey, error: &Error) {
    if kind == ObjectKind::Instance {
        agent.note_unhealthy(key.text(), with_sources(error));
    }
}
