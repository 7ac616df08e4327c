//! `machine.MachineService`: files, mounts, logs, services, version and power
//! of one machine.
//!
//! A node answers with exactly one message and no metadata, also where there
//! is nothing to say; the node's name is for the one who asks many to add.
//!
//! Files are confined to the roots of the [`Settings`], and what is protected
//! is given to nobody. Reading and walking
//! is done by threads of their own, so many at the same time and no more, and
//! only as fast as the caller takes what they send.
//!
//! Reboot, shutdown, reset and upgrade are refused unless the process was
//! given a [`Power`]: most machines are not the agent's to turn off.

mod archive;
mod confine;
mod error;
mod guard;
mod lines;
mod list;
mod mounts;
mod platform;
mod power;
mod services;
mod transfers;
mod walk;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use selvage_api::{
    common::Data,
    machine::{
        CopyRequest, FileInfo, ListRequest, LogsRequest, Mounts, MountsResponse, ReadRequest,
        Reboot, RebootResponse, Reset, ResetResponse, ServiceList, ServiceListResponse,
        ServiceRestart, ServiceRestartRequest, ServiceRestartResponse, ServiceStart,
        ServiceStartRequest, ServiceStartResponse, ServiceStop, ServiceStopRequest,
        ServiceStopResponse, Shutdown, ShutdownResponse, StartRequest, StartResponse, StopRequest,
        StopResponse, Upgrade, UpgradeRequest, UpgradeResponse, Version, VersionResponse,
        machine_service_server::{MachineService, MachineServiceServer},
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use self::{
    confine::Roots,
    guard::Guard,
    mounts::Prober,
    transfers::{TransferSlot, TransferSlots},
};
pub use self::{
    error::Error,
    power::{Power, SystemPower},
    services::{Operation, Supervisor, TaskServices},
};

/// Maximum number of pieces that wait for a caller.
const QUEUE_LIMIT: usize = 8;

/// Delay before the machine restarts or shuts down, so that the reply reaches
/// the caller.
const POWER_DELAY: Duration = Duration::from_secs(1);

/// Bytes of a log in pieces.
pub type LogPieces = BoxStream<'static, Result<Bytes, Status>>;

/// Finds logs of services and containers.
#[async_trait]
pub trait LogSource: Send + Sync + 'static {
    /// The log of the request, from its beginning.
    async fn open(&self, request: &LogsRequest) -> Result<LogPieces, Status>;
}

/// Sources and permissions of the machine service.
#[derive(Clone)]
pub struct Settings {
    /// Folders below which files may be listed and read; empty for all.
    pub roots: Vec<PathBuf>,
    /// Files and folders with keys and state, which nobody is given; private
    /// keys are not given wherever they are.
    pub protected: Vec<PathBuf>,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Tasks that run in this process.
    pub services: Arc<dyn Supervisor>,
    /// Source of logs.
    pub logs: Arc<dyn LogSource>,
    /// The machine's power, if it is ours to use.
    pub power: Option<Arc<dyn Power>>,
}

/// Usual path of the administrator's kubeconfig.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";

/// Serves the contract.
#[derive(Clone)]
pub struct MachineApi(Arc<Inner>);

struct Inner {
    roots: Roots,
    kubeconfig: String,
    services: Arc<dyn Supervisor>,
    logs: Arc<dyn LogSource>,
    power: Option<Arc<dyn Power>>,
    before_power: Duration,
    prober: Prober,
    slots: TransferSlots,
}

impl MachineApi {
    /// Creates the service with these settings.
    pub fn new(settings: Settings) -> Self {
        Self::with_delay(settings, POWER_DELAY)
    }

    fn with_delay(settings: Settings, before_power: Duration) -> Self {
        Self(Arc::new(Inner {
            roots: Roots::new(settings.roots, Guard::new(settings.protected)),
            kubeconfig: settings.kubeconfig.to_string_lossy().into_owned(),
            services: settings.services,
            logs: settings.logs,
            power: settings.power,
            before_power,
            prober: Prober::default(),
            slots: TransferSlots::default(),
        }))
    }

