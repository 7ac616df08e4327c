//! Changes in the cluster that wake the provisioner.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use selvage_kube::{Connection, Objects, Result, kube::api::WatchParams, resource};
use selvage_work::Trigger;
use tokio_util::sync::CancellationToken;

/// Kinds whose changes may be something to do.
pub(crate) const KINDS: [&str; 2] = ["PersistentVolumeClaim", "PersistentVolume"];

/// Before a watch that ended is begun again.
const AGAIN: Duration = Duration::from_secs(1);

/// Wakes with every change, until told to stop.
pub(crate) async fn run(
    cluster: Arc<Connection>,
    kind: &'static str,
    trigger: Trigger,
    stop: CancellationToken,
) {
    let watch = async {
        loop {
            if let Err(error) = follow(&cluster, kind, &trigger).await {
                tracing::debug!(%error, kind, "watch");
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    stop.run_until_cancelled(watch).await;
}

async fn follow(cluster: &Connection, kind: &str, trigger: &Trigger) -> Result<()> {
    let client = cluster.streams().await?;
    let objects = Objects::all(&client, &resource("", "v1", kind));
    let events = objects.watch(&WatchParams::default(), "0").await?;
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        event?;
        trigger.wake();
    }
    Ok(())
}
