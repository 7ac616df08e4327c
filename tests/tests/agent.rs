//! A machine's agent in a real process: what it tells, to whom, and in which
//! words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use prost::Message;
use selvage_api::{
    os::{
        ContainersRequest, MemoryResponse, ProcessesResponse, RestartRequest,
        os_service_client::OsServiceClient,
    },
    selvage::node::{GetHostResponse, ProcessesUpdate},
};
use selvage_tests::{Client, Selvage, client::http};
use tonic::Code;

#[tokio::test]
async fn the_machine_is_described_as_it_is() {
    let selvage = Selvage::part("node", &[]);
    let admin = Client::admin(&selvage).await;
    let (replies, code, text) = admin.raw("/os.OSService/Memory", &[]).await;
    assert_eq!(code, Code::Ok, "{text}");
    let memory = MemoryResponse::decode(replies[0].clone()).unwrap();
    assert!(memory.messages[0].meminfo.as_ref().unwrap().memtotal > 0);

    let (replies, code, text) = admin.raw("/os.OSService/Processes", &[]).await;
    assert_eq!(code, Code::Ok, "{text}");
    let processes = ProcessesResponse::decode(replies[0].clone()).unwrap();
    let agent = i32::try_from(selvage.pid()).unwrap();
    let listed = processes.messages[0].processes.iter().find(|process| process.pid == agent);
    assert!(listed.unwrap().args.contains("selvage node"), "{listed:?}");

    let (replies, code, _) = admin.raw("/selvage.node.NodeService/GetHost", &[]).await;
    assert_eq!(code, Code::Ok);
    let host = GetHostResponse::decode(replies[0].clone()).unwrap();
    assert!(!host.messages[0].cpus.is_empty() && !host.messages[0].filesystems.is_empty());
}

#[tokio::test]
async fn a_stream_goes_on_with_what_is_different() {
    let selvage = Selvage::part("node", &[]);
    let admin = Client::admin(&selvage).await;
    let mut node = selvage_api::selvage::node::node_service_client::NodeServiceClient::new(
        admin.channel.clone(),
    );
    let request = admin.request(Default::default());
    let mut stream = node.watch_processes(request).await.unwrap().into_inner();
    let first: ProcessesUpdate = stream.message().await.unwrap().unwrap();
    let second: ProcessesUpdate = stream.message().await.unwrap().unwrap();
    assert!(
        second.changed.len() < first.changed.len(),
        "{} then {}",
        first.changed.len(),
        second.changed.len()
    );
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_unavailable_and_soon() {
    let selvage = Selvage::part("node", &["--set", "node.containerd=/nonexistent/containerd.sock"]);
    let admin = Client::admin(&selvage).await;
    let mut os = OsServiceClient::new(admin.channel.clone());
    let request = ContainersRequest { namespace: "k8s.io".into(), driver: 0 };
    let refused = os.containers(admin.request(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let request = ContainersRequest { namespace: String::new(), driver: 0 };
    let refused = os.containers(admin.request(request)).await.unwrap_err();
    assert_eq!(refused.message(), "namespace can't be empty");
}

#[tokio::test]
async fn prometheus_reads_the_machines_page_and_unauthenticated_callers_do_not() {
    let selvage = Selvage::part("node", &[]);
    let admin = Client::admin(&selvage).await;
    let http = http(&selvage);
    let url = format!("{}/metrics/node", selvage.endpoint());
    assert_eq!(http.get(&url).send().await.unwrap().status(), 401);
    let reply = http.get(&url).bearer_auth(admin.token.as_ref().unwrap()).send().await.unwrap();
    let kind = reply.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let page = reply.text().await.unwrap();
    for name in ["node_cpu_seconds_total{", "node_memory_MemTotal_bytes ", "node_load1 "] {
        assert!(page.contains(&format!("\n{name}")), "{name}");
    }
}

#[tokio::test]
async fn bad_names_are_refused_in_words_and_soon() {
    let place = tempfile::tempdir().unwrap();
    let mute = place.path().join("mute.sock");
    let _others = std::os::unix::net::UnixListener::bind(&mute).unwrap();
    let socket = format!("node.containerd={}", mute.display());
    let selvage = Selvage::part("node", &["--set", &socket]);
    let admin = Client::admin(&selvage).await;
    let mut os = OsServiceClient::new(admin.channel.clone());
    for (namespace, driver, code) in [
        ("", 0, Code::InvalidArgument),
        ("a b", 0, Code::InvalidArgument),
        ("a\nb", 0, Code::InvalidArgument),
        ("../etc", 0, Code::InvalidArgument),
        ("system", 1, Code::InvalidArgument),
        ("k8s.io", 7, Code::InvalidArgument),
        // Somebody listens there who is no containerd.
        ("k8s.io", 0, Code::Unavailable),
        ("*", 0, Code::Unavailable),
    ] {
        let request = ContainersRequest { namespace: namespace.into(), driver };
        let refused = os.containers(admin.request(request)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{namespace:?}: {refused}");
        for id in ["", "a/b/c", "a:b", "x\ny", "/", ":", "../../etc/passwd"] {
            let (namespace, id) = (namespace.to_owned(), id.to_owned());
            let request = RestartRequest { namespace, id, driver, ..RestartRequest::default() };
            let refused = os.restart(admin.request(request)).await.unwrap_err();
            let expected = [
                Code::InvalidArgument,
                Code::NotFound,
                Code::Unavailable,
                Code::FailedPrecondition,
            ];
            assert!(expected.contains(&refused.code()), "{refused}");
        }
    }
}
