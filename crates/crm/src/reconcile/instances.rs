//! Instances: made, replaced and looked after.

use selvage_api::edgeproto::{App, TrackedState};
use selvage_edge::{ObjectKind, Verb};
use selvage_notify::ObjectKey;

use super::{AgentContext, with_sources};
use crate::{
    Error, Result,
    installed::{Facts, Phase, Row},
    platform::{InstanceFacts, InstanceOrder},
};

pub(super) async fn create_instance(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    if let Some(facts) = agent.installed.instance(key.text()) {
        let order = agent.order_as_made(key)?;
        let facts = settle(agent, key, &order, &facts).await?;
        agent.ready(ObjectKind::Instance, key, facts.containers);
        return Ok(());
    }
    let order = agent.instance_order(key)?;
    agent.busy(ObjectKind::Instance, Verb::Create, key);
    let neighbours: Vec<String> =
        agent.instances_in(&order.cluster).into_iter().map(|(key, _)| key).collect();
    let plan = |others: Vec<(String, Facts)>| {
        // What is in no cluster has the whole cloudlet beside it.
        let alone = order.cluster_facts.is_none();
        let near = others.into_iter().filter(|(key, _)| alone || neighbours.contains(key));
        let near: Vec<InstanceFacts> = near.filter_map(|(_, facts)| facts.instance()).collect();
        Ok(Facts::Instance(agent.platform.plan_instance(&order, &near)?))
    };
    let facts = agent.installed.begin(ObjectKind::Instance, key, plan).await?;
    let facts = facts
        .instance()
        .ok_or_else(|| Error::state("records of what this crm has made are damaged"))?;
    agent.platform.create_instance(&order, &facts).await?;
    let facts = look_at(agent, key, &order, &facts).await?;
    agent.publish(key, &order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Instance(facts.clone())).made_of(&order.app);
    agent.installed.put(ObjectKind::Instance, key.text(), row).await?;
    agent.ready(ObjectKind::Instance, key, facts.containers);
    Ok(())
}

/// Records the facts of an instance that show once it is made.
async fn look_at(
    agent: &AgentContext,
    key: &ObjectKey,
    order: &InstanceOrder,
    facts: &InstanceFacts,
) -> Result<InstanceFacts> {
    let found = agent.platform.look_at_instance(order, facts).await?;
    if let Some(row) = agent.installed.get(ObjectKind::Instance, key.text())
        && found != *facts
    {
        let row = Row { facts: Facts::Instance(found.clone()), ..row };
        agent.installed.put(ObjectKind::Instance, key.text(), row).await?;
    }
    Ok(found)
}

/// Makes sure of an instance that an earlier process made, before anybody is
/// told of it. What is to be updated is not told to be ready: that would say
/// that the update is made.
pub(crate) async fn rediscover(agent: &AgentContext, key: &ObjectKey) {
    let Some(facts) = agent.installed.instance(key.text()) else { return };
    let settled = match agent.order_as_made(key) {
        Ok(order) => settle(agent, key, &order, &facts).await,
        Err(error) => Err(error),
    };
    let wanted = agent.caches.wanted(ObjectKind::Instance, key);
    let asked = wanted.and_then(Verb::asked_by);
    match settled {
        Ok(_) if matches!(asked, Some((Verb::Update, _))) => {}
        Ok(facts) if wanted == Some(TrackedState::UpdateError) => {
            agent.report_failed_update(key, facts);
        }
        Ok(facts) => agent.ready(ObjectKind::Instance, key, facts.containers),
        Err(error) => {
            let error = with_sources(&error);
            tracing::warn!(key = key.text(), error, "is not as it should be");
        }
    }
}

/// Makes sure of an instance that was made.
async fn settle(
    agent: &AgentContext,
    key: &ObjectKey,
    order: &InstanceOrder,
    facts: &InstanceFacts,
) -> Result<InstanceFacts> {
    if agent.platform.keep_instance(order, facts).await? {
        tracing::info!(key = key.text(), "an instance was started again");
    }
    agent.note_unhealthy(key.text(), agent.platform.unhealthy_reason(&order.key).await?);
    agent.note_restarts(key.text(), agent.platform.restarts(&order.key).await?);
    let facts = look_at(agent, key, order, facts).await?;
    agent.publish(key, order, &facts).await?;
    Ok(facts)
}

/// Replaces an instance by one as it should be now. The old one serves until
/// the new one does, and goes on if it does not.
pub(super) async fn update_instance(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    let before = agent.installed.instance(key.text());
    let before = before.ok_or_else(|| Error::missing("the instance"))?;
    let notice = agent.begin_update(ObjectKind::Instance, key).await?;
    let order = agent.instance_order(key)?;
    let beside: Vec<InstanceFacts> = agent
        .instances_in(&order.cluster)
        .into_iter()
        .filter_map(|(_, row)| row.facts.instance())
        .collect();
    let facts = match agent.platform.replace_instance(&order, &before, &beside).await {
        Ok(facts) => facts,
        Err(error) => {
            go_back(agent, key, &order.app, &before).await;
            return Err(error);
        }
    };
    let facts = agent.platform.look_at_instance(&order, &facts).await?;
    agent.publish(key, &order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Instance(facts.clone())).made_of(&order.app);
    agent.installed.put(ObjectKind::Instance, key.text(), row).await?;
    agent.note_unhealthy(key.text(), String::new());
    agent.restarts.lock().remove(key.text());
    agent.note_updated(ObjectKind::Instance, key, notice);
    agent.ready(ObjectKind::Instance, key, facts.containers.clone());
    if facts.containers != before.containers
        && let Err(error) = agent.platform.retire_instance(&order.key, &before).await
    {
        tracing::warn!(key = key.text(), error = with_sources(&error), "the old version is left");
    }
    Ok(())
}

/// Lets an instance run again as it was made, after an update that failed. The
/// platform may have replaced it in place.
async fn go_back(agent: &AgentContext, key: &ObjectKey, failed: &App, facts: &InstanceFacts) {
    let restored = match agent.order_as_made(key) {
        Ok(order) if order.app == *failed => return,
        Ok(order) => agent.platform.restore_instance(&order, facts).await,
        Err(error) => Err(error),
    };
    if let Err(error) = restored {
        let error = with_sources(&error);
        tracing::warn!(key = key.text(), error, "the version of before could not be restored");
        agent.note_unhealthy(key.text(), error);
    }
}

/// Looks after an instance whose update failed: the version of before serves.
pub(super) async fn keep_serving(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    let (Some(facts), Ok(order)) = (agent.installed.instance(key.text()), agent.order_as_made(key))
    else {
        return Ok(());
    };
    let settled = settle(agent, key, &order, &facts).await;
    settled.map(|_| ()).inspect_err(|error| agent.note_unhealthy(key.text(), with_sources(error)))
}
