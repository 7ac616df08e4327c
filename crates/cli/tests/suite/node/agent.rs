//! An entry that answers for machines: those whose name begins with `dead` do
//! not.

use std::{
    io::Write,
    pin::Pin,
    sync::{Arc, Mutex},
};

use flate2::{Compression, write::GzEncoder};
use futures::{Stream, StreamExt};
use selvage_api::{
    common::{Data, Metadata},
    machine::{
        machine_service_server::MachineService, machine_service_server::MachineServiceServer, *,
    },
    os::{
        Container, ContainersRequest, ContainersResponse, DmesgRequest, MemInfo, Memory,
        MemoryResponse, Process, ProcessInfo, ProcessesResponse, Restart, RestartRequest,
        RestartResponse, StatsRequest, StatsResponse,
        os_service_server::{OsService, OsServiceServer},
    },
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

type Answer<T> = Result<Response<T>, Status>;
type Stream_<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Default)]
struct AgentState {
    timeout: String,
    /// Timeouts that came with questions about memory, in order.
    timeouts: Vec<String>,
    restart: Option<RestartRequest>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<AgentState>>);

/// Running agents; gone when dropped.
pub(crate) struct Agents {
    pub(crate) endpoint: String,
    fake: Fake,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agents {
    pub(crate) async fn start() -> Self {
        let fake = Fake::default();
        let server = Server::builder()
            .add_service(OsServiceServer::new(fake.clone()))
            .add_service(MachineServiceServer::new(fake.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        Self { endpoint, fake, task }
    }

    pub(crate) fn last_timeout(&self) -> String {
        self.fake.0.lock().unwrap().timeout.clone()
    }

    pub(crate) fn timeouts(&self) -> Vec<String> {
        self.fake.0.lock().unwrap().timeouts.clone()
    }

    pub(crate) fn last_restart(&self) -> RestartRequest {
        self.restarted().unwrap()
    }

    pub(crate) fn restarted(&self) -> Option<RestartRequest> {
        self.fake.0.lock().unwrap().restart.clone()
    }
}

/// Metadata of each machine's answer: nothing when it answers for
/// itself alone.
fn machines<T>(request: &Request<T>) -> Vec<Option<Metadata>> {
    let named = request.metadata().get_all("nodes").into_iter();
    let named: Vec<_> = named
        .map(|name| {
            let hostname = name.to_str().unwrap().to_owned();
            let dead = hostname.starts_with("dead");
            let error = if dead { "rpc error: code = Unavailable desc = nobody there" } else { "" };
            Some(Metadata { hostname, error: error.into() })
        })
        .collect();
    if named.is_empty() { vec![None] } else { named }
}

/// The same of every machine that lives, one after another.
fn stream(machines: Vec<Option<Metadata>>, pieces: &[&[u8]]) -> Stream_<Data> {
    let mut all = Vec::new();
    for piece in pieces {
        for metadata in &machines {
            let bytes = piece.to_vec().into();
            all.push(Ok(Data { metadata: metadata.clone(), bytes }));
        }
    }
    // The dead say so once.
    let mut stderr = Vec::new();
    all.retain(|data| {
        let Ok(Data { metadata: Some(metadata), .. }) = data else { return true };
        if metadata.error.is_empty() {
            return true;
        }
        let first = !stderr.contains(&metadata.hostname);
        stderr.push(metadata.hostname.clone());
        first
    });
    futures::stream::iter(all).boxed()
}

/// A tar.gz with `a/file`, and if it is evil with `../evil`.
pub(crate) fn archive(evil: bool) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for name in ["a/file", "../evil"].into_iter().take(if evil { 2 } else { 1 }) {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(7);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, &b"content"[..]).unwrap();
    }
    let mut gz = tar.into_inner().unwrap();
    gz.flush().unwrap();
    gz.finish().unwrap()
}

#[tonic::async_trait]
impl OsService for Fake {
    type DmesgStream = Stream_<Data>;

