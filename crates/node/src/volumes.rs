//! The driver of volumes, for as long as this machine runs pods of a cluster.

use std::sync::Arc;

use selvage_components::PodVolumes;
use selvage_csi::{Driver, Settings};
use selvage_kube::{Connection, Credentials};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Runs a driver by what it needs, and another one when that has changed.
pub(crate) async fn run(
    mut needed: watch::Receiver<Option<Arc<PodVolumes>>>,
    stop: CancellationToken,
) {
    loop {
        let now = needed.borrow_and_update().clone();
        let over = stop.child_token();
        let driver = drive(now, over.clone());
        let changed = async {
            let changed = stop.run_until_cancelled(needed.changed()).await;
            over.cancel();
            matches!(changed, Some(Ok(())))
        };
        if !tokio::join!(driver, changed).1 {
            return;
        }
    }
}

async fn drive(needed: Option<Arc<PodVolumes>>, stop: CancellationToken) {
    let Some(needed) = needed else { return };
    match connection(&needed) {
        Ok(cluster) => {
            let settings = Settings {
                node: needed.node.clone(),
                kubelet: needed.kubelet.clone(),
                lvmd: needed.lvmd.clone(),
                tag: needed.tag.clone(),
                data: needed.data.clone(),
            };
            Driver::new(settings).run(Arc::new(cluster), stop).await;
        }
        Err(error) => tracing::error!(%error, "volumes of pods"),
    }
}

fn connection(needed: &PodVolumes) -> selvage_kube::Result<Connection> {
    Connection::from_credentials(&Credentials {
        server: needed.server.clone(),
        ca: needed.ca.clone(),
        certificate: needed.certificate.clone(),
        key: needed.key.clone().into(),
    })
}
