//! The API of a cluster: whether it answers, what it has to hold, its nodes.

use std::{sync::Arc, time::Duration};

use selvage_kube::{
    Connection, Credentials, Objects,
    k8s_openapi::api::core::v1::{Node as KubeNode, Taint},
    kube::{
        Api, Client,
        api::{DeleteParams, ListParams, Patch, PatchParams},
    },
    resource,
};
use serde_json::{Value, json};

use super::{Members, spec::API_PORT, storage};
use crate::{
    driver::{Error, Node, Progress},
    pki::{ADMINS, Leaf, VOLUMES},
    plan::Snapshot,
    record::{Machine, Phase},
};

/// Life of our own certificate; made anew after two thirds of it.
const OWN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// An API server that is well answers much sooner.
const READY_TIMEOUT: Duration = Duration::from_secs(3);
/// Marks of a node that is to be the first to go.
const DELETE_FIRST: [&str; 2] =
    ["cluster.k8s.io/delete-machine", "cluster.x-k8s.io/delete-machine"];
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const WORKER: &str = "node-role.kubernetes.io/worker";
const NO_SCHEDULE: &str = "NoSchedule";
/// Status of a change of an object that somebody else has changed.
const CONFLICT: u16 = 409;

impl Members {
    async fn connection(
        &self,
        snapshot: &Snapshot,
        address: &str,
    ) -> Result<Arc<Connection>, Error> {
        let stage = snapshot.cluster.authorities.stage;
        let name = (snapshot.cluster.uid.clone(), address.to_owned(), stage);
        let now = self.clock.now();
        if let Some((known, until)) = self.connections.lock().get(&name)
            && *until > now
        {
            return Ok(Arc::clone(known));
        }
        let keys = self.keyring.keys(&snapshot.cluster).await?;
        let leaf = Leaf {
            common_name: "selvage:kaas".into(),
            // It gives the others their rights, so it has them all.
            organisation: Some("system:masters".into()),
            client: true,
            server: false,
            names: Vec::new(),
            lifetime: OWN_LIFETIME,
        };
        let issued = keys.signer(stage)?.kubernetes.issue(&leaf, now / 1000)?;
        let made = Arc::new(Connection::from_credentials(&Credentials {
            server: format!("https://{address}:{API_PORT}"),
            ca: keys.trusted(stage, |all| &all.kubernetes)?,
            certificate: issued.certificate,
            key: issued.key,
        })?);
        let until = now + u64::try_from(OWN_LIFETIME.as_millis() * 2 / 3).unwrap_or(0);
        let mut connections = self.connections.lock();
        // Those of an earlier stage serve nobody any more.
        connections.retain(|(uid, _, of), _| *uid != name.0 || *of == stage);
        connections.insert(name, (Arc::clone(&made), until));
        Ok(made)
    }

