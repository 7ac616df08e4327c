//! A developer who wants more than the own namespace, against a real cluster.

use std::{path::Path, sync::Arc};

use selvage_api::edgeproto::{App, TrackedState};
use selvage_crm::{
    Crm, FetchPolicy, ImageFolders, Platform, Registries,
    platform::kubernetes::{Kubernetes, Options},
};
use selvage_kit::tasks::Tasks;
use selvage_kube::{Connection, Objects, kube::Client, kube::api::ListParams, resource};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::fixture::{Cluster, Edge, IMAGE, Running, manifest};
use crate::support::{ANSWER, TestController, fetch};

const RBAC: &str = "rbac.authorization.k8s.io";
const WEBHOOKS: &str = "admissionregistration.k8s.io";
/// The account that objects of apps are applied with.
const ACCOUNT: &str = "selvage-tenant";

async fn namespace(edge: &Edge, cluster: &Cluster) -> String {
    edge.namespaces(cluster).await[0].metadata.name.clone().unwrap()
}

/// Applies an object with the rights of an app, past the allow-list; the code
/// that the API server answers.
async fn apply(client: &Client, group: &str, namespace: Option<&str>, object: &Value) -> u16 {
    let kind = resource(group, "v1", object["kind"].as_str().unwrap());
    let objects = match namespace {
        Some(namespace) => Objects::namespaced(client, namespace, &kind),
        None => Objects::all(client, &kind),
    };
    match objects.apply(object).await {
        Ok(_) => 200,
        Err(selvage_kube::Error::Api { status, .. }) => status.code,
        Err(other) => panic!("{other}"),
    }
}

