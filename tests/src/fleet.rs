//! Controllers on one etcd, and calls to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    TryStreamExt,
    future::{BoxFuture, join_all},
};
use selvage_api::edgeproto::{Controller, controller_api_client::ControllerApiClient};
use selvage_testkit::{
    etcd::{Cluster, copy_private},
    free_port,
};
use tokio::time;
use tonic::{Code, Response, Status, Streaming};

use crate::{Client, Selvage};

/// For one call of a client.
pub const DEADLINE: Duration = Duration::from_secs(8);
/// Pause of a client that was refused.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Controllers on one etcd, each with a place of its own and all with the
/// same keys.
pub struct Fleet {
    // Dropped first: it shows its log, which lies in its place.
    pub running: Vec<Option<Selvage>>,
    places: Vec<tempfile::TempDir>,
    pub etcd: Cluster,
    /// Port of each: one that comes back has the address it had.
    ports: Vec<u16>,
    /// One for each controller; to one that is gone if the controller is.
    pub clients: Arc<Mutex<Vec<Client>>>,
    token: String,
}

impl Fleet {
    /// An etcd and one controller, or a loud word why not.
    pub async fn start() -> Option<Self> {
        let etcd = Cluster::start(3).await?;
        let place = tempfile::tempdir().unwrap();
        let port = free_port();
        let first = up(place.path(), &etcd, port);
        let client = Client::admin(&first).await;
        let token = client.token.clone().unwrap();
        let clients = Arc::new(Mutex::new(vec![client]));
        let running = vec![Some(first)];
        Some(Self { etcd, places: vec![place], running, ports: vec![port], clients, token })
    }

    /// Starts one more.
    pub async fn join(&mut self) {
        let place = tempfile::tempdir().unwrap();
        let keys = |place: &Path| place.join("data").join("pki");
        copy_private(&keys(self.places[0].path()), &keys(place.path()));
        self.places.push(place);
        self.running.push(None);
        self.ports.push(free_port());
        self.revive(self.running.len() - 1).await;
    }

    pub fn kill(&mut self, index: usize) {
        self.running[index].take().unwrap().kill();
    }

    /// Starts one that is not running. What was logged in stays so: tokens
    /// are good at every controller.
    pub async fn revive(&mut self, index: usize) {
        assert!(self.running[index].is_none(), "controller {index} runs");
        let selvage = up(self.places[index].path(), &self.etcd, self.ports[index]);
        let mut client = Client::anonymous(&selvage).await;
        client.token = Some(self.token.clone());
        let mut clients = self.clients.lock().unwrap();
        if index == clients.len() {
            clients.push(client);
        } else {
            clients[index] = client;
        }
        self.running[index] = Some(selvage);
    }

    pub fn client(&self, index: usize) -> Client {
        self.clients.lock().unwrap()[index].clone()
    }

    /// Clients of those that run.
    pub fn alive(&self) -> Vec<Client> {
        let all = 0..self.running.len();
        all.filter(|at| self.running[*at].is_some()).map(|at| self.client(at)).collect()
    }

    /// Addresses of those that run.
    pub fn addresses(&self) -> BTreeSet<String> {
        self.running.iter().flatten().map(|selvage| selvage.address().to_owned()).collect()
    }
}

pub fn up(place: &Path, etcd: &Cluster, port: u16) -> Selvage {
    let endpoints = format!("store.endpoints={:?}", etcd.endpoints());
    let port = format!("listen.port={port}");
    let flags = ["--set", "store.kind=etcd", "--set", &endpoints, "--set", &port];
    Selvage::start("controller", place, &flags)
}

/// A call that a client gives up in time.
pub async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("the client gave up"));
    time::timeout(DEADLINE, call).await.unwrap_or_else(late)
}

/// All that a stream brings. Boxed, for the objects are large and the calls many.
pub fn all<'a, T: Send + 'a>(
    call: impl Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'a,
) -> BoxFuture<'a, Result<Vec<T>, Status>> {
    Box::pin(bounded(async { call.await?.into_inner().try_collect().await }))
}

/// All objects of a kind, as a client of a controller sees them.
#[macro_export]
macro_rules! show {
    ($client:expr, $api:ident, $method:ident, $what:ident) => {
        $crate::fleet::all(
            $api::new($client.channel.clone()).$method($client.request($what::default())),
        )
        .await
        .unwrap()
    };
}

pub use selvage_testkit::wait_ok as until;

pub use crate::show;

/// Encoded answers to every `Show` there is, by its path.
pub async fn everything(client: &Client) -> BTreeMap<String, Vec<bytes::Bytes>> {
    let mut answers = BTreeMap::new();
    let shows = selvage_api::methods()
        .iter()
        .filter(|method| method.package == "edgeproto" && method.name.starts_with("Show"));
    for method in shows {
        let (messages, code, text) = client.raw(&method.path, &[]).await;
        assert_eq!(code, Code::Ok, "{}: {text}", method.path);
        answers.insert(method.path.clone(), messages);
    }
    answers
}

/// Waits until all controllers give the same answers; gives them.
pub async fn agreed(fleet: &Fleet) -> BTreeMap<String, Vec<bytes::Bytes>> {
    until("the same answers from all", async || {
        let mut answers = join_all(fleet.alive().iter().map(everything)).await;
        let first = answers.remove(0);
        for other in answers {
            if let Some((path, _)) = first.iter().find(|(path, answer)| other[*path] != **answer) {
                return Err(path.clone());
            }
        }
        Ok(first)
    })
    .await
}

/// Waits until every controller lists exactly those that run.
pub async fn registered(fleet: &Fleet) {
    let expected = fleet.addresses();
    until("the registry", async || {
        for client in fleet.alive() {
            let rows = show!(client, ControllerApiClient, show_controller, Controller);
            let listed: BTreeSet<_> = rows.into_iter().map(|row| row.key.unwrap().addr).collect();
            if listed != expected {
                return Err(format!("{listed:?} is not {expected:?}"));
            }
        }
        Ok(())
    })
    .await;
}
