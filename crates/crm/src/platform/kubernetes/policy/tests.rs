#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use serde_json::json;

use super::{super::manifest, *};

fn check(text: &str) -> Result<(), String> {
    let objects = manifest::read(text).map_err(|error| error.to_string())?;
    let checked = objects.iter().try_for_each(|object| super::check(object, "mine").map(drop));
    checked.map_err(|error| error.to_string())
}

fn refused(value: &Value, says: &str) {
    let error = check(&value.to_string()).expect_err(says);
    assert!(error.contains(says), "{says}: {error}");
}

/// A Deployment whose pod has this in addition.
fn with_pod(more: &Value) -> Value {
    let mut spec = json!({ "containers": [{ "name": "a", "image": "b" }] });
    merge(&mut spec, more);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": { "template": { "spec": spec } },
    })
}

fn with_container(more: &Value) -> Value {
    let mut container = json!({ "name": "a", "image": "b" });
    merge(&mut container, more);
    with_pod(&json!({ "containers": [container] }))
}

fn merge(into: &mut Value, more: &Value) {
    let more = more.as_object().unwrap().clone();
    into.as_object_mut().unwrap().extend(more);
}

#[test]
fn kinds_that_are_not_listed_are_refused_whatever_they_are() {
    for (api_version, kind) in [
        ("v1", "Namespace"),
        ("v1", "Node"),
        ("v1", "PersistentVolume"),
        ("v1", "ResourceQuota"),
        ("v1", "LimitRange"),
        ("v1", "Endpoints"),
        ("v1", "ReplicationController"),
        ("discovery.k8s.io/v1", "EndpointSlice"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("networking.k8s.io/v1", "Ingress"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("apiregistration.k8s.io/v1", "APIService"),
        ("certificates.k8s.io/v1", "CertificateSigningRequest"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("example.com/v1", "Whatever"),
    ] {
        let object =
            json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "x" } });
        refused(&object, &format!("{kind} x: an app may not make this kind, only Deployment,"));
    }
    let old = json!({ "apiVersion": "extensions/v1beta1", "kind": "Deployment", "metadata": { "name": "x" } });
    refused(&old, "apiVersion \"extensions/v1beta1\" is not possible: use apps/v1");
}

#[test]
fn metadata_reaches_no_other_namespace_and_no_controller() {
    let with = |metadata: Value| {
        let mut all = json!({ "name": "x" });
        merge(&mut all, &metadata);
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": all })
    };
    check(&with(json!({ "namespace": "mine", "creationTimestamp": null })).to_string()).unwrap();
    check(&with(json!({ "labels": { "a": "b", "app.kubernetes.io/name": "c" } })).to_string())
        .unwrap();
    check(&with(json!({ "annotations": { "checksum/a": "b", "note": "c" } })).to_string()).unwrap();
    for (metadata, says) in [
        (
            json!({ "namespace": "kube-system" }),
            "namespace \"kube-system\" is not that of the cluster (mine)",
        ),
        (json!({ "name": "selvage-tenant" }), "names with selvage- are reserved"),
        (json!({ "finalizers": ["a/b"] }), "metadata.finalizers: an app may not set this"),
        (json!({ "ownerReferences": [{ "name": "a" }] }), "metadata.ownerReferences: "),
        (json!({ "labels": { "selvage.site": "a" } }), "labels with selvage. are reserved"),
        (
            json!({ "annotations": { "external-dns.alpha.kubernetes.io/hostname": "a" } }),
            "annotation",
        ),
        (
            json!({ "annotations": { "service.beta.kubernetes.io/aws-load-balancer-type": "a" } }),
            "annotation",
        ),
        (json!({ "annotations": { "k8s.v1.cni.cncf.io/networks": "a" } }), "annotation"),
        (json!({ "annotations": { "kubernetes.io/service-account.name": "a" } }), "annotation"),
    ] {
        refused(&with(metadata), says);
    }
}

#[test]
fn pods_have_nothing_of_their_node() {
    check(&with_pod(&json!({
        "hostNetwork": false, "hostPID": null, "nodeSelector": {}, "tolerations": [],
        "securityContext": { "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
        "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "configMap": { "name": "c" } }],
        "serviceAccountName": "own",
    })).to_string())
    .unwrap();
    let volume = |source: &str| json!({ "volumes": [{ "name": "v", source: { "path": "/" } }] });
    for source in
        ["hostPath", "nfs", "iscsi", "csi", "flexVolume", "rbd", "cephfs", "image", "fc", "local"]
    {
        refused(&with_pod(&volume(source)), &format!("spec.template.spec.volumes[0].{source}: "));
    }
    for (pod, says) in [
        (json!({ "hostNetwork": true }), "spec.template.spec.hostNetwork: an app may not set this"),
        (json!({ "hostPID": true }), "hostPID"),
        (json!({ "hostIPC": true }), "hostIPC"),
        (json!({ "hostUsers": true }), "hostUsers"),
        (json!({ "nodeName": "control-plane" }), "nodeName"),
        (json!({ "priorityClassName": "system-node-critical" }), "priorityClassName"),
        (json!({ "runtimeClassName": "other" }), "runtimeClassName"),
        (json!({ "schedulerName": "other" }), "schedulerName"),
        (json!({ "serviceAccountName": "selvage-tenant" }), "names with selvage- are reserved"),
        (json!({ "ephemeralContainers": [{ "name": "e" }] }), "ephemeralContainers"),
        (json!({ "tolerations": [{ "operator": "Exists" }] }), "tolerations[0]: key is not one of"),
        (json!({ "securityContext": { "sysctls": [{ "name": "a" }] } }), "securityContext.sysctls"),
        (
            json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } }),
            "Unconfined",
        ),
        (json!({ "a-field-of-tomorrow": 1 }), "a-field-of-tomorrow: an app may not set this"),
    ] {
        refused(&with_pod(&pod), says);
    }
}

