//! `selvage.system`: what this process is and what it serves.

use std::{net::SocketAddr, time::Instant};

use selvage_api::selvage::system::{
    GetStatusRequest, GetStatusResponse, Part as PartStatus, Reconciler,
    system_service_server::{SystemService, SystemServiceServer},
};
use selvage_part::{Context, Process};
use selvage_store::SharedStore;
use selvage_work::{ReconcilerStatus, Reconcilers};
use tonic::{Request, Response, Status};

use crate::parts::{self, services_of};

/// The parts that are there in every process.
const EVERYWHERE: [&str; 2] = ["auth", "system"];

pub(super) struct System {
    process: Process,
    /// Names of the parts that are switched on.
    open: Vec<&'static str>,
    /// Addresses of parts that have one of their own.
    addresses: Vec<(&'static str, SocketAddr)>,
    /// None in an agent that belongs to a controller.
    store: Option<SharedStore>,
    insecure: bool,
    reconcilers: Reconcilers,
    started: Instant,
}

impl System {
    pub(super) fn service(
        context: &Context,
        open: Vec<&'static str>,
        store: Option<SharedStore>,
        insecure: bool,
    ) -> SystemServiceServer<Self> {
        let system = Self {
            process: context.process.clone(),
            open,
            addresses: context.announced(),
            store,
            insecure,
            reconcilers: context.reconcilers.clone(),
            started: Instant::now(),
        };
        SystemServiceServer::new(system)
    }

    /// Address of a part's own; empty for none.
    fn address(&self, part: &str) -> String {
        let found = self.addresses.iter().find(|(name, _)| *name == part);
        found.map(|(_, address)| address.to_string()).unwrap_or_default()
    }

    fn parts(&self) -> Vec<PartStatus> {
        let everywhere = EVERYWHERE.map(|name| match (name, &self.store) {
            ("auth", None) => (name, "elsewhere"),
            _ => (name, "serving"),
        });
        let parts = parts::ALL.iter().map(|info| {
            let state = match (self.process.runs(info.name), info.built) {
                (false, _) => "elsewhere",
                (true, true) if !self.open.contains(&info.name) => "off",
                (true, true) => "serving",
                (true, false) => "not built",
            };
            (info.name, state)
        });
        let row = |(name, state): (&str, &str)| PartStatus {
            name: name.into(),
            state: state.into(),
            services: services_of(name),
            address: self.address(name),
        };
        everywhere.into_iter().chain(parts).map(row).collect()
    }
}

fn shown(status: ReconcilerStatus) -> Reconciler {
    let last_run = status.last_finish.map_or(0, |millis| millis / 1000);
    Reconciler {
        name: status.name,
        runs: status.runs,
        failures: status.failures,
        running: status.running,
        queue: status.queue,
        last_run: i64::try_from(last_run).unwrap_or_default(),
        last_error: status.last_error.unwrap_or_default(),
        failing: status.failing,
    }
}

#[tonic::async_trait]
impl SystemService for System {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        let store = match &self.store {
            Some(store) => Some(store.status().await.map_err(|error| {
                tracing::error!(%error, "the store does not tell its status");
                Status::new(error.code().grpc(), format!("store: {error}"))
            })?),
            None => None,
        };
        let store = store.as_ref();
        Ok(Response::new(GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: selvage_kit::build::build().sha,
            parts: self.parts(),
            store: store.map_or("none", |store| store.backend).into(),
            store_revision: store.map_or(0, |store| store.revision),
            uptime_seconds: self.started.elapsed().as_secs(),
            insecure: self.insecure,
            reconcilers: self.reconcilers.list().into_iter().map(shown).collect(),
            store_failure: store.and_then(|store| store.failure.clone()).unwrap_or_default(),
        }))
    }
}
