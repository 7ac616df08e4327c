//! The dashboard as a part of a daemon: in the process of the parts that it
//! looks at, or alone for a Ceph or Kubernetes cluster.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_kit::{dial, identity::Secret, tasks::Tasks};
use selvage_part::{Context, Mount, OpenPart, Part, Result};

use crate::{
    Dashboard, Settings,
    options::{CephOptions, Options, PrometheusOptions},
    page,
    source::{
        ceph::{Ceph, CephMon, Program, RestOptions},
        prometheus::{self, Prometheus},
        rook::Rook,
        selvage::Selvage,
    },
};

/// Interval at which a Ceph manager is asked whether something changed.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval at which the age of the objects of Kubernetes is refreshed.
const ROOK_REFRESH: Duration = Duration::from_secs(5);
/// Interval at which monitors are asked while no manager answers.
const MON_REFRESH: Duration = Duration::from_secs(2);

/// Interval at which a Prometheus is asked: that of its usual scrapes.
const PROMETHEUS_REFRESH: Duration = Duration::from_secs(15);

/// The part `dashboard`.
pub struct DashboardPart;

#[async_trait]
impl Part for DashboardPart {
    const NAME: &'static str = "dashboard";
    type Options = Options;

    fn validate(options: &Options) -> Result<()> {
        options.validate()
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let settings = Settings {
            folder: Some(context.data.join("dashboard")),
            audit_days: options.audit_days,
            thresholds: options.thresholds(),
        };
        let id = Dashboard::system_id(&context.store()?).await.context("dashboard")?;
        let clock = Arc::clone(&context.clock);
        let opening = move || Dashboard::open(settings, id, clock);
        let dashboard = tokio::task::spawn_blocking(opening).await.context("dashboard")?;
        // The parts of this process are asked as everybody asks them.
        let channel = dial::unix(&context.bind(Self::NAME).await?);
        dashboard.add_source(Selvage::new(channel, options.refresh.0));
        add_ceph(options, &dashboard)?;
        add_prometheus(&options.prometheus, &dashboard)?;
        if let Some(path) = options.kubeconfig.clone() {
            dashboard.add_source(Rook::new(Some(path), &options.rook_namespace, ROOK_REFRESH));
        }
        Ok(Some(Box::new(dashboard)))
    }
}

#[async_trait]
impl OpenPart for Dashboard {
    fn mount(&mut self, mount: &mut Mount) {
        self.add_to(mount.services());
        self.watch(mount.metrics());
        mount.home(page());
    }

    async fn spawn(self: Box<Self>, tasks: &Tasks) -> Result<()> {
        Self::spawn(&self, tasks);
        Ok(())
    }
}

/// Adds the managers of a Ceph cluster and, behind them, its monitors, as far
/// as they are configured.
fn add_ceph(options: &Options, dashboard: &Dashboard) -> Result<()> {
    let given = &options.ceph;
    let program = given.program.clone().map(|path| Program {
        path,
        conf: given.conf.clone(),
        name: Some(given.name.clone()).filter(|name| !name.is_empty()),
    });
    if !given.urls.is_empty() {
        let options = rest_options(given)?;
        let source = Ceph::new(options, REFRESH, program.clone()).context("dashboard.ceph")?;
        dashboard.add_source(source);
    }
    if let Some(program) = program {
        let board = Arc::clone(dashboard.board());
        let always = given.urls.is_empty();
        dashboard.add_source(CephMon::new(program, board, MON_REFRESH, always));
    }
    Ok(())
}

fn add_prometheus(given: &PrometheusOptions, dashboard: &Dashboard) -> Result<()> {
    if given.url.is_empty() {
        return Ok(());
    }
    let token = given.token_file.as_ref().map(selvage_kit::config::SecretFile::read).transpose();
    let token = token.context("dashboard.prometheus.token_file")?;
    let options = prometheus::PrometheusOptions {
        url: given.url.clone(),
        token: token.map(|token| Secret::new(token.expose().trim_end_matches(['\r', '\n']))),
        ca: given.ca.clone(),
    };
    let source = Prometheus::new(options, PROMETHEUS_REFRESH).context("dashboard.prometheus")?;
    dashboard.add_source(source);
    Ok(())
}

fn rest_options(given: &CephOptions) -> Result<RestOptions> {
    let file = given.password_file.as_ref().context("dashboard.ceph.password_file")?;
    let password = file.read().context("dashboard.ceph.password_file")?;
    Ok(RestOptions {
        urls: given.urls.clone(),
        username: given.username.clone(),
        password: Secret::new(password.expose().trim_end_matches(['\r', '\n'])),
        ca: given.ca.clone(),
        skip_tls_verify: given.skip_tls_verify,
    })
}