#[test]
fn containers_ask_for_no_rights_and_send_their_node_nowhere() {
    check(&with_container(&json!({
        "ports": [{ "containerPort": 80, "hostPort": 0 }],
        "securityContext": { "privileged": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } },
        "livenessProbe": { "httpGet": { "path": "/", "port": 80 } },
        "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
    })).to_string())
    .unwrap();
    for (container, says) in [
        (
            json!({ "securityContext": { "privileged": true } }),
            "containers[0].securityContext.privileged",
        ),
        (
            json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } }),
            "\"SYS_ADMIN\" is not one of",
        ),
        (json!({ "securityContext": { "procMount": "Unmasked" } }), "procMount"),
        (json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] }), "ports[0].hostPort"),
        (
            json!({ "livenessProbe": { "httpGet": { "host": "169.254.169.254", "port": 80 } } }),
            "livenessProbe.httpGet.host",
        ),
        (
            json!({ "readinessProbe": { "tcpSocket": { "host": "10.0.0.1", "port": 22 } } }),
            "readinessProbe.tcpSocket.host",
        ),
        (
            json!({ "lifecycle": { "postStart": { "httpGet": { "host": "10.0.0.1", "port": 80 } } } }),
            "postStart.httpGet.host",
        ),
        (
            json!({ "lifecycle": { "preStop": { "tcpSocket": { "port": 80 } } } }),
            "preStop.tcpSocket",
        ),
        (
            json!({ "volumeMounts": [{ "name": "a", "mountPropagation": "Bidirectional" }] }),
            "mountPropagation",
        ),
        (json!({ "volumeDevices": [{ "name": "a", "devicePath": "/dev/x" }] }), "volumeDevices"),
    ] {
        refused(&with_container(&container), says);
        let inits = with_container(&container)["spec"]["template"]["spec"]["containers"].clone();
        refused(&with_pod(&json!({ "initContainers": inits })), "initContainers[0].");
    }
    // Where a pod is in other kinds.
    let bad = json!({ "spec": { "hostNetwork": true } });
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j" }, "spec": { "template": bad } });
    refused(&job, "spec.template.spec.hostNetwork");
    let cron = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "j" },
        "spec": { "jobTemplate": { "spec": { "template": bad } } } });
    refused(&cron, "spec.jobTemplate.spec.template.spec.hostNetwork");
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": bad["spec"] });
    refused(&pod, "spec.hostNetwork");
}

#[test]
fn services_secrets_claims_and_roles_stay_with_their_own() {
    let object = |api_version: &str, kind: &str, more: Value| {
        let mut object =
            json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "x" } });
        merge(&mut object, &more);
        object
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let binding = |role: Value, subject: Value| {
        object(rbac, "RoleBinding", json!({ "roleRef": role, "subjects": [subject] }))
    };
    let own = json!({ "kind": "ServiceAccount", "name": "own" });
    check(
        &binding(
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" }),
            own.clone(),
        )
        .to_string(),
    )
    .unwrap();
    check(
        &object(
            "v1",
            "Service",
            json!({ "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] } }),
        )
        .to_string(),
    )
    .unwrap();
    check(&object("v1", "Secret", json!({ "stringData": { "a": "b" } })).to_string()).unwrap();
    for (value, says) in [
        (
            object("v1", "Service", json!({ "spec": { "externalIPs": ["192.0.2.1"] } })),
            "spec.externalIPs",
        ),
        (
            object("v1", "Service", json!({ "spec": { "loadBalancerIP": "192.0.2.1" } })),
            "spec.loadBalancerIP",
        ),
        (
            object("v1", "Service", json!({ "spec": { "type": "ExternalName" } })),
            "\"ExternalName\" is not one of",
        ),
        (
            object("v1", "Service", json!({ "spec": { "clusterIP": "10.96.0.10" } })),
            "spec.clusterIP",
        ),
        (
            object("v1", "Secret", json!({ "type": "kubernetes.io/service-account-token" })),
            "type: ",
        ),
        (object("v1", "Secret", json!({ "type": "bootstrap.kubernetes.io/token" })), "type: "),
        (
            object(
                "v1",
                "PersistentVolumeClaim",
                json!({ "spec": { "volumeName": "of-another" } }),
            ),
            "spec.volumeName",
        ),
        (
            object(
                "v1",
                "PersistentVolumeClaim",
                json!({ "spec": { "dataSourceRef": { "name": "a" } } }),
            ),
            "spec.dataSourceRef",
        ),
        (
            object("v1", "PersistentVolumeClaim", json!({ "spec": { "volumeMode": "Block" } })),
            "spec.volumeMode",
        ),
        (
            binding(json!({ "kind": "ClusterRole", "name": "cluster-admin" }), own.clone()),
            "roleRef.kind",
        ),
        (binding(json!({ "kind": "Role", "name": "selvage-tenant" }), own), "roleRef.name"),
        (
            binding(
                json!({ "kind": "Role", "name": "r" }),
                json!({ "kind": "Group", "name": "system:authenticated" }),
            ),
            "subjects[0].kind",
        ),
        (
            object(
                rbac,
                "Role",
                json!({ "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["*"] }] }),
            ),
            "rules: pods may not be given",
        ),
    ] {
        refused(&value, says);
    }
}
