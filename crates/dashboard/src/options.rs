//! Options of the dashboard: the section `[dashboard]`.

use std::path::PathBuf;

use anyhow::bail;
use selvage_kit::config::{Duration, SecretFile};
use serde::{Deserialize, Serialize};

use crate::{Settings, Thresholds};

/// Options of the dashboard.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Interval at which parts are asked for their state.
    pub refresh: Duration,
    /// Days for which audit lines are kept.
    pub audit_days: u32,
    /// Share of a volume group, 0 to 1, from which it is nearly full.
    pub near_full: f64,
    /// Share from which it is full.
    pub full: f64,
    /// Time before storage is full, by its growth, at which it becomes a problem.
    pub full_within: Duration,
    /// A machine that has not reported for so long is away.
    pub machine_away: Duration,
    /// A certificate that ends so soon should have been renewed.
    pub certificate: Duration,
    /// An operation without progress for so long is stuck.
    pub operation_stuck: Duration,
    /// A clock that differs by so much is wrong.
    pub clock_skew: Duration,
    pub ceph: CephOptions,
    pub prometheus: PrometheusOptions,
    /// Kubeconfig of the Kubernetes cluster that Rook runs in. Empty: there is none.
    pub kubeconfig: Option<PathBuf>,
    /// Rook's namespace.
    pub rook_namespace: String,
}

/// A Ceph cluster to look at.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CephOptions {
    /// Dashboards of all its managers, such as `https://10.0.0.1:8443`.
    pub urls: Vec<String>,
    /// A user there with the role read-only.
    pub username: String,
    /// File with the user's password.
    pub password_file: Option<SecretFile>,
    /// PEM file of the CA that signed the managers' certificates.
    pub ca: Option<PathBuf>,
    /// Take any certificate, as Ceph makes its own.
    pub skip_tls_verify: bool,
    /// The `ceph` program, by which monitors are asked while no manager
    /// answers; a path, or a name to be found.
    pub program: Option<PathBuf>,
    /// Its configuration file.
    pub conf: Option<PathBuf>,
    /// Name of the user for it, such as `client.selvage`.
    pub name: String,
}

/// A Prometheus whose alerts and machines are shown.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrometheusOptions {
    /// Its address, such as `http://127.0.0.1:9090`. Empty: there is none.
    pub url: String,
    /// File with a token that is sent to it.
    pub token_file: Option<SecretFile>,
    /// PEM file of the CA that signed its certificate.
    pub ca: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let limits = Thresholds::default();
        Self {
            refresh: Duration(std::time::Duration::from_secs(1)),
            audit_days: Settings::default().audit_days,
            near_full: limits.near_full,
            full: limits.full,
            full_within: Duration(limits.full_within),
            machine_away: Duration(limits.machine_away),
            certificate: Duration(limits.certificate),
            operation_stuck: Duration(limits.operation_stuck),
            clock_skew: Duration(limits.clock_skew),
            ceph: CephOptions::default(),
            prometheus: PrometheusOptions::default(),
            kubeconfig: None,
            rook_namespace: "rook-ceph".into(),
        }
    }
}

impl Options {
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        if self.refresh.0.is_zero() {
            bail!("dashboard.refresh: 0 would never rest");
        }
        if !(0.0..=1.0).contains(&self.near_full) || !(0.0..=1.0).contains(&self.full) {
            bail!("dashboard.near_full and dashboard.full: shares between 0 and 1");
        }
        let ceph = &self.ceph;
        if !ceph.urls.is_empty() && (ceph.username.is_empty() || ceph.password_file.is_none()) {
            bail!("dashboard.ceph.username and dashboard.ceph.password_file: needed with urls");
        }
        let prometheus = &self.prometheus;
        if prometheus.url.is_empty() && (prometheus.token_file.is_some() || prometheus.ca.is_some())
        {
            bail!("dashboard.prometheus.url: needed with token_file and ca");
        }
        Ok(())
    }

    /// Limits from which something is a problem.
    pub(crate) fn thresholds(&self) -> Thresholds {
        Thresholds {
            near_full: self.near_full,
            full: self.full,
            full_within: self.full_within.0,
            machine_away: self.machine_away.0,
            certificate: self.certificate.0,
            operation_stuck: self.operation_stuck.0,
            clock_skew: self.clock_skew.0,
            ..Thresholds::default()
        }
    }
}