fn object(api_version: &str, kind: &str, more: &Value) -> Value {
    let mut object =
        json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "taken" } });
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_itself_refuses_what_an_app_may_not_do() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut edge = Edge::new(cluster, "rights", 24111);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    let own = namespace(&edge, cluster).await;
    edge.developer = "Bmce".into();
    edge.make_cluster(&controller).await;
    let all = edge.namespaces(cluster).await;
    let mut others = all.iter().map(|found| found.metadata.name.clone().unwrap());
    let other = others.find(|name| *name != own).unwrap();

    let connection = Connection::from_file("kubeconfig", Some(cluster.kubeconfig.clone()));
    let tenant = connection.impersonate(&own, ACCOUNT).await.unwrap();
    let data = json!({ "data": { "a": "b" } });
    let map = object("v1", "ConfigMap", &data);
    assert_eq!(apply(&tenant, "", Some(&own), &map).await, 200);
    for elsewhere in [other.as_str(), "kube-system", "default"] {
        assert_eq!(apply(&tenant, "", Some(elsewhere), &map).await, 403, "{elsewhere}");
        for kind in ["Secret", "ConfigMap", "Pod"] {
            let objects = Objects::namespaced(&tenant, elsewhere, &resource("", "v1", kind));
            let listed = objects.list(&ListParams::default()).await.unwrap_err();
            assert_eq!(listed.code(), selvage_api::Code::PermissionDenied, "{elsewhere} {kind}");
        }
    }
    let rbac = format!("{RBAC}/v1");
    let everything = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    let more = json!([{ "apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"] }]);
    let to = |kind: &str, name: &str| {
        json!({
            "roleRef": { "apiGroup": RBAC, "kind": kind, "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": own }],
        })
    };
    let webhooks = format!("{WEBHOOKS}/v1");
    for (group, namespaced, wanted) in [
        (RBAC, true, object(&rbac, "RoleBinding", &to("ClusterRole", "cluster-admin"))),
        (RBAC, true, object(&rbac, "RoleBinding", &to("ClusterRole", "admin"))),
        (RBAC, true, object(&rbac, "RoleBinding", &to("ClusterRole", "system:node"))),
        (RBAC, true, object(&rbac, "Role", &json!({ "rules": everything }))),
        (RBAC, true, object(&rbac, "Role", &json!({ "rules": more }))),
        (RBAC, false, object(&rbac, "ClusterRole", &json!({ "rules": everything }))),
        (RBAC, false, object(&rbac, "ClusterRoleBinding", &to("ClusterRole", "cluster-admin"))),
        (
            WEBHOOKS,
            false,
            object(&webhooks, "ValidatingWebhookConfiguration", &json!({ "webhooks": [] })),
        ),
        (
            WEBHOOKS,
            false,
            object(&webhooks, "MutatingWebhookConfiguration", &json!({ "webhooks": [] })),
        ),
        (
            "",
            true,
            object("v1", "ResourceQuota", &json!({ "spec": { "hard": { "pods": "1000" } } })),
        ),
        ("", true, object("v1", "LimitRange", &json!({ "spec": { "limits": [] } }))),
        (
            "networking.k8s.io",
            true,
            object(
                "networking.k8s.io/v1",
                "NetworkPolicy",
                &json!({
                    "spec": { "podSelector": {}, "ingress": [{}] },
                }),
            ),
        ),
    ] {
        let into = namespaced.then_some(own.as_str());
        assert_eq!(apply(&tenant, group, into, &wanted).await, 403, "{wanted}");
    }
    let label =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let namespaces = Objects::all(&tenant, &resource("", "v1", "Namespace"));
    let relabelled = namespaces.merge(&own, &label).await.unwrap_err();
    assert_eq!(relabelled.code(), selvage_api::Code::PermissionDenied);
    // The rules for pods hold for this account as for everybody.
    let root = object(
        "v1",
        "Pod",
        &json!({
            "spec": { "hostPID": true, "containers": [{ "name": "a", "image": IMAGE }] },
        }),
    );
    assert_eq!(apply(&tenant, "", Some(&own), &root).await, 403);

    edge.unmake_cluster(&controller).await;
    edge.developer = "Acme".into();
    edge.unmake_cluster(&controller).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_manifest_is_refused_and_nothing_of_it_is_made() {
    let Some(cluster) = Cluster::shared().await else { return };
    let edge = Edge::new(cluster, "manifest", 24112);
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    let own = namespace(&edge, cluster).await;
    let plain = "{apiVersion: v1, kind: ConfigMap, metadata: {name: beside}, data: {a: b}}";
    for (text, says) in [
        (
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: up}, \
             roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, \
             subjects: [{kind: ServiceAccount, name: default}]}"
                .to_owned(),
            "RoleBinding up: roleRef.kind: \"ClusterRole\" is not one of Role",
        ),
        (
            format!(
                "{{apiVersion: v1, kind: Namespace, metadata: {{name: {own}, labels: \
                 {{pod-security.kubernetes.io/enforce: privileged}}}}}}"
            ),
            "an app may not make this kind",
        ),
        (
            "{apiVersion: v1, kind: Secret, metadata: {name: token, annotations: \
             {kubernetes.io/service-account.name: selvage-tenant}}, type: \
             kubernetes.io/service-account-token}"
                .to_owned(),
            "Secret token: ",
        ),
        (
            manifest(IMAGE, "        livenessProbe: {httpGet: {host: 169.254.169.254, port: 80}}\n"),
            "livenessProbe.httpGet.host: an app may not set this",
        ),
    ] {
        edge.fail(&controller, edge.app(&format!("{plain}\n---\n{text}\n")), says).await;
        edge.unmake(&controller).await;
    }
    let made = cluster.names("", "v1", "ConfigMap", "").await;
    assert!(!made.contains(&format!("{own}/beside")), "{made:?}");
    let labels = edge.namespaces(cluster).await[0].metadata.labels.clone().unwrap();
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "baseline");
    edge.unmake_cluster(&controller).await;
    running.stop().await;
}

/// A crm with this helm, whose charts are in the edge's folder.
async fn with_charts(cluster: &Cluster, edge: &Edge, controller: &TestController) -> Running {
    let mut settings = edge.settings(controller.address);
    settings.images = ImageFolders::new([edge.directory.path().to_owned()]);
    let options = Options {
        kubeconfig: settings.site.kubeconfig.clone(),
        registries: Registries::default(),
        policy: FetchPolicy::default(),
        addresses: settings.addresses.clone(),
        images: settings.images.clone(),
        data: settings.data.clone(),
        start_timeout: settings.start_timeout,
        helm: cluster.helm(),
        egress: settings.egress.clone(),
    };
    let platform: Arc<dyn Platform> =
        Arc::new(Kubernetes::open(&edge.cloudlet(), options).unwrap());
    let crm = Crm::with_platform(settings, Arc::clone(&platform)).await.unwrap();
    let tasks = Tasks::new(CancellationToken::new());
    Arc::new(crm).spawn(&tasks);
    Running { tasks, platform }
}

