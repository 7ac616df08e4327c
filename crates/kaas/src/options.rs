//! The part's section of the configuration.

use std::path::PathBuf;

use selvage_kit::config::Duration;
use serde::{Deserialize, Serialize};

use crate::{Compat, Settings, plan::Policy, provider::maas::MaasOptions, validate::Limits};

/// Who delivers machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// `local` where this machine can run Kubernetes, none where it cannot.
    #[default]
    Auto,
    /// Machines of this host, each in namespaces of its own.
    Local,
    /// Machines that joined and are labelled `kaas=free`.
    Agents,
    /// Machines of a MaaS.
    Maas,
    /// Simulated machines, any number of them.
    Sim,
}

/// Kubernetes clusters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Who delivers machines: `auto`, `local`, `agents`, `maas` or `sim`.
    pub provider: ProviderKind,
    /// Whose codes and texts clients are answered with: empty, or `ims-kaas`
    /// for those of the original.
    pub compat: String,
    /// File with the versions on offer. Empty: those of this program.
    pub catalogue: Option<PathBuf>,
    /// Folder with the programs of Kubernetes: `VERSION/kube-apiserver` and so
    /// on, `etcd/VERSION/etcd`, `coredns/VERSION/coredns`. What it lacks is
    /// taken from what this machine has installed.
    pub artifacts: Option<PathBuf>,
    /// Machines of this host.
    pub local: LocalOptions,
    /// Machines of a MaaS.
    pub maas: MaasOptions,
    /// Pools that a cluster may have.
    pub max_pools: usize,
    /// Nodes that a cluster may have, the control plane included.
    pub max_nodes: u32,
    /// Machines that an organisation may have; 0: any number.
    pub max_machines_per_organisation: u32,
    /// How long a machine may take for each step from its request to being
    /// ready.
    pub step_timeout: Duration,
    /// Machines of a pool that are upgraded at the same time.
    pub max_unavailable: usize,
    /// How long a machine may be dead, with its agent away and its node not
    /// ready, before it is replaced; 0: it is never.
    pub remediate_after: Duration,
    /// How long the certificate in a kubeconfig is good for.
    pub kubeconfig_lifetime: Duration,
    /// How often nodes are looked at.
    pub health_period: Duration,
    /// How often a snapshot of a cluster's etcd is taken; 0: only before an
    /// upgrade and when somebody asks for one.
    pub snapshot_interval: Duration,
    /// Snapshots of a cluster that are kept of each kind: on schedule, before
    /// upgrades, asked for.
    pub snapshot_keep: usize,
}

/// Machines of this host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalOptions {
    /// How many there are.
    pub machines: u32,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { machines: 1 }
    }
}

impl Default for Options {
    fn default() -> Self {
        let (limits, policy, settings) =
            (Limits::default(), Policy::default(), Settings::default());
        Self {
            provider: ProviderKind::default(),
            compat: String::new(),
            catalogue: None,
            artifacts: None,
            local: LocalOptions::default(),
            maas: MaasOptions::default(),
            max_pools: limits.pools,
            max_nodes: limits.nodes,
            max_machines_per_organisation: limits.organisation,
            step_timeout: Duration(policy.step_timeout),
            max_unavailable: policy.max_unavailable,
            remediate_after: Duration(policy.remediate_after),
            kubeconfig_lifetime: Duration(settings.kubeconfig_lifetime),
            health_period: Duration(settings.health_period),
            snapshot_interval: Duration(settings.snapshot_interval),
            snapshot_keep: settings.snapshot_keep,
        }
    }
}

impl Options {
    /// Whose answers clients expect.
    pub fn compat(&self) -> Result<Compat, String> {
        match self.compat.as_str() {
            "" => Ok(Compat::Precise),
            "ims-kaas" => Ok(Compat::ImsKaas),
            other => Err(format!("kaas.compat: {other:?} is neither empty nor ims-kaas")),
        }
    }

    /// Finds what no single key shows to be wrong.
    pub fn validate(&self) -> Result<(), String> {
        self.compat()?;
        if self.provider == ProviderKind::Maas {
            self.maas.validate()?;
        }
        if self.max_unavailable == 0 {
            return Err("kaas.max_unavailable: 0 would never upgrade a node".into());
        }
        if self.kubeconfig_lifetime.0.is_zero() || self.health_period.0.is_zero() {
            return Err("kaas.kubeconfig_lifetime and kaas.health_period: must not be 0".into());
        }
        if self.snapshot_keep == 0 {
            return Err("kaas.snapshot_keep: must be at least 1".into());
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            limits: Limits {
                pools: self.max_pools,
                nodes: self.max_nodes,
                organisation: self.max_machines_per_organisation,
            },
            policy: Policy {
                step_timeout: self.step_timeout.0,
                max_unavailable: self.max_unavailable,
                remediate_after: self.remediate_after.0,
            },
            kubeconfig_lifetime: self.kubeconfig_lifetime.0,
            health_period: self.health_period.0,
            snapshot_interval: self.snapshot_interval.0,
            snapshot_keep: self.snapshot_keep,
            ..Settings::default()
        }
    }
}
