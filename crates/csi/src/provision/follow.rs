//! Changes in the cluster that wake what serves it.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use selvage_kube::{
    Connection, Objects, Result,
    kube::api::{ApiResource, WatchParams},
};
use selvage_work::Trigger;
use tokio_util::sync::CancellationToken;

use crate::snapshotter;

/// Before a watch that ended is begun again.
const AGAIN: Duration = Duration::from_secs(1);
/// The same for a kind that the cluster does not have.
const UNKNOWN: Duration = Duration::from_secs(30);

/// Wakes with every change of a kind, until told to stop.
pub(crate) async fn run(
    cluster: Arc<Connection>,
    kind: ApiResource,
    triggers: Vec<Trigger>,
    stop: CancellationToken,
) {
    let watch = async {
        loop {
            let mut pause = AGAIN;
            if let Err(error) = follow(&cluster, &kind, &triggers).await {
                tracing::debug!(%error, kind = kind.kind, "watch");
                if snapshotter::is_unknown(&error) {
                    pause = UNKNOWN;
                }
            }
            tokio::time::sleep(pause).await;
        }
    };
    stop.run_until_cancelled(watch).await;
}

async fn follow(cluster: &Connection, kind: &ApiResource, triggers: &[Trigger]) -> Result<()> {
    let client = cluster.streams().await?;
    let objects = Objects::all(&client, kind);
    let events = objects.watch(&WatchParams::default(), "0").await?;
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        event?;
        triggers.iter().for_each(Trigger::wake);
    }
    Ok(())
}
