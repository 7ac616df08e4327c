//! A controller that serves on loopback, and the objects that it is filled
//! with.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use selvage_api::distributed_match_engine::{AppPort, LProto, Loc};
use selvage_api::edgeproto as wire;
use selvage_controller::row::{Row, StoredObject};
use selvage_controller::{Dependencies, EdgeController, Settings};
use selvage_kit::serve::{Limits, Server, Services, Socket, Trust};
use selvage_kit::telemetry::Metrics;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{SharedStore, transact};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Fits into a transaction.
const BATCH: usize = 100;

/// A controller on an embedded store, served to everybody.
pub struct House {
    pub part: EdgeController,
    pub address: SocketAddr,
    store: SharedStore,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

impl House {
    /// Opens store and controller, and serves. What looks after instances
    /// that nobody looks after is not started: it would look after those that
    /// were written past it.
    pub async fn open(file: &Path) -> Result<Self> {
        Self::open_at(file, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// As [`House::open`], at an address that others know.
    pub async fn open_at(file: &Path, address: SocketAddr) -> Result<Self> {
        let socket = Socket::tcp(address, None)?;
        let address = socket.address().context("a TCP socket has an address")?;
        let store: SharedStore = Embedded::open(file, Options::default()).await?;
        let settings = Settings { external_address: address.to_string(), ..Settings::default() };
        let part = EdgeController::open(store.clone(), settings, Dependencies::default()).await?;
        let mut services = Services::default();
        part.add_to(&mut services);
        let server = Server::new(services, Metrics::new("bench"), Limits::default()).await?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.run(socket, Trust::Everybody, stop.clone()));
        let run = part.controller().clone().run(stop.clone());
        let running = tokio::spawn(async move {
            if let Err(error) = run.await {
                tell(&error);
            }
        });
        Ok(Self { part, address, store, stop, running: vec![serving, running] })
    }

    /// Connections of their own for so many clients.
    pub async fn channels(&self, count: usize) -> Result<Vec<Channel>> {
        channels(self.address, count).await
    }

    /// Ends everything and closes the store.
    pub async fn close(self) -> Result<()> {
        self.part.controller().notify().close().await;
        self.stop.cancel();
        for task in self.running {
            task.await?;
        }
        drop(self.part);
        Ok(self.store.close().await?)
    }
}

/// Connections of their own for so many clients of a server.
pub async fn channels(address: SocketAddr, count: usize) -> Result<Vec<Channel>> {
    let url = format!("http://{address}");
    let connecting = (0..count).map(|_| async {
        anyhow::Ok(Channel::from_shared(url.clone())?.tcp_nodelay(true).connect().await?)
    });
    try_join_all(connecting).await
}

#[allow(clippy::print_stderr, reason = "the figures are worth nothing after it")]
fn tell(error: &selvage_controller::Error) {
    eprintln!("the controller ended: {error}");
}

/// Writes objects past the rules, many with each transaction.
pub async fn fill<M: StoredObject>(
    store: &SharedStore,
    objects: impl Iterator<Item = M>,
) -> Result<()> {
    let rows: Vec<Row<M>> = objects.map(Row).collect();
    let written = stream::iter(rows.chunks(BATCH)).map(|chunk| {
        transact(store, move |tx| async move {
            for row in chunk {
                tx.put(row)?;
            }
            Ok::<_, selvage_store::Error>(())
        })
    });
    written.buffer_unordered(8).try_for_each(|_| std::future::ready(Ok(()))).await?;
    Ok(())
}

pub fn flavor(name: impl Into<String>) -> wire::Flavor {
    wire::Flavor {
        key: Some(wire::FlavorKey { name: name.into() }),
        ram: 2048,
        vcpus: 2,
        disk: 2,
        ..Default::default()
    }
}

pub fn cloudlet(key: wire::CloudletKey) -> wire::Cloudlet {
    wire::Cloudlet {
        key: Some(key),
        location: Some(location()),
        ip_support: wire::IpSupport::Dynamic.into(),
        num_dynamic_ips: 254,
        ..Default::default()
    }
}

fn location() -> Loc {
    Loc { latitude: 31.0, longitude: -91.0, ..Default::default() }
}

pub fn app_key(name: impl Into<String>) -> wire::AppKey {
    wire::AppKey {
        developer_key: Some(wire::DeveloperKey { name: "Acme".into() }),
        name: name.into(),
        version: "1.0".into(),
    }
}

pub fn app(name: impl Into<String>, flavor: &wire::Flavor) -> wire::App {
    wire::App {
        key: Some(app_key(name)),
        image_type: wire::ImageType::Docker.into(),
        access_ports: "tcp:80".into(),
        default_flavor: flavor.key.clone(),
        ..Default::default()
    }
}

pub fn cluster_inst(cloudlet: wire::CloudletKey, flavor: &wire::Flavor) -> wire::ClusterInst {
    wire::ClusterInst {
        key: Some(wire::ClusterInstKey {
            cluster_key: Some(wire::ClusterKey { name: "small".into() }),
            cloudlet_key: Some(cloudlet),
            developer: "Acme".into(),
        }),
        flavor: flavor.key.clone(),
        num_masters: 1,
        num_nodes: 1,
        ..Default::default()
    }
}

/// An instance that is asked for.
pub fn app_inst(app: wire::AppKey, cluster: &wire::ClusterInst) -> wire::AppInst {
    wire::AppInst {
        key: Some(wire::AppInstKey { app_key: Some(app), cluster_inst_key: cluster.key.clone() }),
        ..Default::default()
    }
}

/// An instance as the controller keeps it once it runs.
pub fn ready_app_inst(number: usize, cloudlet: wire::CloudletKey) -> wire::AppInst {
    let flavor = flavor("x1.small");
    let name = format!("app-{number:06}");
    let uri = format!("{}.sim.selvage.internal", cloudlet.name);
    wire::AppInst {
        cloudlet_loc: Some(location()),
        mapped_ports: vec![AppPort {
            proto: LProto::Tcp.into(),
            internal_port: 80,
            public_port: 10_000,
            fqdn_prefix: format!("{name}-tcp."),
            ..Default::default()
        }],
        uri,
        liveness: wire::Liveness::Static.into(),
        flavor: flavor.key.clone(),
        state: wire::TrackedState::Ready.into(),
        ..app_inst(app_key(name), &cluster_inst(cloudlet, &flavor))
    }
}
