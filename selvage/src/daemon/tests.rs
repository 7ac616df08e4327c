#![allow(clippy::unwrap_used)]
//! A made-up part goes the way of all parts.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::time::{
    TimeRequest, TimeResponse,
    time_service_client::TimeServiceClient,
    time_service_server::{TimeService, TimeServiceServer},
};
use selvage_kit::{
    dial::{self, Endpoint},
    tasks::State,
};
use selvage_part::{Configured, OpenPart, Part};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Request, Response, Status};

use super::*;

/// A part with a little of everything.
struct MadeUp;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    /// Text of its page.
    greeting: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { greeting: "hello".into() }
    }
}

#[async_trait]
impl Part for MadeUp {
    const NAME: &'static str = "made-up";
    type Options = Options;

    fn check(_: &Process, options: &Options) -> selvage_part::Result<()> {
        anyhow::ensure!(!options.greeting.is_empty(), "made-up.greeting: empty");
        Ok(())
    }

    async fn open(
        context: &Arc<Context>,
        options: &Options,
    ) -> selvage_part::Result<Option<Box<dyn OpenPart>>> {
        context.bind(Self::NAME).await?;
        let (ready, readiness) = tokio::sync::watch::channel(Err("made-up: not spawned".into()));
        Ok(Some(Box::new(Opened { greeting: options.greeting.clone(), ready, readiness })))
    }
}

struct Opened {
    greeting: String,
    ready: tokio::sync::watch::Sender<Result<(), String>>,
    readiness: selvage_kit::serve::Readiness,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        mount.services().add(TimeServiceServer::new(Clock(self.greeting.clone())));
        mount.ready(self.readiness.clone());
        let text = bytes::Bytes::from(format!("made_up_greeting {}\n", self.greeting));
        let page = move || -> futures::future::BoxFuture<'static, bytes::Bytes> {
            Box::pin(std::future::ready(text.clone()))
        };
        mount.metrics_page("/metrics/made-up", Arc::new(page));
    }

    async fn spawn(self: Box<Self>, tasks: &Tasks) -> selvage_part::Result<()> {
        let stop = tasks.token().clone();
        tasks.spawn("made-up", async move { stop.cancelled().await });
        self.ready.send(Ok(()))?;
        Ok(())
    }
}

struct Clock(String);

#[async_trait]
impl TimeService for Clock {
    async fn time(&self, _: Request<()>) -> Result<Response<TimeResponse>, Status> {
        Err(Status::not_found(self.0.clone()))
    }

    async fn time_check(&self, _: Request<TimeRequest>) -> Result<Response<TimeResponse>, Status> {
        Err(Status::unimplemented("not made up"))
    }
}

fn plan(data: &Path, options: Options) -> Plan {
    let mut config = Config { data: data.to_owned(), insecure: true, ..Config::default() };
    config.listen.port = 0;
    config.link();
    let mut plan = Plan::with(config, Base::Own, vec![MadeUp::NAME]);
    plan.parts.push(Box::new(Configured::<MadeUp>(options)));
    plan
}

async fn get(endpoint: &str, path: &str) -> String {
    let host = endpoint.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_made_up_part_is_opened_mounted_and_spawned() {
    let data = tempfile::tempdir().unwrap();
    let plan = plan(data.path(), Options { greeting: "well met".into() }).checked().unwrap();
    let tasks = Tasks::new(CancellationToken::new());
    let running = plan.start(&tasks).await.unwrap();

    let endpoint = running.ready.endpoint.clone().unwrap();
    let host = Endpoint::parse(endpoint.trim_start_matches("http://"), 0).unwrap();
    let channel = dial::channel(None, &[host]).unwrap();
    let answer = TimeServiceClient::new(channel).time(()).await.unwrap_err();
    assert_eq!((answer.code(), answer.message()), (tonic::Code::NotFound, "well met"));

    let page = get(&endpoint, "/metrics/made-up").await;
    assert!(page.contains("made_up_greeting well met"), "{page}");
    let ready = get(&endpoint, "/readiness").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    ready::socket_answers(&running.ready.sockets["made-up"]).await.unwrap();
    let spawned = tasks.list().into_iter().find(|task| task.name == "made-up").unwrap();
    assert_eq!(spawned.state, State::Running);

    tasks.token().cancel();
    tasks.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    running.foundation.close().await.unwrap();
}

#[tokio::test]
async fn a_part_that_cannot_run_is_found_out_before_anything_is_made() {
    let data = tempfile::tempdir().unwrap();
    let checked = plan(data.path(), Options { greeting: String::new() }).checked();
    assert_eq!(checked.err().unwrap().to_string(), "made-up.greeting: empty");
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}
