//! Pods: nothing of their node, no network but their own.

use serde_json::Value;

use super::{
    Rule::{self, Any, Check, Each, Fields, OneOf, Unset},
    kinds::{CLAIM_TEMPLATE, TEMPLATE_METADATA, own_name},
};

pub(super) const TEMPLATE: Rule = Fields(&[("metadata", TEMPLATE_METADATA), ("spec", POD)]);

/// Not here: the host's namespaces, a node by name, priorities over others,
/// other runtimes and schedulers, settings of the kernel.
pub(super) const POD: Rule = Fields(&[
    ("containers", Each(&CONTAINER)),
    ("initContainers", Each(&CONTAINER)),
    ("volumes", Each(&VOLUME)),
    ("restartPolicy", Any),
    ("terminationGracePeriodSeconds", Any),
    ("activeDeadlineSeconds", Any),
    ("dnsPolicy", OneOf(&["ClusterFirst", "Default", "None"])),
    ("dnsConfig", Any),
    ("hostAliases", Any),
    ("hostname", Any),
    ("subdomain", Any),
    ("setHostnameAsFQDN", Any),
    ("serviceAccountName", Check(own_name)),
    ("serviceAccount", Check(own_name)),
    ("automountServiceAccountToken", Any),
    ("imagePullSecrets", Any),
    ("nodeSelector", Any),
    ("affinity", Any),
    ("tolerations", Each(&Check(toleration))),
    ("topologySpreadConstraints", Any),
    ("enableServiceLinks", Any),
    ("readinessGates", Any),
    ("shareProcessNamespace", Any),
    ("preemptionPolicy", OneOf(&["Never"])),
    ("schedulerName", OneOf(&["default-scheduler"])),
    ("os", Any),
    (
        "securityContext",
        Fields(&[
            ("runAsUser", Any),
            ("runAsGroup", Any),
            ("runAsNonRoot", Any),
            ("fsGroup", Any),
            ("fsGroupChangePolicy", Any),
            ("supplementalGroups", Any),
            ("supplementalGroupsPolicy", Any),
            ("seccompProfile", SECCOMP),
            ("appArmorProfile", APPARMOR),
        ]),
    ),
]);

/// Of a node that is about to go, not of one that is kept for others.
fn toleration(value: &Value) -> Result<(), String> {
    const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    match value["key"].as_str() {
        Some(key) if KEYS.contains(&key) => Ok(()),
        _ => Err(format!("key is not one of {}", KEYS.join(", "))),
    }
}

/// Not `Localhost`: profiles of the node are the operator's.
const SECCOMP: Rule = Fields(&[("type", OneOf(&["RuntimeDefault"]))]);
const APPARMOR: Rule = Fields(&[("type", OneOf(&["RuntimeDefault"]))]);

const CONTAINER: Rule = Fields(&[
    ("name", Any),
    ("image", Any),
    ("imagePullPolicy", Any),
    ("command", Any),
    ("args", Any),
    ("workingDir", Any),
    (
        "ports",
        Each(&Fields(&[
            ("name", Any),
            ("containerPort", Any),
            ("protocol", Any),
            ("hostPort", Unset),
            ("hostIP", Unset),
        ])),
    ),
    ("env", Each(&VARIABLE)),
    ("envFrom", Any),
    ("resources", Fields(&[("limits", Any), ("requests", Any)])),
    ("resizePolicy", Any),
    ("restartPolicy", Any),
    (
        "volumeMounts",
        Each(&Fields(&[
            ("name", Any),
            ("mountPath", Any),
            ("subPath", Any),
            ("subPathExpr", Any),
            ("readOnly", Any),
            ("mountPropagation", OneOf(&["None"])),
        ])),
    ),
    ("livenessProbe", PROBE),
    ("readinessProbe", PROBE),
    ("startupProbe", PROBE),
    ("lifecycle", Fields(&[("postStart", HANDLER), ("preStop", HANDLER), ("stopSignal", Any)])),
    ("terminationMessagePath", Any),
    ("terminationMessagePolicy", Any),
    ("stdin", Any),
    ("stdinOnce", Any),
    ("tty", Any),
    (
        "securityContext",
        Fields(&[
            ("runAsUser", Any),
            ("runAsGroup", Any),
            ("runAsNonRoot", Any),
            ("readOnlyRootFilesystem", Any),
            ("allowPrivilegeEscalation", Any),
            ("capabilities", Fields(&[("drop", Any), ("add", Check(capabilities))])),
            ("privileged", Unset),
            ("procMount", OneOf(&["Default"])),
            ("seccompProfile", SECCOMP),
            ("appArmorProfile", APPARMOR),
        ]),
    ),
]);

pub(super) const VARIABLE: Rule = Fields(&[
    ("name", Any),
    ("value", Any),
    (
        "valueFrom",
        Fields(&[
            ("fieldRef", Any),
            ("resourceFieldRef", Any),
            ("configMapKeyRef", Any),
            ("secretKeyRef", Any),
        ]),
    ),
]);

/// Probes and hooks are sent by the node: with a host of the app's choice they
/// would reach whatever the node reaches.
const REQUEST: &[(&str, Rule)] =
    &[("path", Any), ("port", Any), ("scheme", Any), ("httpHeaders", Any), ("host", Unset)];
const PROBE: Rule = Fields(&[
    ("exec", Any),
    ("httpGet", Fields(REQUEST)),
    ("tcpSocket", Fields(&[("port", Any), ("host", Unset)])),
    ("grpc", Fields(&[("port", Any), ("service", Any)])),
    ("initialDelaySeconds", Any),
    ("periodSeconds", Any),
    ("timeoutSeconds", Any),
    ("successThreshold", Any),
    ("failureThreshold", Any),
    ("terminationGracePeriodSeconds", Any),
]);
const HANDLER: Rule = Fields(&[("exec", Any), ("httpGet", Fields(REQUEST)), ("sleep", Any)]);

/// Volumes of the namespace. Not here: paths and devices of the node, volumes
/// by protocol or driver, images.
const VOLUME: Rule = Fields(&[
    ("name", Any),
    ("configMap", Any),
    ("secret", Any),
    ("emptyDir", Any),
    ("downwardAPI", Any),
    ("persistentVolumeClaim", Any),
    ("ephemeral", Fields(&[("volumeClaimTemplate", CLAIM_TEMPLATE)])),
    (
        "projected",
        Fields(&[
            ("defaultMode", Any),
            (
                "sources",
                Each(&Fields(&[
                    ("configMap", Any),
                    ("secret", Any),
                    ("downwardAPI", Any),
                    ("serviceAccountToken", Any),
                ])),
            ),
        ]),
    ),
]);

/// Those that containers have without asking.
fn capabilities(value: &Value) -> Result<(), String> {
    const USUAL: [&str; 14] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "NET_RAW",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let asked = value.as_array().into_iter().flatten();
    match asked.into_iter().find(|name| !USUAL.iter().any(|usual| *name == usual)) {
        Some(name) => Err(format!("{name} is not one of {}", USUAL.join(", "))),
        None => Ok(()),
    }
}