    /// The server to mount.
    pub fn service(self) -> MachineServiceServer<Self> {
        MachineServiceServer::new(self)
    }

    /// Runs a sender in a thread; its first word decides between an error and
    /// a stream.
    async fn send<T, F>(
        &self,
        slot: TransferSlot,
        work: F,
    ) -> Answer<BoxStream<'static, Result<T, Status>>>
    where
        T: Send + 'static,
        F: FnOnce(&Roots, &mpsc::Sender<Result<T, Status>>) -> Result<(), Error> + Send + 'static,
    {
        let (sender, mut receiver) = mpsc::channel(QUEUE_LIMIT);
        let roots = self.0.roots.clone();
        tokio::task::spawn_blocking(move || {
            let _slot = slot;
            if let Err(error) = work(&roots, &sender) {
                let _ = sender.blocking_send(Err(error.into()));
            }
        });
        let first = receiver.recv().await.transpose()?;
        let first = futures::stream::iter(first.map(Ok));
        Ok(Response::new(first.chain(ReceiverStream::new(receiver)).boxed()))
    }

    async fn operate(&self, id: &str, operation: Operation) -> Result<String, Status> {
        if id.is_empty() {
            let reason = "must not be empty".into();
            return Err(Error::Invalid { field: "id", reason }.into());
        }
        self.0.services.operate(id, operation).await?;
        tracing::info!(service = id, "the service was {} via API", operation.done());
        Ok(format!("Service {id:?} {}", operation.done()))
    }

    fn power(&self, what: &'static str) -> Result<Arc<dyn Power>, Error> {
        self.0.power.clone().ok_or_else(|| Error::Refused {
            what,
            reason: "this machine is not its agent's to steer; it is with --allow-power".into(),
        })
    }

    /// Answers now and acts a moment later.
    fn soon<F>(&self, what: &'static str, act: F)
    where
        F: FnOnce() -> io::Result<()> + Send + 'static,
    {
        tracing::warn!("{what} via API received");
        let delay = self.0.before_power;
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            match tokio::task::spawn_blocking(act).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "{what} failed"),
                Err(error) => tracing::error!(%error, "{what} failed"),
            }
        });
    }
}

fn refused(what: &'static str) -> impl FnOnce(String) -> Result<(), Error> {
    move |reason| Err(Error::Refused { what, reason })
}

type Answer<T> = Result<Response<T>, Status>;
type DataStream = BoxStream<'static, Result<Data, Status>>;

#[tonic::async_trait]
impl MachineService for MachineApi {
    type CopyStream = DataStream;
    type KubeconfigStream = DataStream;
    type ListStream = BoxStream<'static, Result<FileInfo, Status>>;
    type LogsStream = DataStream;
    type ReadStream = DataStream;

    async fn copy(&self, request: Request<CopyRequest>) -> Answer<DataStream> {
        let slot = self.0.slots.take(&request)?;
        let path = request.into_inner().root_path;
        self.send(slot, move |roots, pieces| archive::send(roots, &path, pieces)).await
    }

