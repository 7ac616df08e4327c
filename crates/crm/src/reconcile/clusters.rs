//! Clusters: made, changed and looked after.

use selvage_edge::{ObjectKind, Verb};
use selvage_notify::ObjectKey;

use super::AgentContext;
use crate::{
    Error, Result,
    installed::{Facts, Phase, Row},
    platform::ClusterFacts,
};

pub(super) async fn create_cluster(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    if agent.installed.cluster(key.text()).is_some() {
        agent.ready(ObjectKind::Cluster, key, Vec::new());
        return Ok(());
    }
    let order = agent.cluster_order(key)?;
    agent.busy(ObjectKind::Cluster, Verb::Create, key);
    let plan = |others: Vec<(String, Facts)>| {
        let others: Vec<ClusterFacts> =
            others.into_iter().filter_map(|(_, facts)| facts.cluster()).collect();
        Ok(Facts::Cluster(agent.platform.plan_cluster(&order, &others)?))
    };
    let facts = agent.installed.begin(ObjectKind::Cluster, key, plan).await?;
    let facts = facts
        .cluster()
        .ok_or_else(|| Error::state("records of what this crm has made are damaged"))?;
    agent.platform.create_cluster(&order, &facts).await?;
    agent.installed.note(ObjectKind::Cluster, key.text(), Phase::Made).await?;
    agent.ready(ObjectKind::Cluster, key, Vec::new());
    Ok(())
}

pub(super) async fn update_cluster(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    let facts = agent.installed.cluster(key.text());
    let facts = facts.ok_or_else(|| Error::missing("the cluster"))?;
    let notice = agent.begin_update(ObjectKind::Cluster, key).await?;
    let order = agent.cluster_order(key)?;
    let facts = agent.platform.update_cluster(&order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Cluster(facts));
    agent.installed.put(ObjectKind::Cluster, key.text(), row).await?;
    agent.note_updated(ObjectKind::Cluster, key, notice);
    agent.ready(ObjectKind::Cluster, key, Vec::new());
    Ok(())
}

pub(super) async fn keep_cluster(agent: &AgentContext, key: &ObjectKey) -> Result<()> {
    let Some(facts) = agent.installed.cluster(key.text()) else {
        return create_cluster(agent, key).await;
    };
    agent.platform.keep_cluster(&key.decode()?, &facts).await?;
    agent.ready(ObjectKind::Cluster, key, Vec::new());
    Ok(())
}
