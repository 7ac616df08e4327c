//! Through the listener of a daemon: certificates on both sides, and a unix
//! socket.

use std::{net::SocketAddr, path::Path, sync::Arc};

use selvage_kit::{
    identity::{Authenticator, Credentials, Identity, Machine, Refused},
    pki::{Ca, KeyRequest, RotatingIdentity, ServerIdentity, client_config, server_config},
    serve::{Limits, Server, Services, Socket, Trust},
    telemetry::Metrics,
};
use selvage_notify::{ClientOptions, NotifyServer, ServerOptions};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::*;

/// Nobody has a session here: certificates are all there is.
struct NoSessions;

#[async_trait::async_trait]
impl Authenticator for NoSessions {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        Err(Refused { code: selvage_api::Code::Unauthenticated, message: "no sessions".into() })
    }
}

async fn listen(server: &NotifyServer, socket: Socket, trust: Trust) -> DropGuard {
    let mut services = Services::default();
    services.add(server.service());
    let listener = Server::new(services, Metrics::new("test"), Limits::default()).await.unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(listener.run(socket, trust, stop.clone()));
    stop.drop_guard()
}

fn options(ca: &Ca, directory: &Path, machine: &str, address: SocketAddr) -> ClientOptions {
    let request = KeyRequest::new().unwrap();
    let machine = Machine::parse(machine).unwrap();
    let signed = ca.sign_machine(request.csr_pem(), &machine).unwrap();
    let path = directory.join(format!("{}.pem", machine.to_string().replace('/', "-")));
    let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem).unwrap();
    let config = client_config(ca.pem(), Some(&identity)).unwrap();
    ClientOptions { tls: Some(Arc::new(config)), ..client_options(&[address], false) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_says_for_which_cloudlet_a_crm_speaks() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Arc::new(Ca::open_or_create(&directory.path().join("ca")).unwrap());
    let identity = ServerIdentity::issued(Arc::clone(&ca), vec!["127.0.0.1".into()]).unwrap();
    let tls = server_config(&identity, &ca).unwrap();
    let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), Some(tls)).unwrap();
    let address = socket.address().unwrap();
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(ServerOptions::default());
    let _running = listen(&server, socket, Trust::Credentials(Arc::new(NoSessions))).await;

    let mut own = crm(options(&ca, directory.path(), "cloudlet/tmus/cloud0", address));
    own.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    own.link.start();
    own.link.in_sync().await;
    assert_eq!(own.counts(), [3, 2, 2, 1, 1], "filtered by its certificate");
    assert_eq!(server.peers()[0].name, "cloudlet/tmus/cloud0");

    let mut forged = crm(options(&ca, directory.path(), "cloudlet/tmus/cloud1", address));
    forged.cloudlet_infos.put(cloudlet_info("cloud0")).unwrap();
    forged.link.start();
    until("refused", || {
        let error = forged.link.client.status().last_error;
        error.is_some_and(|error| error.contains("may not send CloudletInfo"))
    })
    .await;
    forged.link.stop().await;
    assert_eq!(controller.cloudlet_infos.list()[0].notify_id, server.peers()[0].id);

    let mut stranger = dme(options(&ca, directory.path(), "node/rack1", address));
    stranger.link.start();
    until("refused", || stranger.link.client.status().stats.negotiate_errors > 0).await;
    assert_eq!(stranger.link.client.status().stats.connects, 0);
    stranger.link.stop().await;

    let mut engine = dme(options(&ca, directory.path(), "dme/west", address));
    engine.link.start();
    engine.link.in_sync().await;
    assert_eq!((engine.apps.len(), engine.instances.len()), (5, 4));
    engine.link.stop().await;
    own.link.stop().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify.sock");
    let controller = Controller::new();
    controller.fill();
    let server = controller.server(ServerOptions::default());
    let _running = listen(&server, Socket::unix(&path).await.unwrap(), Trust::Socket).await;
    let addresses = vec![format!("unix:{}", path.display())];
    let mut dme = dme(ClientOptions { addresses, ..client_options(&[], false) });
    dme.link.start();
    dme.link.in_sync().await;
    assert_eq!((dme.apps.len(), dme.instances.len()), (5, 4));
    dme.link.stop().await;
    server.close().await;
}
