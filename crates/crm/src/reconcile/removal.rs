//! Removal of what is not wanted any more.

use selvage_api::edgeproto::{AppInstKey, ClusterInstKey};
use selvage_edge::{ObjectKind, Verb};
use selvage_notify::ObjectKey;
use tokio::time::Instant;

use super::AgentContext;
use crate::{Error, Result, installed::Phase};

pub(super) async fn delete(agent: &AgentContext, kind: ObjectKind, key: &ObjectKey) -> Result<()> {
    agent.busy(kind, Verb::Delete, key);
    remove(agent, kind, key).await?;
    agent.caches.withdraw(kind, key);
    Ok(())
}

/// Removes whatever there is of an object.
pub(super) async fn remove(agent: &AgentContext, kind: ObjectKind, key: &ObjectKey) -> Result<()> {
    agent.installed.note(kind, key.text(), Phase::Removing).await?;
    match kind {
        ObjectKind::Instance => {
            agent.note_unhealthy(key.text(), String::new());
            agent.restarts.lock().remove(key.text());
            agent.publisher.withdraw(key.text()).await;
            agent.platform.delete_instance(&key.decode()?).await?;
        }
        ObjectKind::Cluster => {
            let cluster: ClusterInstKey = key.decode()?;
            // What bears the name of a cluster that was never begun is a
            // machine of its own, and stays.
            let begun = agent.installed.get(kind, key.text()).is_some();
            let inside = if begun { agent.instances_in(&cluster) } else { Vec::new() };
            for (text, row) in inside {
                let inside: AppInstKey =
                    prost::Message::decode(row.key.as_slice()).map_err(|error| {
                        Error::state(format!(
                            "records of what this crm has made are damaged: {error}"
                        ))
                    })?;
                agent.installed.note(ObjectKind::Instance, &text, Phase::Removing).await?;
                agent.publisher.withdraw(&text).await;
                if !agent.platform.instances_go_with_cluster() {
                    agent.platform.delete_instance(&inside).await?;
                }
                agent.installed.remove(ObjectKind::Instance, &text).await?;
            }
            agent.platform.delete_cluster(&cluster).await?;
        }
    }
    agent.installed.remove(kind, key.text()).await
}

/// The controller does not know of it. It may be about to tell: what is
/// there is removed only when it has not for a while.
pub(super) async fn unmentioned(
    agent: &AgentContext,
    kind: ObjectKind,
    key: &ObjectKey,
) -> Result<()> {
    let text = key.text().to_owned();
    if agent.installed.get(kind, &text).is_none() {
        agent.caches.withdraw(kind, key);
        agent.unmentioned.lock().remove(&(kind, text));
        return Ok(());
    }
    if !agent.client.status().in_sync {
        agent.unmentioned.lock().remove(&(kind, text));
        return Ok(());
    }
    let since = *agent.unmentioned.lock().entry((kind, text.clone())).or_insert_with(Instant::now);
    if since.elapsed() < agent.grace {
        return Ok(());
    }
    remove(agent, kind, key).await?;
    tracing::info!(key = text, ?kind, "removed, as the controller does not know of it");
    agent.caches.withdraw(kind, key);
    agent.unmentioned.lock().remove(&(kind, text));
    Ok(())
}