fn write_chart(folder: &Path, files: &[(&str, &str)]) {
    let meta = "apiVersion: v2\nname: hello\nversion: 0.1.0\n";
    for (name, text) in
        [("Chart.yaml", meta), ("templates/all.yaml", &manifest(IMAGE, ""))].iter().chain(files)
    {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// The chart that is checked is the one that is applied: it cannot show one
/// face to the check and another to the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chart_with_two_faces_has_one() {
    let Some(cluster) = Cluster::shared().await else { return };
    let edge = Edge::new(cluster, "faces", 24113);
    let controller = TestController::start().await;
    let running = with_charts(cluster, &edge, &controller).await;
    edge.make_cluster(&controller).await;
    let own = namespace(&edge, cluster).await;
    let chart = edge.directory.path().join("chart");
    let binding = format!(
        "{{apiVersion: {RBAC}/v1, kind: ClusterRoleBinding, metadata: {{name: two-faces}}, roleRef: \
         {{apiGroup: {RBAC}, kind: ClusterRole, name: cluster-admin}}, subjects: \
         [{{kind: ServiceAccount, name: default, namespace: {own}}}]}}"
    );
    let hidden = format!(
        "{{{{ if lookup \"v1\" \"Namespace\" \"\" \"kube-system\" }}}}\n{binding}\n{{{{ end }}}}\n"
    );
    write_chart(&chart, &[("templates/hidden.yaml", &hidden)]);
    let app = App {
        deployment: "helm".into(),
        image_path: format!("file://{}", chart.display()),
        ..edge.app("")
    };
    edge.make(&controller, app.clone(), TrackedState::Ready).await;
    assert!(fetch(edge.at()).await.is_some_and(|answer| answer.contains(ANSWER)));
    let bindings = cluster.names(RBAC, "v1", "ClusterRoleBinding", "").await;
    assert!(!bindings.contains(&"/two-faces".to_owned()), "{bindings:?}");
    edge.unmake(&controller).await;

    // Where helm looks for other things than templates.
    std::fs::remove_file(chart.join("templates/hidden.yaml")).unwrap();
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                      metadata: {name: things.example.com}\n";
    write_chart(&chart, &[("crds/thing.yaml", definition)]);
    edge.fail(&controller, app.clone(), "CustomResourceDefinition things.example.com: ").await;
    edge.unmake(&controller).await;
    std::fs::remove_dir_all(chart.join("crds")).unwrap();
    let hook = binding.replacen(
        "name: two-faces",
        "name: two-faces, annotations: {helm.sh/hook: pre-install}",
        1,
    );
    write_chart(&chart, &[("templates/hook.yaml", &hook)]);
    edge.fail(&controller, app, "ClusterRoleBinding two-faces: an app may not make this kind")
        .await;
    edge.unmake(&controller).await;
    let bindings = cluster.names(RBAC, "v1", "ClusterRoleBinding", "").await;
    assert!(!bindings.contains(&"/two-faces".to_owned()), "{bindings:?}");
    edge.unmake_cluster(&controller).await;
    running.stop().await;
}

/// A developer's cluster holds what the developer has to pull with, and nothing
/// of the operator or of anybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_holds_no_password_but_its_developers() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut edge = Edge::new(cluster, "passwords", 24114);
    let secrets = edge.directory.path().join("pull-secrets");
    std::fs::create_dir(&secrets).unwrap();
    let login =
        json!({ "auths": { "hub.example": { "username": "ann", "password": "acmes-own" } } });
    std::fs::write(secrets.join("acme.json"), login.to_string()).unwrap();
    let controller = TestController::start().await;
    let running = edge.start(&controller).await;
    edge.make_cluster(&controller).await;
    edge.developer = "Bmce".into();
    edge.make_cluster(&controller).await;
    let mut held = Vec::new();
    for found in edge.namespaces(cluster).await {
        let namespace = found.metadata.name.unwrap();
        let kind = resource("", "v1", "Secret");
        let client = cluster.client().await;
        let all = Objects::namespaced(&client, &namespace, &kind);
        for secret in all.list(&ListParams::default()).await.unwrap() {
            held.push((namespace.clone(), decoded(&secret.data)));
        }
    }
    assert_eq!(held.len(), 1, "{held:?}");
    assert!(held[0].0.starts_with("slv-acme-") && held[0].1.contains("acmes-own"), "{held:?}");
    assert!(!held[0].1.contains("geheim"), "{held:?}");
    edge.unmake_cluster(&controller).await;
    edge.developer = "Acme".into();
    edge.unmake_cluster(&controller).await;
    running.stop().await;
}

/// All that a Secret holds.
fn decoded(secret: &Value) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let values = secret["data"].as_object().into_iter().flatten();
    let text = |value: &Value| String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok();
    values.filter_map(|(_, value)| text(value)).collect()
}
