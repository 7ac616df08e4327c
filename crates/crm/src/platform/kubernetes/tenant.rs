//! The account of a namespace that objects of apps are applied with.
//!
//! The crm can do anything in its cluster; what an app asks for is done with
//! the rights of this account instead, so that the API server itself refuses
//! what the allow-list may have let through: other namespaces, labels of the
//! namespace, roles with more rights than the account has, webhooks, quotas,
//! policies.

use selvage_kube::{FIELD_MANAGER, kube::api::ApiResource, resource};
use serde_json::{Value, json};

use super::policy::KINDS;

/// Name of account, Role and RoleBinding.
pub(super) const ACCOUNT: &str = "selvage-tenant";
const RBAC: &str = "rbac.authorization.k8s.io";
const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
const READ: [&str; 3] = ["get", "list", "watch"];

/// Rights that an app may give to its own pods: resources and verbs by group.
/// Without writing of secrets, with which a pod could get the token of any
/// account of its namespace.
const FOR_PODS: &[(&str, &[&str], &[&str])] = &[
    ("", &["configmaps"], &VERBS),
    ("", &["events"], &["get", "list", "watch", "create", "patch", "update"]),
    ("", &["pods", "pods/log", "services", "endpoints", "persistentvolumeclaims"], &READ),
    ("apps", &["deployments", "statefulsets", "daemonsets", "replicasets"], &READ),
    ("batch", &["jobs", "cronjobs"], &READ),
    ("autoscaling", &["horizontalpodautoscalers"], &READ),
    ("policy", &["poddisruptionbudgets"], &READ),
    ("discovery.k8s.io", &["endpointslices"], &READ),
    ("coordination.k8s.io", &["leases"], &VERBS),
];

/// Account, Role and RoleBinding of a namespace, in the order to apply them.
pub(super) fn objects(namespace: &str) -> [(ApiResource, Value); 3] {
    let metadata = json!({
        "name": ACCOUNT,
        "labels": { "app.kubernetes.io/managed-by": FIELD_MANAGER },
    });
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": false,
    });
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "Role",
        "metadata": metadata,
        "rules": rules(),
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace }],
    });
    [
        (resource("", "v1", "ServiceAccount"), account),
        (resource(RBAC, "v1", "Role"), role),
        (resource(RBAC, "v1", "RoleBinding"), binding),
    ]
}

/// All kinds that an app may make, and what it may give to its pods: nobody
/// gives a right that is not its own.
fn rules() -> Vec<Value> {
    let kinds = KINDS.iter().map(|kind| {
        let of = kind.resource();
        json!({ "apiGroups": [of.group], "resources": [of.plural], "verbs": VERBS })
    });
    let pods = FOR_PODS.iter().map(|(group, resources, verbs)| {
        json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
    });
    kinds.chain(pods).collect()
}

/// Refuses rules of a Role that give more than pods may have.
pub(super) fn check_rules(value: &Value) -> Result<(), String> {
    let Value::Array(rules) = value else { return Err("it is not a list".into()) };
    rules.iter().try_for_each(check_rule)
}

fn check_rule(rule: &Value) -> Result<(), String> {
    let texts = |name: &str| -> Vec<&str> {
        rule[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    const FIELDS: [&str; 4] = ["apiGroups", "resources", "verbs", "resourceNames"];
    let mut fields = rule.as_object().into_iter().flat_map(|fields| fields.keys());
    if let Some(other) = fields.find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("{other}: an app may not set this"));
    }
    for group in texts("apiGroups") {
        for name in texts("resources") {
            for verb in texts("verbs") {
                let given = FOR_PODS.iter().any(|(of, resources, verbs)| {
                    *of == group && resources.contains(&name) && verbs.contains(&verb)
                });
                if !given {
                    let of = if group.is_empty() { "the core group" } else { group };
                    return Err(format!("pods may not be given {verb:?} of {name:?} in {of}"));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_account_reaches_its_namespace_and_nothing_that_holds_it_together() {
        let [(_, account), (_, role), (_, binding)] = objects("mine");
        assert_eq!(account["automountServiceAccountToken"], false);
        assert_eq!(binding["subjects"][0]["namespace"], "mine");
        let text = role["rules"].to_string();
        for absent in [
            "*",
            "namespaces",
            "nodes",
            "networkpolicies",
            "resourcequotas",
            "limitranges",
            "webhook",
            "clusterrole",
            "escalate",
            "bind",
            "impersonate",
            "token",
            "exec",
        ] {
            assert!(!text.contains(&format!("\"{absent}")), "{absent}: {text}");
        }
    }

    #[test]
    fn pods_are_given_what_they_may_have() {
        let rule = |group: &str, resources: &[&str], verbs: &[&str]| {
            check_rules(&json!([{ "apiGroups": [group], "resources": resources, "verbs": verbs }]))
        };
        rule("coordination.k8s.io", &["leases"], &["create", "update"]).unwrap();
        rule("", &["pods", "configmaps"], &["get", "watch"]).unwrap();
        for (group, resources, verbs) in [
            ("", ["secrets"], ["create"]),
            ("", ["secrets"], ["get"]),
            ("", ["pods"], ["create"]),
            ("", ["pods/exec"], ["create"]),
            ("", ["serviceaccounts/token"], ["create"]),
            ("*", ["pods"], ["get"]),
            ("", ["*"], ["get"]),
            ("", ["configmaps"], ["*"]),
            (RBAC, ["roles"], ["escalate"]),
        ] {
            let error = rule(group, &resources, &verbs).unwrap_err();
            assert!(error.starts_with("pods may not be given"), "{error}");
        }
        let urls = json!([{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }]);
        assert_eq!(check_rules(&urls).unwrap_err(), "nonResourceURLs: an app may not set this");
    }
}
