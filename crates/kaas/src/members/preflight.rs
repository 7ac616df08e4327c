//! Preflight checks: reasons why a cluster cannot be upgraded.

use selvage_kube::{
    k8s_openapi::api::policy::v1::PodDisruptionBudget,
    kube::{Api, Client, api::ListParams},
};

use crate::driver::Error;

/// Names disruption budgets that let no pod go: a node with one of theirs would
/// never be drained.
pub(super) async fn obstacles(client: &Client) -> Result<Vec<String>, Error> {
    let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
    let listed = budgets.list(&ListParams::default()).await;
    let listed = listed.map_err(|error| Error::Unavailable(error.to_string()))?;
    Ok(listed.items.iter().filter_map(obstacle).collect())
}

fn obstacle(budget: &PodDisruptionBudget) -> Option<String> {
    let status = budget.status.as_ref()?;
    if status.disruptions_allowed > 0 || status.expected_pods == 0 {
        return None;
    }
    let namespace = budget.metadata.namespace.as_deref().unwrap_or("default");
    let name = budget.metadata.name.as_deref().unwrap_or_default();
    Some(format!(
        "PodDisruptionBudget {namespace}/{name} lets no pod go: {} are healthy and {} have to be",
        status.current_healthy, status.desired_healthy
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_that_lets_no_pod_go_is_named() {
        let budget = |allowed: i32, expected: i32| -> PodDisruptionBudget {
            serde_json::from_value(json!({
                "metadata": { "name": "web", "namespace": "shop" },
                "status": {
                    "disruptionsAllowed": allowed, "expectedPods": expected,
                    "currentHealthy": expected, "desiredHealthy": expected,
                },
            }))
            .unwrap()
        };
        let text = obstacle(&budget(0, 2)).unwrap();
        assert!(text.starts_with("PodDisruptionBudget shop/web lets no pod go: 2"), "{text}");
        assert_eq!(obstacle(&budget(1, 2)), None);
        // Nobody is guarded by it.
        assert_eq!(obstacle(&budget(0, 0)), None);
    }
}
