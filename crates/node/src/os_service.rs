//! `os.OSService`.

mod server;

use std::{io, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use parking_lot::Mutex;
use selvage_api::{
    common::{Data, Metadata},
    os::{
        Container, ContainersRequest, ContainersResponse, DmesgRequest, Memory, MemoryResponse,
        Process, ProcessInfo, ProcessesResponse, Restart, RestartRequest, RestartResponse, Stats,
        StatsRequest, StatsResponse, os_service_server::OsService,
    },
};
use selvage_kit::identity::{Identity, Role};
use selvage_runtime::{GRACE, select::Runtimes};
use tonic::{Request, Response, Status};

use crate::{
    fanout,
    kmsg::{Kmsg, OpenError, Query},
    proc::Scanner,
    rows,
    sampler::Sampler,
};
pub(crate) use server::OsServer;

/// SIGTERM.
const TERMINATE: i32 = 15;

/// Maximum time to wait for the end of a container.
const MAX_GRACE: Duration = Duration::from_secs(3600);

/// Metadata with which clients that know only the published fields ask for no
/// more than a signal.
const SIGNAL_ONLY: &str = "signal-only";

/// Containers and processes of this machine, as the contract shows them. Clones are the same.
#[derive(Clone)]
pub(crate) struct Os {
    pub(crate) runtimes: Runtimes,
    pub(crate) sampler: Sampler,
    pub(crate) scanner: Arc<Mutex<Scanner>>,
    pub(crate) kmsg: Kmsg,
}

impl Os {
    pub(crate) fn service(&self) -> OsServer {
        OsServer::new(self.clone())
    }

    /// All processes, with secrets in their arguments or without.
    pub(crate) async fn scan(&self, secrets: bool) -> Result<Vec<ProcessInfo>, Status> {
        self.scanned(move |scanner| scanner.scan(secrets)).await
    }

    async fn scanned<T: Send + 'static>(
        &self,
        scan: impl FnOnce(&mut Scanner) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let scanner = Arc::clone(&self.scanner);
        let scan = tokio::task::spawn_blocking(move || scan(&mut scanner.lock()));
        match scan.await {
            Ok(Ok(processes)) => Ok(processes),
            Ok(Err(error)) => Err(Status::unavailable(format!("processes: {error}"))),
            Err(_) => Err(Status::internal("processes: the scan was cut off")),
        }
    }
}

/// Returns whether the caller may see secrets.
pub(crate) fn may_see_secrets<T>(request: &Request<T>) -> bool {
    request.extensions().get::<Identity>().is_some_and(|caller| caller.has_role(Role::Admin))
}

pub(crate) fn status(error: &selvage_runtime::Error) -> Status {
    Status::new(error.code().grpc(), error.to_string())
}

/// A failure that did not spoil the rest of an answer, in the words in which
/// one machine's among many is told.
pub(crate) fn partial(error: &selvage_runtime::Error) -> Option<Metadata> {
    Some(Metadata { hostname: String::new(), error: fanout::text(&status(error)) })
}

#[tonic::async_trait]
impl OsService for Os {
    async fn containers(
        &self,
        request: Request<ContainersRequest>,
    ) -> Result<Response<ContainersResponse>, Status> {
        let ContainersRequest { namespace, driver } = request.into_inner();
        let found = rows::containers(&self.runtimes, driver, &namespace)
            .await
            .map_err(|error| status(&error))?;
        let failed = |error| Container { metadata: partial(error), containers: Vec::new() };
        let rest: Vec<_> = found.failed.iter().map(failed).collect();
        let mut messages = vec![Container { metadata: None, containers: found.rows }];
        messages.extend(rest);
        Ok(Response::new(ContainersResponse { messages }))
    }

    type DmesgStream = BoxStream<'static, Result<Data, Status>>;

    async fn dmesg(
        &self,
        request: Request<DmesgRequest>,
    ) -> Result<Response<Self::DmesgStream>, Status> {
        let query = Query::of(request.get_ref())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let refused = |error: OpenError| Status::new(error.code().grpc(), error.to_string());
        let stream = self.kmsg.stream(query).map_err(refused)?;
        Ok(Response::new(stream.map(Ok).boxed()))
    }

    async fn memory(&self, _: Request<()>) -> Result<Response<MemoryResponse>, Status> {
        let meminfo = self
            .sampler
            .with_host_reader(|reader| reader.memory())
            .map_err(|error| Status::unavailable(format!("/proc/meminfo: {error}")))?;
        let messages = vec![Memory { meminfo: Some(meminfo), ..Memory::default() }];
        Ok(Response::new(MemoryResponse { messages }))
    }

    // Through the server it is answered by `OsServer` in its stead.
    async fn processes(&self, request: Request<()>) -> Result<Response<ProcessesResponse>, Status> {
        let processes = self.scan(may_see_secrets(&request)).await?;
        let messages = vec![Process { processes, ..Process::default() }];
        Ok(Response::new(ProcessesResponse { messages }))
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        let by_metadata = request.metadata().contains_key(SIGNAL_ONLY);
        let RestartRequest { namespace, id, driver, signal_only, grace_seconds } =
            request.into_inner();
        let grace = match grace_seconds {
            0 => GRACE,
            seconds => Duration::from_secs(seconds.into()),
        };
        if grace > MAX_GRACE {
            return Err(Status::invalid_argument("grace_seconds: may not be more than 3600"));
        }
        let how = match signal_only || by_metadata {
            true => selvage_runtime::Restart::SignalOnly(TERMINATE),
            false => selvage_runtime::Restart::Full { grace },
        };
        let runtime = self.runtimes.select(driver, &namespace).map_err(|error| status(&error))?;
        // Goes on without the caller, who may give up when the container has
        // ended and does not run again yet.
        let restarting = tokio::spawn(async move { runtime.restart(&namespace, &id, how).await });
        let restarted = match restarting.await {
            Ok(outcome) => outcome.map_err(|error| status(&error))?,
            Err(_) => return Err(Status::internal("the restart was cut off")),
        };
        let message = Restart {
            old_pid: restarted.old_pid.unwrap_or(0),
            new_pid: restarted.new_pid.unwrap_or(0),
            ..Restart::default()
        };
        Ok(Response::new(RestartResponse { messages: vec![message] }))
    }

    async fn stats(
        &self,
        request: Request<StatsRequest>,
    ) -> Result<Response<StatsResponse>, Status> {
        let StatsRequest { namespace, driver } = request.into_inner();
        let found = rows::stats(&self.runtimes, &self.sampler, driver, &namespace)
            .await
            .map_err(|error| status(&error))?;
        let failed = |error| Stats { metadata: partial(error), stats: Vec::new() };
        let rest: Vec<_> = found.failed.iter().map(failed).collect();
        let mut messages = vec![Stats { metadata: None, stats: found.rows }];
        messages.extend(rest);
        Ok(Response::new(StatsResponse { messages }))
    }
}

#[cfg(test)]
mod tests;