    /// A client of the first API server that says it is ready.
    pub(super) async fn client(&self, snapshot: &Snapshot) -> Result<Client, Error> {
        let mut last = Error::Unavailable("no control plane runs".into());
        for machine in serving(snapshot) {
            let client = self.connection(snapshot, &machine.address).await?.client().await?;
            match answers(&client).await {
                Ok(()) => return Ok(client),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(super) async fn find_api(&self, snapshot: &Snapshot) -> Result<Option<String>, Error> {
        for machine in serving(snapshot) {
            let client = self.connection(snapshot, &machine.address).await?.client().await?;
            if answers(&client).await.is_ok() {
                return Ok(Some(endpoint(machine)));
            }
        }
        Ok(None)
    }

    /// Puts into the API what everything else needs.
    pub(super) async fn prepare(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
    ) -> Result<(), Error> {
        let uid = &snapshot.cluster.uid;
        if self.prepared.lock().contains(uid) {
            return Ok(());
        }
        let client = self.connection(snapshot, &machine.address).await?.client().await?;
        for (kind, object) in [
            ("ClusterRole", dns_role()),
            (
                "ClusterRoleBinding",
                binding("selvage:coredns", "selvage:coredns", "User", "system:coredns"),
            ),
            ("ClusterRoleBinding", binding(ADMINS, "cluster-admin", "Group", ADMINS)),
            ("ClusterRole", storage::role()),
            ("ClusterRoleBinding", binding(VOLUMES, VOLUMES, "Group", VOLUMES)),
        ] {
            let resource = resource("rbac.authorization.k8s.io", "v1", kind);
            Objects::all(&client, &resource).apply(&object).await?;
        }
        storage::provide(&client).await?;
        self.prepared.lock().insert(uid.clone());
        Ok(())
    }

    /// Gives a node its labels, taints and role, and sees whether it is ready.
    pub(super) async fn join_node(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
    ) -> Result<Progress, Error> {
        let client = self.client(snapshot).await?;
        let nodes: Api<KubeNode> = Api::all(client);
        let found = nodes.get_opt(&machine.name).await;
        let found = found.map_err(|error| Error::Unavailable(error.to_string()))?;
        let Some(node) = found else {
            return Ok(Progress::Waiting("the node has not registered".into()));
        };
        let wanted = format!("v{}", machine.wanted.kubelet);
        let shown = shown(&node);
        if shown.kubelet_version != wanted.trim_start_matches('v') {
            let text = format!("kubelet {} is not {wanted} yet", shown.kubelet_version);
            return Ok(Progress::Waiting(text));
        }
        let patch = PatchParams::default();
        let change = Patch::Merge(marks(snapshot, machine, &node));
        match nodes.patch(&machine.name, &patch, &change).await {
            Err(selvage_kube::kube::Error::Api(status)) if status.code == CONFLICT => {
                return Ok(Progress::Waiting("the node is changed by somebody else".into()));
            }
            patched => patched.map_err(|error| Error::Unavailable(error.to_string()))?,
        };
        if !shown.ready {
            return Ok(Progress::Waiting(shown.reason));
        }
        if machine.founder && !snapshot.cluster.restored_from.is_empty() {
            forget_nodes(&nodes, snapshot).await?;
        }
        Ok(Progress::Done)
    }

    /// Makes the taint of a node of the control plane as it has to be.
    pub(super) async fn taint_node(
        &self,
        snapshot: &Snapshot,
        machine: &Machine,
    ) -> Result<(), Error> {
        let failed = |error: selvage_kube::kube::Error| Error::Unavailable(error.to_string());
        let nodes: Api<KubeNode> = Api::all(self.client(snapshot).await?);
        let node = nodes.get(&machine.name).await.map_err(failed)?;
        if let Some(change) = taint_change(&node, snapshot.has_workers()) {
            let patch = PatchParams::default();
            nodes.patch(&machine.name, &patch, &Patch::Merge(change)).await.map_err(failed)?;
        }
        Ok(())
    }

    pub(super) async fn list_nodes(&self, snapshot: &Snapshot) -> Result<Vec<Node>, Error> {
        let client = self.client(snapshot).await?;
        let nodes: Api<KubeNode> = Api::all(client);
        let listed = nodes.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(listed.items.iter().map(shown).collect())
    }

    pub(super) async fn delete_node(&self, snapshot: &Snapshot, name: &str) -> Result<(), Error> {
        let client = self.client(snapshot).await?;
        let kind = resource("", "v1", "Node");
        let deleted = Objects::all(&client, &kind).delete(name, &DeleteParams::default()).await;
        match deleted {
            Err(error) if error.code() == selvage_api::Code::NotFound => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Deletes nodes that a snapshot knew and that are no machines of the cluster; the
/// pods of theirs are made anew elsewhere.
async fn forget_nodes(nodes: &Api<KubeNode>, snapshot: &Snapshot) -> Result<(), Error> {
    let failed = |error: selvage_kube::kube::Error| Error::Unavailable(error.to_string());
    let listed = nodes.list(&ListParams::default()).await.map_err(failed)?;
    for name in listed.items.into_iter().filter_map(|node| node.metadata.name) {
        if snapshot.machines.iter().all(|machine| machine.name != name) {
            nodes.delete(&name, &DeleteParams::default()).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Sees whether an API server is ready. One on a machine without power says
/// nothing at all.
async fn answers(client: &Client) -> Result<(), Error> {
    match tokio::time::timeout(READY_TIMEOUT, selvage_kube::ready(client)).await {
        Ok(ready) => Ok(ready?),
        Err(_) => Err(Error::Unavailable("the API does not answer in time".into())),
    }
}

fn endpoint(machine: &Machine) -> String {
    format!("{}:{API_PORT}", machine.address)
}

/// Control planes that can be expected to answer, those that are well first.
fn serving(snapshot: &Snapshot) -> Vec<&Machine> {
    let serves = |machine: &&Machine| {
        machine.is_control_plane()
            && !machine.address.is_empty()
            && !machine.running.control_plane.is_empty()
            && machine.phase().is_member()
    };
    let mut serving: Vec<&Machine> = snapshot.machines.iter().filter(serves).collect();
    // The one that callers know stays it as long as it answers.
    let known = |machine: &Machine| snapshot.cluster.endpoint == endpoint(machine);
    serving.sort_by_key(|machine| (machine.phase() != Phase::Ready, !known(machine)));
    serving
}

/// Labels and taints put on a node after it joined: a kubelet may not set them
/// of itself.
fn marks(snapshot: &Snapshot, machine: &Machine, node: &KubeNode) -> Value {
    let role = if machine.is_control_plane() { CONTROL_PLANE } else { WORKER };
    let mut labels = serde_json::Map::new();
    for (key, value) in &machine.labels {
        labels.insert(key.clone(), json!(value));
    }
    labels.insert(role.into(), json!(""));
    let taint = machine.is_control_plane().then(|| taint_change(node, snapshot.has_workers()));
    let mut marks = taint.flatten().unwrap_or_else(|| json!({ "metadata": {}, "spec": {} }));
    marks["metadata"]["labels"] = Value::Object(labels);
    marks["spec"]["unschedulable"] = Value::Null;
    marks
}

/// The change that keeps pods away from a node of the control plane, or lets them come;
/// `None` if it is so. Where there are workers they do the work. Taints of others stay:
/// the change holds for the node as it was read alone.
fn taint_change(node: &KubeNode, tainted: bool) -> Option<Value> {
    if is_tainted(node) == tainted {
        return None;
    }
    let known = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let others = known.into_iter().flatten().filter(|taint| !is_own(taint));
    let mut taints: Vec<Value> = others.map(|taint| json!(taint)).collect();
    if tainted {
        taints.push(json!({ "key": CONTROL_PLANE, "effect": NO_SCHEDULE }));
    }
    let version = node.metadata.resource_version.as_deref();
    Some(json!({
        "metadata": { "resourceVersion": version },
        "spec": { "taints": taints },
    }))
}

fn is_own(taint: &Taint) -> bool {
    taint.key == CONTROL_PLANE && taint.effect == NO_SCHEDULE
}

fn is_tainted(node: &KubeNode) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(is_own))
}

fn shown(node: &KubeNode) -> Node {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let reason = match ready {
        Some(condition) => condition.message.clone().unwrap_or_default(),
        None => "the kubelet has not reported".into(),
    };
    let version = status
        .and_then(|status| status.node_info.as_ref())
        .map(|info| info.kubelet_version.trim_start_matches('v').to_owned());
    let annotations = node.metadata.annotations.as_ref();
    let spec = node.spec.as_ref();
    Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        ready: ready.is_some_and(|condition| condition.status == "True"),
        unknown: ready.is_none_or(|condition| condition.status == "Unknown"),
        reason,
        schedulable: !spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        kubelet_version: version.unwrap_or_default(),
        delete_first: annotations
            .is_some_and(|all| DELETE_FIRST.iter().any(|key| all.contains_key(*key))),
        tainted: is_tainted(node),
    }
}

fn dns_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": "selvage:coredns" },
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["services", "pods", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            },
        ],
    })
}

fn binding(name: &str, role: &str, kind: &str, subject: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": subject,
        }],
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(taints: &Value) -> KubeNode {
        serde_json::from_value(json!({
            "metadata": { "name": "cp-1", "resourceVersion": "7" },
            "spec": { "taints": taints },
        }))
        .unwrap()
    }

