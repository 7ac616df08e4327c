//! A dashboard on a socket, fed by hand.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use selvage_api::{
    selvage::dashboard::{Object, dashboard_service_client::DashboardServiceClient},
    stats::stats_service_client::StatsServiceClient,
};
use selvage_dashboard::{
    Dashboard, Settings,
    facts::{Data, Section},
    source::Failure,
};
use selvage_kit::{
    clock::ManualClock,
    serve::{Limits, Server, Services, Socket, Trust},
    tasks::Tasks,
    telemetry::Metrics,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

pub(crate) const SOURCE: &str = "test";
pub(crate) const STALE: Duration = Duration::from_secs(10);

/// The dashboard, its clock and a way to call it.
pub(crate) struct Lab {
    pub(crate) dashboard: Dashboard,
    pub(crate) clock: ManualClock,
    pub(crate) channel: Channel,
    tasks: Tasks,
    _folder: tempfile::TempDir,
}

pub(crate) fn noon() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

impl Lab {
    pub(crate) async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(noon());
        let dashboard = Dashboard::open(settings, "system-1".into(), Arc::new(clock.clone()));
        let mut services = Services::default();
        dashboard.add_to(&mut services);
        let server = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
        let tasks = Tasks::new(CancellationToken::new());
        let path = folder.path().join("socket");
        let socket = Socket::unix(&path).await.unwrap();
        tasks.spawn("socket", server.run(socket, Trust::Socket, tasks.token().clone()));
        let endpoint = Endpoint::new(format!("unix:{}", path.display())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self { dashboard, clock, channel, tasks, _folder: folder }
    }

    /// Takes an answer of a source and makes a snapshot of it.
    pub(crate) fn tell(&self, data: Data) {
        let section = data.section();
        self.answer(section, Ok(data));
    }

    pub(crate) fn answer(&self, section: Section, answer: Result<Data, Failure>) {
        let board = self.dashboard.board();
        if !board.sources().iter().any(|state| state.section == section) {
            board.expect(SOURCE, section, STALE);
        }
        board.report(SOURCE, section, answer);
        board.refresh();
    }

    pub(crate) fn stats(&self) -> StatsServiceClient<Channel> {
        StatsServiceClient::new(self.channel.clone())
    }

    pub(crate) fn overview(&self) -> DashboardServiceClient<Channel> {
        DashboardServiceClient::new(self.channel.clone())
    }

    pub(crate) fn wait(&self, time: Duration) {
        self.clock.advance(time);
        self.dashboard.board().refresh();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

pub(crate) fn object(kind: &str, name: &str, organisation: &str) -> Object {
    Object {
        kind: kind.into(),
        name: name.into(),
        organisation: organisation.into(),
        ..Object::default()
    }
}
