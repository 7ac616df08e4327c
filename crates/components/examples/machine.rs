//! An agent in a machine, without the rest of the system, for tests:
//! `machine machine-init FOLDER` and `machine agent SOCKET DATA ARTIFACTS CGROUP`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{path::Path, process::ExitCode, sync::Arc};

use selvage_components::{MemberAgent, Settings, machine};
use selvage_runtime::oci::{Oci, Options};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [machine::INIT, folder] => machine::init(Path::new(folder)),
        ["agent", socket, data, artifacts, cgroup] => agent(socket, data, artifacts, cgroup),
        _ => panic!("unknown arguments"),
    }
}

#[tokio::main]
async fn agent(socket: &str, data: &str, artifacts: &str, cgroup: &str) -> ExitCode {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let data = Path::new(data);
    let runtime = Oci::open(Options {
        state: "/run/selvage/containers".into(),
        cgroup: cgroup.into(),
        ..Options::new(data.join("containers"))
    });
    let settings = Settings {
        data: data.join("kubernetes"),
        run: "/run/selvage/kubernetes".into(),
        artifacts: Some(artifacts.into()),
        cgroup: format!("{cgroup}/kubernetes"),
        lvmd: None,
    };
    let agent = MemberAgent::open(settings, Arc::new(runtime.await.unwrap())).unwrap();
    let _ = std::fs::remove_file(socket);
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let serving = tonic::transport::Server::builder()
        .add_service(agent.service())
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(agent.run(CancellationToken::new()));
    serving.await.unwrap();
    ExitCode::SUCCESS
}