    async fn containers(&self, request: Request<ContainersRequest>) -> Answer<ContainersResponse> {
        if request.get_ref().namespace == "refused" {
            return Err(Status::invalid_argument("namespace can't be empty"));
        }
        let machines = machines(&request).into_iter();
        let messages = machines.map(|metadata| Container { metadata, containers: vec![] });
        let mut messages: Vec<_> = messages.collect();
        if request.get_ref().namespace == "*" {
            let error = "rpc error: code = Unavailable desc = containerd is dead".into();
            let metadata = Some(Metadata { hostname: String::new(), error });
            messages.push(Container { metadata, containers: vec![] });
        }
        Ok(Response::new(ContainersResponse { messages }))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Answer<StatsResponse> {
        Ok(Response::new(StatsResponse::default()))
    }

    async fn processes(&self, request: Request<()>) -> Answer<ProcessesResponse> {
        static CALLS: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(1);
        // Another process every time, so that there is something to tell.
        let pid = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let messages = machines(&request).into_iter().map(|metadata| Process {
            metadata,
            processes: vec![ProcessInfo { pid, ..ProcessInfo::default() }],
        });
        Ok(Response::new(ProcessesResponse { messages: messages.collect() }))
    }

    async fn memory(&self, request: Request<()>) -> Answer<MemoryResponse> {
        let timeout = request.metadata().get("node-timeout");
        let timeout = timeout.map_or(String::new(), |text| text.to_str().unwrap().to_owned());
        {
            let mut state = self.0.lock().unwrap();
            state.timeouts.push(timeout.clone());
            if !timeout.is_empty() {
                state.timeout = timeout.clone();
            }
        }
        let meminfo = MemInfo { memtotal: 2048, memfree: 1024, ..MemInfo::default() };
        // One that is slow answers those who have time, one that is mute nobody.
        let late = |metadata: &Metadata| {
            metadata.hostname.starts_with("mute")
                || (metadata.hostname.starts_with("slow") && !timeout.is_empty())
        };
        let messages = machines(&request).into_iter().map(|mut metadata| {
            if let Some(metadata) = metadata.as_mut().filter(|metadata| late(metadata)) {
                metadata.error = "rpc error: code = DeadlineExceeded desc = no answer".into();
            }
            Memory { metadata, meminfo: Some(meminfo.clone()) }
        });
        Ok(Response::new(MemoryResponse { messages: messages.collect() }))
    }

    async fn restart(&self, request: Request<RestartRequest>) -> Answer<RestartResponse> {
        if request.get_ref().id == "missing" {
            return Err(Status::not_found("container \"missing\" not found"));
        }
        let machines = machines(&request).into_iter();
        let messages = machines.map(|metadata| Restart { metadata, old_pid: 7, new_pid: 8 });
        let messages = messages.collect();
        self.0.lock().unwrap().restart = Some(request.into_inner());
        Ok(Response::new(RestartResponse { messages }))
    }

    async fn dmesg(&self, request: Request<DmesgRequest>) -> Answer<Self::DmesgStream> {
        let machines = machines(&request);
        let DmesgRequest { json, level, .. } = request.into_inner();
        let stderr = format!("{{\"level\":{level:?}}}\n");
        let records: &[&[u8]] = if json {
            &[stderr.as_bytes()]
        } else {
            &[b"kern:    info: [t]: one\n SUBSYSTEM=x\n", b"kern:     err: [t]: two\n"]
        };
        Ok(Response::new(stream(machines, records)))
    }
}

macro_rules! each {
    ($request:expr, $reply:ident: $part:ident { $($field:ident: $value:expr),* }) => {{
        let machines = machines(&$request).into_iter();
        let messages = machines.map(|metadata| $part { metadata, $($field: $value),* });
        Ok(Response::new($reply { messages: messages.collect() }))
    }};
}

fn file(metadata: Option<Metadata>, name: &str, mode: u32, size: i64, error: &str) -> FileInfo {
    FileInfo {
        metadata,
        name: format!("/etc/{name}"),
        relative_name: name.into(),
        mode,
        size,
        modified: 1_700_000_000,
        error: error.into(),
        ..FileInfo::default()
    }
}

#[tonic::async_trait]
impl MachineService for Fake {
    type CopyStream = Stream_<Data>;
    type KubeconfigStream = Stream_<Data>;
    type ListStream = Stream_<FileInfo>;
    type LogsStream = Stream_<Data>;
    type ReadStream = Stream_<Data>;