    async fn kubeconfig(&self, request: Request<()>) -> Answer<DataStream> {
        let slot = self.0.slots.take(&request)?;
        let path = self.0.kubeconfig.clone();
        // Named by the machine's owner, not by the caller.
        self.send(slot, move |_, pieces| archive::send(&Roots::of_owner(), &path, pieces)).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<Self::ListStream> {
        let slot = self.0.slots.take(&request)?;
        let request = request.into_inner();
        self.send(slot, move |roots, files| list::send(roots, &request, files)).await
    }

    async fn logs(&self, request: Request<LogsRequest>) -> Answer<DataStream> {
        let request = request.into_inner();
        if request.id.is_empty() {
            let reason = "must not be empty".into();
            return Err(Error::Invalid { field: "id", reason }.into());
        }
        let pieces = self.0.logs.open(&request).await?;
        let data = |bytes: Bytes| Data { metadata: None, bytes };
        Ok(Response::new(lines::whole(pieces).map(move |piece| piece.map(data)).boxed()))
    }

    async fn mounts(&self, _: Request<()>) -> Answer<MountsResponse> {
        let stats = self.0.prober.mounts().await?;
        Ok(Response::new(MountsResponse { messages: vec![Mounts { metadata: None, stats }] }))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Answer<DataStream> {
        let slot = self.0.slots.take(&request)?;
        let path = request.into_inner().path;
        self.send(slot, move |roots, pieces| archive::send_plain(roots, &path, pieces)).await
    }

    async fn reboot(&self, _: Request<()>) -> Answer<RebootResponse> {
        let power = self.power("reboot")?;
        self.soon("reboot", move || power.reboot());
        Ok(Response::new(RebootResponse { messages: vec![Reboot { metadata: None }] }))
    }

    async fn reset(&self, _: Request<()>) -> Answer<ResetResponse> {
        let power = self.power("reset")?;
        power.reset_obstacle().map_or(Ok(()), refused("reset"))?;
        self.soon("reset", move || power.reset());
        Ok(Response::new(ResetResponse { messages: vec![Reset { metadata: None }] }))
    }

    async fn service_list(&self, _: Request<()>) -> Answer<ServiceListResponse> {
        let mut services = self.0.services.services();
        services.sort_by(|a, b| a.id.cmp(&b.id));
        let messages = vec![ServiceList { metadata: None, services }];
        Ok(Response::new(ServiceListResponse { messages }))
    }

    async fn service_restart(
        &self,
        request: Request<ServiceRestartRequest>,
    ) -> Answer<ServiceRestartResponse> {
        let resp = self.operate(&request.into_inner().id, Operation::Restart).await?;
        let messages = vec![ServiceRestart { metadata: None, resp }];
        Ok(Response::new(ServiceRestartResponse { messages }))
    }

    async fn service_start(
        &self,
        request: Request<ServiceStartRequest>,
    ) -> Answer<ServiceStartResponse> {
        let resp = self.operate(&request.into_inner().id, Operation::Start).await?;
        let messages = vec![ServiceStart { metadata: None, resp }];
        Ok(Response::new(ServiceStartResponse { messages }))
    }

    async fn service_stop(
        &self,
        request: Request<ServiceStopRequest>,
    ) -> Answer<ServiceStopResponse> {
        let resp = self.operate(&request.into_inner().id, Operation::Stop).await?;
        let messages = vec![ServiceStop { metadata: None, resp }];
        Ok(Response::new(ServiceStopResponse { messages }))
    }

    async fn shutdown(&self, _: Request<()>) -> Answer<ShutdownResponse> {
        let power = self.power("shutdown")?;
        self.soon("shutdown", move || power.shutdown());
        Ok(Response::new(ShutdownResponse { messages: vec![Shutdown { metadata: None }] }))
    }

    async fn upgrade(&self, request: Request<UpgradeRequest>) -> Answer<UpgradeResponse> {
        let power = self.power("upgrade")?;
        let image = request.into_inner().image;
        if image.is_empty() || image.starts_with('-') {
            let reason = format!("{image:?} is not the name of an image");
            return Err(Error::Invalid { field: "image", reason }.into());
        }
        power.upgrade_obstacle().map_or(Ok(()), refused("upgrade"))?;
        self.soon("upgrade", move || power.upgrade(&image));
        let ack = "Upgrade request received".into();
        Ok(Response::new(UpgradeResponse { messages: vec![Upgrade { metadata: None, ack }] }))
    }

    async fn start(&self, request: Request<StartRequest>) -> Answer<StartResponse> {
        let resp = self.operate(&request.into_inner().id, Operation::Start).await?;
        Ok(Response::new(StartResponse { resp }))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Answer<StopResponse> {
        let resp = self.operate(&request.into_inner().id, Operation::Stop).await?;
        Ok(Response::new(StopResponse { resp }))
    }

    async fn version(&self, _: Request<()>) -> Answer<VersionResponse> {
        let message = Version {
            metadata: None,
            version: Some(selvage_kit::build::build()),
            platform: Some(platform::platform("/".as_ref())),
        };
        Ok(Response::new(VersionResponse { messages: vec![message] }))
    }
}

#[cfg(test)]
mod tests;
