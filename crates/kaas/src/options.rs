//! The part's section of the configuration.

use std::path::{Path, PathBuf};

use selvage_kit::config::{Duration, SecretFile};
use selvage_restic::Location;
use serde::{Deserialize, Serialize};

use crate::{
    Compat, Settings,
    endpoint::ApiEndpoint,
    plan::Policy,
    provider::{maas::MaasOptions, ssh::SshOptions},
    validate::Limits,
};

/// Provider of machines.
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
    /// Machines of an inventory, by SSH.
    Ssh,
    /// Simulated machines, any number of them.
    Sim,
}

/// Kubernetes clusters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Provider of machines: `auto`, `local`, `agents`, `maas`, `ssh` or `sim`.
    pub provider: ProviderKind,
    /// Codes and texts that clients are answered with: empty, or `ims-kaas`
    /// for those of that program.
    pub compat: String,
    /// File with the versions on offer. Empty: those of this program.
    pub catalogue: Option<PathBuf>,
    /// Folder with the programs of Kubernetes: `VERSION/kube-apiserver` and so
    /// on, `etcd/VERSION/etcd`, `coredns/VERSION/coredns`. What it lacks is
    /// taken from what this machine has installed. Or the address of a mirror
    /// with the same files and their `SHA256SUMS`, such as
    /// `https://files.example/kubernetes`. Or `official`: the addresses of the projects
    /// that release them.
    pub artifacts: Option<PathBuf>,
    /// Certificate of the CA of that mirror, PEM. Empty: those that this host
    /// believes.
    pub artifacts_ca: Option<PathBuf>,
    /// Machines of this host.
    pub local: LocalOptions,
    /// Machines of a MaaS.
    pub maas: MaasOptions,
    /// Machines by SSH.
    pub ssh: SshOptions,
    /// Pools that a cluster may have.
    pub max_pools: usize,
    /// Nodes that a cluster may have, the control plane included.
    pub max_nodes: u32,
    /// Machines that an organisation may have; 0: any number.
    pub max_machines_per_organisation: u32,
    /// Longest time that a machine may take for each step from its request to being
    /// ready.
    pub step_timeout: Duration,
    /// Machines of a pool that are upgraded at the same time.
    pub max_unavailable: usize,
    /// Time for which a machine may be dead, with its agent away and its node not
    /// ready, before it is replaced; 0: it is never.
    pub remediate_after: Duration,
    /// Number of times that a machine may fail to come up before no cluster gets it any
    /// more; 0: any number.
    pub quarantine_after: u32,
    /// Time for which a disruption budget may keep pods on a machine that is drained
    /// before they are deleted; 0: for ever.
    pub drain_timeout: Duration,
    /// Name of clusters' APIs in kubeconfigs and certificates, such as
    /// `{cluster}.k8s.example`, with a port behind it where that is not 6443. It has to
    /// lead to the control planes of the cluster, by DNS or a load balancer. Empty:
    /// kubeconfigs name the address of one control plane.
    pub endpoint: String,
    /// Validity of the certificate in a kubeconfig.
    pub kubeconfig_lifetime: Duration,
    /// Interval at which nodes are looked at.
    pub health_period: Duration,
    /// Interval at which a snapshot of a cluster's etcd is taken; 0: only before an
    /// upgrade and when somebody asks for one.
    pub snapshot_interval: Duration,
    /// Snapshots of a cluster that are kept of each kind: on schedule, before
    /// upgrades, asked for.
    pub snapshot_keep: usize,
    /// Repository of clusters' backups.
    pub backup: RepositoryOptions,
}

/// Repository of clusters' backups, in restic's format.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepositoryOptions {
    /// Folder of the repository, or `s3://BUCKET/PREFIX`, with `?region=REGION`
    /// behind it where that is needed. Empty: `kaas/repository` in the data
    /// directory.
    pub repository: String,
    /// Address of the object store, such as `https://s3.example`. Empty: AWS.
    pub endpoint: String,
    /// Access key of the object store.
    pub access_key_id: String,
    /// File with the secret that belongs to the access key.
    pub secret_access_key_file: Option<SecretFile>,
    /// File with the password of the repository. Empty:
    /// `pki/kaas-backup.password` in the data directory, which is made.
    pub password_file: Option<SecretFile>,
}

impl RepositoryOptions {
    /// Place in an object store, if it is in one.
    pub(crate) fn location(&self) -> Result<Option<Location>, String> {
        let wrong = |reason: String| format!("kaas.backup.repository: {reason}");
        if !self.repository.starts_with("s3://") {
            return Ok(None);
        }
        let location: Location =
            self.repository.parse().map_err(|error| wrong(selvage_api::chain(&error)))?;
        if location.snapshot.is_some() {
            return Err(wrong("names a snapshot; a repository is needed".into()));
        }
        Ok(Some(location))
    }

