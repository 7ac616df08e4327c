//! Source of `machine.MachineService/Logs`: files of the machine's own
//! services, else the runtime of the container.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::StreamExt;
use selvage_api::machine::LogsRequest;
use selvage_runtime::{
    LogOptions, logs,
    select::{Runtimes, SYSTEM},
};
use tonic::Status;

use crate::{
    machine::{LogPieces, LogSource},
    os_service::status,
};

/// Logs of services and containers.
pub(crate) struct Logs {
    pub(crate) runtimes: Runtimes,
    /// Folder of the logs of the machine's services, `<id>.log` each.
    pub(crate) services: PathBuf,
}

impl Logs {
    /// The file of a service, if it has one.
    fn file(&self, request: &LogsRequest) -> Option<PathBuf> {
        if request.namespace != SYSTEM && request.id != "kubelet" {
            return None;
        }
        let name = Path::new(&request.id).file_name()?.to_str()?;
        let file = self.services.join(format!("{name}.log"));
        file.is_file().then_some(file)
    }
}

#[async_trait]
impl LogSource for Logs {
    async fn open(&self, request: &LogsRequest) -> Result<LogPieces, Status> {
        let options = LogOptions { follow: request.follow, ..LogOptions::default() };
        let opened = match self.file(request) {
            Some(file) => logs::follow_file(file, options).await,
            None => match self.runtimes.select(request.driver, &request.namespace) {
                Ok(runtime) => runtime.logs(&request.namespace, &request.id, options).await,
                Err(error) => Err(error),
            },
        };
        let pieces = opened.map_err(|error| status(&error))?;
        Ok(pieces.map(|piece| piece.map_err(|error| status(&error))).boxed())
    }
}
