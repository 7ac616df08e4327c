//! Kinds, and what may be in each.

use selvage_kube::{kube::api::ApiResource, resource};
use serde_json::Value;

use super::{
    Rule::{self, Any, Check, Each, Fields, OneOf, Unset, Values},
    annotations, labels,
    pod::{POD, TEMPLATE},
};
use crate::platform::kubernetes::{names::RESERVED_NAMES, tenant};

/// A kind that an app may make.
pub(in super::super) struct Kind {
    group: &'static str,
    version: &'static str,
    pub(in super::super) kind: &'static str,
    pub(super) rule: Rule,
}

impl Kind {
    pub(super) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    pub(in super::super) fn resource(&self) -> ApiResource {
        resource(self.group, self.version, self.kind)
    }
}

/// Finalizers would keep a namespace from going, owners would hide an object
/// from us; neither is here.
const METADATA: Rule = Fields(&[
    ("name", Any),
    ("namespace", Any),
    ("labels", Check(labels)),
    ("annotations", Check(annotations)),
]);
/// Inside of templates, where names are made.
pub(super) const TEMPLATE_METADATA: Rule =
    Fields(&[("name", Any), ("labels", Check(labels)), ("annotations", Check(annotations))]);

macro_rules! kinds {
    ($($group:literal $version:literal $kind:ident { $($field:literal: $rule:expr),* $(,)? })*) => {
        /// All kinds that an app may make; those that others use come last.
        pub(in super::super) const KINDS: &[Kind] = &[$(Kind {
            group: $group,
            version: $version,
            kind: stringify!($kind),
            rule: Fields(&[
                ("apiVersion", Any), ("kind", Any), ("metadata", METADATA), ("status", Unset),
                $(($field, $rule)),*
            ]),
        }),*];
    };
}

kinds! {
    "apps" "v1" Deployment { "spec": Fields(&[
        ("replicas", Any), ("selector", Any), ("template", TEMPLATE), ("strategy", Any),
        ("minReadySeconds", Any), ("revisionHistoryLimit", Any), ("paused", Any),
        ("progressDeadlineSeconds", Any),
    ]) }
    "apps" "v1" StatefulSet { "spec": Fields(&[
        ("replicas", Any), ("selector", Any), ("template", TEMPLATE), ("serviceName", Any),
        ("volumeClaimTemplates", Each(&CLAIM_TEMPLATE)), ("updateStrategy", Any),
        ("podManagementPolicy", Any), ("revisionHistoryLimit", Any), ("minReadySeconds", Any),
        ("persistentVolumeClaimRetentionPolicy", Any), ("ordinals", Any),
    ]) }
    "apps" "v1" DaemonSet { "spec": Fields(&[
        ("selector", Any), ("template", TEMPLATE), ("updateStrategy", Any),
        ("minReadySeconds", Any), ("revisionHistoryLimit", Any),
    ]) }
    "batch" "v1" CronJob { "spec": Fields(&[
        ("schedule", Any), ("timeZone", Any), ("concurrencyPolicy", Any), ("suspend", Any),
        ("startingDeadlineSeconds", Any), ("successfulJobsHistoryLimit", Any),
        ("failedJobsHistoryLimit", Any),
        ("jobTemplate", Fields(&[("metadata", TEMPLATE_METADATA), ("spec", JOB)])),
    ]) }
    "batch" "v1" Job { "spec": JOB }
    "" "v1" Pod { "spec": POD }
    "" "v1" Service { "spec": SERVICE }
    "autoscaling" "v2" HorizontalPodAutoscaler { "spec": Fields(&[
        ("scaleTargetRef", Any), ("minReplicas", Any), ("maxReplicas", Any), ("metrics", Any),
        ("behavior", Any),
    ]) }
    "policy" "v1" PodDisruptionBudget { "spec": Fields(&[
        ("minAvailable", Any), ("maxUnavailable", Any), ("selector", Any),
        ("unhealthyPodEvictionPolicy", Any),
    ]) }
    "" "v1" ConfigMap { "data": Values(&Any), "binaryData": Values(&Any), "immutable": Any }
    "" "v1" Secret {
        "type": OneOf(SECRET_TYPES), "data": Values(&Any), "stringData": Values(&Any), "immutable": Any,
    }
    "" "v1" PersistentVolumeClaim { "spec": CLAIM }
    "rbac.authorization.k8s.io" "v1" RoleBinding {
        "roleRef": Fields(&[
            ("apiGroup", Any), ("kind", OneOf(&["Role"])), ("name", Check(own_name)),
        ]),
        "subjects": Each(&Fields(&[
            ("kind", OneOf(&["ServiceAccount"])), ("name", Check(own_name)), ("apiGroup", Any),
            ("namespace", Any),
        ])),
    }
    "rbac.authorization.k8s.io" "v1" Role { "rules": Check(tenant::check_rules) }
    "" "v1" ServiceAccount { "imagePullSecrets": Any, "automountServiceAccountToken": Any }
}

/// Tokens of accounts are not here: the cluster would fill one in for
/// whatever account the secret names.
const SECRET_TYPES: &[&str] = &[
    "Opaque",
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
];

/// Without a volume by name, which may be what another tenant left behind, and
/// without another claim or snapshot to copy from.
const CLAIM: Rule = Fields(&[
    ("accessModes", Any),
    ("resources", Any),
    ("storageClassName", Any),
    ("volumeMode", OneOf(&["Filesystem"])),
]);
pub(super) const CLAIM_TEMPLATE: Rule = Fields(&[
    ("apiVersion", Any),
    ("kind", Any),
    ("metadata", TEMPLATE_METADATA),
    ("spec", CLAIM),
    ("status", Unset),
]);

/// Without addresses of its own choice (`externalIPs`, `loadBalancerIP`) or
/// names of others (`ExternalName`): they may be anybody's.
const SERVICE: Rule = Fields(&[
    ("type", OneOf(&["ClusterIP", "NodePort", "LoadBalancer"])),
    (
        "ports",
        Each(&Fields(&[
            ("name", Any),
            ("protocol", Any),
            ("port", Any),
            ("targetPort", Any),
            ("nodePort", Any),
            ("appProtocol", Any),
        ])),
    ),
    ("selector", Any),
    ("clusterIP", OneOf(&["None", ""])),
    ("sessionAffinity", Any),
    ("sessionAffinityConfig", Any),
    ("ipFamilies", Any),
    ("ipFamilyPolicy", Any),
    ("externalTrafficPolicy", Any),
    ("internalTrafficPolicy", Any),
    ("publishNotReadyAddresses", Any),
    ("loadBalancerSourceRanges", Any),
    ("allocateLoadBalancerNodePorts", Any),
    ("trafficDistribution", Any),
]);

const JOB: Rule = Fields(&[
    ("template", TEMPLATE),
    ("parallelism", Any),
    ("completions", Any),
    ("completionMode", Any),
    ("backoffLimit", Any),
    ("backoffLimitPerIndex", Any),
    ("maxFailedIndexes", Any),
    ("activeDeadlineSeconds", Any),
    ("ttlSecondsAfterFinished", Any),
    ("podFailurePolicy", Any),
    ("podReplacementPolicy", Any),
    ("suspend", Any),
]);

/// The account that objects are applied with is not for pods.
pub(super) fn own_name(value: &Value) -> Result<(), String> {
    match value.as_str() {
        Some(name) if name.starts_with(RESERVED_NAMES) => {
            Err(format!("names with {RESERVED_NAMES} are reserved"))
        }
        Some(_) => Ok(()),
        None => Err("it is not a text".into()),
    }
}