    fn validate(&self) -> Result<(), String> {
        let remote = self.location()?.is_some();
        let keys = !self.access_key_id.is_empty() || self.secret_access_key_file.is_some();
        if !remote && (keys || !self.endpoint.is_empty()) {
            let text = "kaas.backup.endpoint and keys: are of an object store, and \
                        kaas.backup.repository does not begin with s3://";
            return Err(text.into());
        }
        if self.access_key_id.is_empty() == self.secret_access_key_file.is_some() {
            let text = "kaas.backup.access_key_id and secret_access_key_file: give both, or none";
            return Err(text.into());
        }
        Ok(())
    }
}

/// Machines of this host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalOptions {
    /// Number of machines.
    pub machines: u32,
    /// Organisations whose developers may have clusters on this host, and
    /// cloudlets as `cloudlet/OPERATOR/NAME`. A privileged pod is root of this host:
    /// name those only whom you trust with it. Administrators and the cloudlet
    /// of this process need no entry.
    pub organisations: Vec<String>,
    /// The cloudlet of this process, from `[crm]`.
    #[serde(skip)]
    pub own_cloudlet: String,
}

impl LocalOptions {
    /// Organisations that may be root of this host.
    pub(crate) fn trusted(&self) -> Vec<String> {
        let own = Some(&self.own_cloudlet).filter(|own| !own.is_empty());
        let own = own.map(|own| format!("cloudlet/{own}"));
        self.organisations.iter().cloned().chain(own).collect()
    }
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { machines: 1, organisations: Vec::new(), own_cloudlet: String::new() }
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
            artifacts_ca: None,
            local: LocalOptions::default(),
            maas: MaasOptions::default(),
            ssh: SshOptions::default(),
            max_pools: limits.pools,
            max_nodes: limits.nodes,
            max_machines_per_organisation: limits.organisation,
            step_timeout: Duration(policy.step_timeout),
            max_unavailable: policy.max_unavailable,
            remediate_after: Duration(policy.remediate_after),
            quarantine_after: policy.quarantine_after,
            drain_timeout: Duration(policy.drain_timeout),
            endpoint: String::new(),
            kubeconfig_lifetime: Duration(settings.kubeconfig_lifetime),
            health_period: Duration(settings.health_period),
            snapshot_interval: Duration(settings.snapshot_interval),
            snapshot_keep: settings.snapshot_keep,
            backup: RepositoryOptions::default(),
        }
    }
}

impl Options {
    /// Returns the compatibility mode that is set.
    pub fn compat(&self) -> Result<Compat, String> {
        match self.compat.as_str() {
            "" => Ok(Compat::Precise),
            "ims-kaas" => Ok(Compat::ImsKaas),
            other => Err(format!("kaas.compat: {other:?} is neither empty nor ims-kaas")),
        }
    }

    /// Name of clusters' APIs, if there is one.
    pub(crate) fn endpoint(&self) -> Result<Option<ApiEndpoint>, String> {
        if self.endpoint.is_empty() {
            return Ok(None);
        }
        let endpoint = self.endpoint.parse();
        endpoint.map(Some).map_err(|error| format!("kaas.endpoint: {error}"))
    }

    /// Address of the mirror that programs come from, if they come from one.
    pub(crate) fn mirror(&self) -> Option<&str> {
        let text = self.artifacts.as_ref()?.to_str()?;
        (text.starts_with("https://") || text.starts_with("http://")).then_some(text)
    }

    /// Returns whether programs come from the projects that release them.
    pub(crate) fn is_official(&self) -> bool {
        self.artifacts.as_deref() == Some(Path::new("official"))
    }

    /// Folder that programs come from, if they come from one.
    pub(crate) fn artifacts_folder(&self) -> Option<&PathBuf> {
        self.artifacts.as_ref().filter(|_| self.mirror().is_none() && !self.is_official())
    }

    /// Finds what no single key shows to be wrong.
    pub fn validate(&self) -> Result<(), String> {
        self.compat()?;
        self.endpoint()?;
        self.backup.validate()?;
        if self.provider == ProviderKind::Maas {
            self.maas.validate()?;
        }
        if self.provider == ProviderKind::Ssh {
            self.ssh.validate()?;
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
                quarantine_after: self.quarantine_after,
                drain_timeout: self.drain_timeout.0,
            },
            // It was validated when the configuration was read.
            endpoint: self.endpoint().ok().flatten(),
            kubeconfig_lifetime: self.kubeconfig_lifetime.0,
            health_period: self.health_period.0,
            snapshot_interval: self.snapshot_interval.0,
            snapshot_keep: self.snapshot_keep,
            ..Settings::default()
        }
    }
}
