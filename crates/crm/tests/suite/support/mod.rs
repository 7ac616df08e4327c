//! Parts that tests of cloudlets share: a controller's end of notify, a
//! cloudlet with an app that answers, and a platform that stops where it is
//! told to.

mod cloudlet;
mod controller;
mod other_machine;
mod stuck;

use std::{net::SocketAddr, time::Duration};

pub(crate) use self::{
    cloudlet::{Life, Running, TestCloudlet},
    controller::TestController,
    other_machine::{Mirror, OtherMachine, Talk, run_in, taken_for},
    stuck::Stuck,
};
pub(crate) use crate::real::{TEST_TIMEOUT, find, loop_devices, skip, wait_for};

/// Answer of the app.
pub(crate) const ANSWER: &str = "hello from the edge";

/// Returns whether containers can be made here; says so loudly when not.
pub(crate) fn can_run() -> bool {
    crate::real::can_run(&["runc"])
}

/// The network namespace of the instance of an app.
pub(crate) fn namespace(place: &TestCloudlet, app: &str) -> String {
    let prefix = selvage_crm::platform::network::prefix(&place.cloudlet()).unwrap();
    let begin = format!("slv-{}-{app}-", prefix.strip_prefix("slv").unwrap());
    let all = std::fs::read_dir(selvage_crm::platform::network::namespaces::FOLDER).unwrap();
    let mut names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.find(|name| name.starts_with(&begin)).unwrap()
}

/// Returns whether a program is there; says so loudly when not.
pub(crate) fn has_program(program: &str) -> bool {
    let there = find(program).is_some();
    if !there {
        skip(program, "it is not installed: run ./dev test");
    }
    there
}

/// Answer at a public port; none when nobody answers.
pub(crate) async fn fetch(place: SocketAddr) -> Option<String> {
    fetch_path(place, "/").await
}

/// The same of a path.
pub(crate) async fn fetch_path(place: SocketAddr, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(place).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        text.contains(" 200 OK").then_some(text)
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.ok().flatten()
}
