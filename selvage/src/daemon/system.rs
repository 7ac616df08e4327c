//! `selvage.system`: what this process is and what it serves.

use std::time::Instant;

use selvage_api::selvage::system::{
    GetStatusRequest, GetStatusResponse, Part as PartStatus,
    system_service_server::{SystemService, SystemServiceServer},
};
use selvage_part::Process;
use selvage_store::SharedStore;
use tonic::{Request, Response, Status};

use crate::parts::{self, services_of};

/// The parts that are there in every process.
const EVERYWHERE: [&str; 2] = ["auth", "system"];

pub(super) struct System {
    process: Process,
    /// None in an agent that belongs to a controller.
    store: Option<SharedStore>,
    insecure: bool,
    started: Instant,
}

impl System {
    pub(super) fn service(
        process: &Process,
        store: Option<SharedStore>,
        insecure: bool,
    ) -> SystemServiceServer<Self> {
        let system = Self { process: process.clone(), store, insecure, started: Instant::now() };
        SystemServiceServer::new(system)
    }

    fn parts(&self) -> Vec<PartStatus> {
        let everywhere = EVERYWHERE.map(|name| match (name, &self.store) {
            ("auth", None) => (name, "elsewhere"),
            _ => (name, "serving"),
        });
        let parts = parts::ALL.iter().map(|info| {
            let state = match (self.process.runs(info.name), info.built) {
                (false, _) => "elsewhere",
                (true, true) => "serving",
                (true, false) => "not built",
            };
            (info.name, state)
        });
        let row = |(name, state): (&str, &str)| PartStatus {
            name: name.into(),
            state: state.into(),
            services: services_of(name),
        };
        everywhere.into_iter().chain(parts).map(row).collect()
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
            commit: option_env!("SELVAGE_COMMIT").unwrap_or_default().into(),
            parts: self.parts(),
            store: store.map_or("none", |store| store.backend).into(),
            store_revision: store.map_or(0, |store| store.revision),
            uptime_seconds: self.started.elapsed().as_secs(),
            insecure: self.insecure,
            store_failure: store.and_then(|store| store.failure.clone()).unwrap_or_default(),
        }))
    }
}
