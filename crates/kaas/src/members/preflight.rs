//! Preflight checks: reasons why a cluster cannot be upgraded.

use selvage_kube::{
    k8s_openapi::api::policy::v1::PodDisruptionBudget,
    kube::{Api, Client, api::ListParams},
};

use crate::{catalogue::Version, driver::Error};

/// Names disruption budgets that let no pod go, because a node with one of theirs would
/// never be drained, and APIs that somebody asks for and the new version does not have.
pub(super) async fn obstacles(client: &Client, to: Version) -> Result<Vec<String>, Error> {
    let failed = |error: selvage_kube::kube::Error| Error::Unavailable(error.to_string());
    let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
    let listed = budgets.list(&ListParams::default()).await.map_err(failed)?;
    let mut found: Vec<String> = listed.items.iter().filter_map(obstacle).collect();
    let metrics = selvage_kube::metrics(client).await?;
    found.extend(metrics.lines().filter_map(|line| removed_api(line, to)));
    Ok(found)
}

/// A sentence for a line of the API server's metrics that tells of an API which was asked
/// for since it started, and which is gone in the version or before it.
fn removed_api(line: &str, to: Version) -> Option<String> {
    let labels = line.strip_prefix("apiserver_requested_deprecated_apis{")?.split_once('}')?.0;
    let label = |name: &str| {
        let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(known, _)| *known == name)?;
        Some(value.trim_matches('"').to_owned())
    };
    let gone = label("removed_release")?;
    let (major, minor) = gone.split_once('.')?;
    if (major.parse().ok()?, minor.parse().ok()?) > (to.major, to.minor) {
        return None;
    }
    let (group, version, resource) = (label("group")?, label("version")?, label("resource")?);
    let api = if group.is_empty() { version } else { format!("{group}/{version}") };
    Some(format!("{resource} of {api} are in use, and Kubernetes {gone} has no such API"))
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
    fn an_api_that_is_in_use_and_goes_is_named() {
        let line = |gone: &str, group: &str| {
            format!(
                "apiserver_requested_deprecated_apis{{group=\"{group}\",removed_release=\"{gone}\",\
                 resource=\"jobs\",subresource=\"\",version=\"v1beta1\"}} 1"
            )
        };
        let to: Version = "1.37.1".parse().unwrap();
        for gone in ["1.37", "1.9"] {
            let text = removed_api(&line(gone, "batch"), to).unwrap();
            let expected = "jobs of batch/v1beta1 are in use, and Kubernetes";
            assert!(text.starts_with(expected) && text.contains(gone), "{text}");
        }
        assert!(removed_api(&line("1.37", ""), to).unwrap().contains("of v1beta1 are"));
        // Somebody has more time, or said nothing about it.
        assert_eq!(removed_api(&line("1.38", "batch"), to), None);
        assert_eq!(removed_api(&line("", "batch"), to), None);
        assert_eq!(removed_api("apiserver_request_total{code=\"200\"} 1", to), None);
    }

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