    async fn copy(&self, request: Request<CopyRequest>) -> Answer<Self::CopyStream> {
        let path = request.get_ref().root_path.clone();
        let bytes = archive(path == "/evil");
        let (head, tail) = bytes.split_at(20);
        if path == "/broken" {
            let begun = stream(machines(&request), &[head]);
            let end = futures::stream::iter([Err(Status::unavailable("connection reset"))]);
            return Ok(Response::new(begun.chain(end).boxed()));
        }
        let pieces = stream(machines(&request), &[head, tail]);
        if path != "/half" {
            return Ok(Response::new(pieces));
        }
        let error = "rpc error: code = PermissionDenied desc = a/other".into();
        let last =
            Data { metadata: Some(Metadata { error, ..Metadata::default() }), ..Data::default() };
        Ok(Response::new(pieces.chain(futures::stream::iter([Ok(last)])).boxed()))
    }

    async fn kubeconfig(&self, _: Request<()>) -> Answer<Self::KubeconfigStream> {
        Err(Status::unimplemented("not here"))
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<Self::ListStream> {
        let machines = machines(&request);
        let folder = |of: &_| Ok(file(Clone::clone(of), ".", 1 << 31 | 0o755, 4096, ""));
        // All at once, as a proxy passes on what they say.
        let mut all: Vec<_> = machines.iter().map(folder).collect();
        all.extend(machines.iter().rev().map(|of| Ok(file(of.clone(), "hosts", 0o644, 12, ""))));
        all.extend(machines.into_iter().map(|of| Ok(file(of, "secret", 0, 0, "denied"))));
        Ok(Response::new(futures::stream::iter(all).boxed()))
    }

    async fn logs(&self, request: Request<LogsRequest>) -> Answer<Self::LogsStream> {
        if request.get_ref().id == "missing" {
            return Err(Status::not_found("container \"missing\" not found"));
        }
        let pieces: [&[u8]; 3] = [b"first li", b"ne\nsecond line\nun", b"finished"];
        Ok(Response::new(stream(machines(&request), &pieces)))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Answer<Self::ReadStream> {
        let pieces: [&[u8]; 2] = [&[0, 159, 146], &[150, b'\n', b'x']];
        Ok(Response::new(stream(machines(&request), &pieces)))
    }

    async fn mounts(&self, _: Request<()>) -> Answer<MountsResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn reboot(&self, request: Request<()>) -> Answer<RebootResponse> {
        each!(request, RebootResponse: Reboot {})
    }

    async fn reset(&self, request: Request<()>) -> Answer<ResetResponse> {
        each!(request, ResetResponse: Reset {})
    }

    async fn shutdown(&self, request: Request<()>) -> Answer<ShutdownResponse> {
        each!(request, ShutdownResponse: Shutdown {})
    }

    async fn upgrade(&self, request: Request<UpgradeRequest>) -> Answer<UpgradeResponse> {
        each!(request, UpgradeResponse: Upgrade { ack: "Upgrade request received".into() })
    }

    async fn service_list(&self, request: Request<()>) -> Answer<ServiceListResponse> {
        each!(request, ServiceListResponse: ServiceList { services: Vec::new() })
    }

    async fn service_restart(
        &self,
        request: Request<ServiceRestartRequest>,
    ) -> Answer<ServiceRestartResponse> {
        let words = format!("Service {:?} restarted", request.get_ref().id);
        each!(request, ServiceRestartResponse: ServiceRestart { resp: words.clone() })
    }

    async fn service_start(&self, _: Request<ServiceStartRequest>) -> Answer<ServiceStartResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn service_stop(&self, _: Request<ServiceStopRequest>) -> Answer<ServiceStopResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn start(&self, _: Request<StartRequest>) -> Answer<StartResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Answer<StopResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn version(&self, request: Request<()>) -> Answer<VersionResponse> {
        each!(request, VersionResponse: Version { version: None, platform: None })
    }
}
