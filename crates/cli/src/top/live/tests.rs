#![allow(clippy::unwrap_used, clippy::panic)]
use std::{collections::BTreeSet, pin::Pin};

use futures::{Stream, StreamExt};
use selvage_api::{
    common::Data,
    os::{
        Container as Containers, ContainerInfo, ContainersResponse, MemoryResponse,
        ProcessesResponse, Restart, RestartResponse, Stat, Stats, StatsResponse,
        os_service_server::{OsService, OsServiceServer},
    },
    selvage::node::{
        GetHistoryRequest, GetHistoryResponse, GetHostRequest, GetHostResponse, Host,
        ProcessesUpdate, StatsUpdate, WatchStatsRequest,
        node_service_server::{NodeService, NodeServiceServer},
    },
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use super::*;
use crate::{connect::Trust, endpoint::Endpoint};

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers for machines. `hangs` never does; `down` fails.
#[derive(Clone, Copy)]
struct Entry;

/// The machine that is asked, if it lives.
async fn machine<T>(request: &Request<T>) -> Option<Metadata> {
    let name = request.metadata().get("nodes")?.to_str().unwrap().to_owned();
    if name == "hangs" {
        std::future::pending::<()>().await;
    }
    let error = match name.as_str() {
        "down" => "rpc error: code = Unavailable desc = nobody answers",
        _ => "",
    };
    Some(Metadata { hostname: name, error: error.into() })
}

fn first<T: Send + 'static>(item: T) -> Response<Answers<T>> {
    let rest = futures::stream::pending();
    Response::new(futures::stream::iter([Ok(item)]).chain(rest).boxed())
}

#[tonic::async_trait]
impl NodeService for Entry {
    type WatchStatsStream = Answers<StatsUpdate>;
    type WatchProcessesStream = Answers<ProcessesUpdate>;
    type WatchHostStream = Answers<Host>;

    async fn watch_stats(&self, _: Request<WatchStatsRequest>) -> Answer<Self::WatchStatsStream> {
        Err(Status::unimplemented("not here"))
    }

    async fn watch_processes(
        &self,
        request: Request<WatchProcessesRequest>,
    ) -> Answer<Self::WatchProcessesStream> {
        let metadata = machine(&request).await;
        Ok(first(ProcessesUpdate { metadata, ..ProcessesUpdate::default() }))
    }

    async fn watch_host(
        &self,
        request: Request<WatchHostRequest>,
    ) -> Answer<Self::WatchHostStream> {
        let metadata = machine(&request).await;
        Ok(first(Host { metadata, name: "box".into(), ..Host::default() }))
    }

    async fn get_host(&self, _: Request<GetHostRequest>) -> Answer<GetHostResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_history(&self, _: Request<GetHistoryRequest>) -> Answer<GetHistoryResponse> {
        Err(Status::unimplemented("not here"))
    }
}

#[tonic::async_trait]
impl OsService for Entry {
    type DmesgStream = Answers<Data>;

    async fn containers(&self, request: Request<ContainersRequest>) -> Answer<ContainersResponse> {
        let metadata = machine(&request).await;
        if request.get_ref().namespace == "k8s.io" {
            return Err(Status::not_found("no such socket"));
        }
        let info = |id: &str| ContainerInfo { id: id.into(), ..ContainerInfo::default() };
        let containers = vec![info("web"), info("db")];
        let messages = vec![Containers { metadata, containers }];
        Ok(Response::new(ContainersResponse { messages }))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Answer<StatsResponse> {
        let metadata = machine(&request).await;
        let stat = Stat { id: "web".into(), cpu_percent: 5.0, ..Stat::default() };
        Ok(Response::new(StatsResponse { messages: vec![Stats { metadata, stats: vec![stat] }] }))
    }

    async fn restart(&self, request: Request<RestartRequest>) -> Answer<RestartResponse> {
        let metadata = machine(&request).await;
        let messages = vec![Restart { metadata, old_pid: 7, new_pid: 8 }];
        Ok(Response::new(RestartResponse { messages }))
    }

    async fn dmesg(&self, request: Request<DmesgRequest>) -> Answer<Self::DmesgStream> {
        let metadata = machine(&request).await;
        Ok(first(Data { metadata, bytes: "kern:    info: [t]: hello\n".into() }))
    }

    async fn memory(&self, _: Request<()>) -> Answer<MemoryResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn processes(&self, _: Request<()>) -> Answer<ProcessesResponse> {
        Err(Status::unimplemented("not here"))
    }
}

async fn live(names: &[&str]) -> (Live, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder()
        .add_service(NodeServiceServer::new(Entry))
        .add_service(OsServiceServer::new(Entry));
    let serving = tokio::spawn(async move {
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    let target = Target::bare(Endpoint::parse(&endpoint).unwrap(), Trust::System);
    let connector = Arc::new(Connector { target, timeout: None, open: Mutex::new(None) });
    let one = |name: &&str| Nodes { nodes: vec![(*name).to_owned()], ..Nodes::default() };
    (Live::watch(names.iter().map(one).collect(), &connector, Duration::from_secs(1)), serving)
}

/// News until all that is waited for has come.
async fn until(live: &mut Live, mut enough: impl FnMut(usize, &Report) -> bool) {
    let all = async {
        loop {
            let (node, report) = live.next().await.unwrap();
            if enough(node, &report) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}

#[tokio::test]
async fn machines_that_hang_or_fail_hold_up_nobody() {
    let (mut live, serving) = live(&["hangs", "lives", "down"]).await;
    let mut seen = BTreeSet::new();
    until(&mut live, |node, report| {
        let kind = match (node, report) {
            (1, Report::Host(host)) => {
                assert_eq!(host.name, "box");
                "host"
            }
            (1, Report::Processes { first: true, .. }) => "processes",
            (1, Report::Kernel(record)) => {
                assert_eq!(record, "kern:    info: [t]: hello\n");
                "kernel"
            }
            (1, Report::Containers(all)) => {
                // Sorted, measured where there are measurements, and what a
                // place without a runtime says is no failure.
                let found: Vec<_> =
                    all.iter().map(|one| (one.info.id.as_str(), one.stat.is_some())).collect();
                assert_eq!(found, [("db", false), ("web", true)]);
                "containers"
            }
            (2, Report::Failed(why)) => {
                assert_eq!(why, "nobody answers");
                "down"
            }
            (0, Report::Failed(why)) => {
                assert_eq!(why, "it does not answer");
                "hangs"
            }
            // Of a machine that does not answer; it says nothing of itself.
            (0 | 2, Report::NoContainers(_)) => return false,
            (node, other) => panic!("{node}: {other:?}"),
        };
        seen.insert(kind);
        seen.len() == 6
    })
    .await;
    serving.abort();
}

#[tokio::test]
async fn a_request_is_carried_out_and_its_result_shown() {
    let (mut live, serving) = live(&["lives", "down"]).await;
    for node in [0, 1] {
        live.act(Effect::Restart { node, namespace: "system".into(), id: "web".into(), driver: 0 });
    }
    let mut results = BTreeSet::new();
    until(&mut live, |node, report| {
        if let Report::Restarted { id, result } = report {
            assert_eq!(id, "web");
            results.insert((node, result.clone()));
        }
        results.len() == 2
    })
    .await;
    let expected: BTreeSet<(usize, Result<String, String>)> =
        [(0, Ok("is restarted: pid 7 is 8 now".to_owned())), (1, Err("nobody answers".to_owned()))]
            .into();
    assert_eq!(results, expected);
    serving.abort();
}