    #[test]
    fn a_node_of_a_silent_kubelet_is_unknown_and_not_just_not_ready() {
        let read = |ready: Value, cordoned: bool| {
            let conditions = if ready.is_null() { json!([]) } else { json!([ready]) };
            let node: KubeNode = serde_json::from_value(json!({
                "metadata": { "name": "a-1" },
                "spec": { "unschedulable": cordoned },
                "status": { "conditions": conditions },
            }))
            .unwrap();
            let node = shown(&node);
            (node.ready, node.unknown, node.schedulable)
        };
        let ready = |status: &str| json!({ "type": "Ready", "status": status });
        assert_eq!(read(ready("True"), false), (true, false, true));
        assert_eq!(read(ready("True"), true), (true, false, false));
        assert_eq!(read(ready("False"), false), (false, false, true));
        assert_eq!(read(ready("Unknown"), false), (false, true, true));
        assert_eq!(read(Value::Null, false), (false, true, true));
    }

    #[test]
    fn only_the_taint_of_the_control_plane_is_changed() {
        let own = json!({ "key": CONTROL_PLANE, "effect": NO_SCHEDULE });
        let foreign = json!({ "key": "rack", "value": "1", "effect": "NoExecute" });
        let both = node(&json!([foreign, own]));
        let alone = node(&json!([foreign]));
        for (node, tainted, after) in [
            (&both, true, None),
            (&both, false, Some(json!([foreign]))),
            (&alone, false, None),
            (&alone, true, Some(json!([foreign, own]))),
            (&node(&json!([own])), false, Some(json!([]))),
            (&node(&Value::Null), true, Some(json!([own]))),
        ] {
            let change = taint_change(node, tainted);
            assert_eq!(change.as_ref().map(|change| &change["spec"]["taints"]), after.as_ref());
            let read = change.map(|change| change["metadata"]["resourceVersion"].clone());
            assert_eq!(read, after.map(|_| json!("7")), "it holds for that node alone");
        }
    }
}
