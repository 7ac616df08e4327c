//! Instances know where they are: where their cloudlet is.
//!
//! When a cloudlet moves its instances are written one by one, each in a
//! transaction of its own: there may be more of them than one transaction
//! takes. So that none is left behind by a crash, every controller also does
//! the same whenever it sees a cloudlet change, and once at start. Writing
//! what is there already is no write, so doing it twice costs nothing.

use std::sync::Arc;

use selvage_api::edgeproto as wire;
use selvage_store::table::Change;
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::row::index;
use crate::tables::Tables;

/// Puts every instance of a cloudlet where the cloudlet is.
pub(super) async fn follow_cloudlet(tables: &Tables, cloudlet: &str) -> Result<()> {
    for inst in tables.find::<wire::AppInst>(index::CLOUDLET, cloudlet) {
        let Some(held) = tables.cloudlets.get(cloudlet) else { return Ok(()) };
        if inst.value.0.cloudlet_loc == held.value.0.location {
            continue;
        }
        let moved = tables.app_insts.update(&inst.key, |row| {
            // Read anew at each attempt: the newest place is the right one.
            if let Some(held) = tables.cloudlets.get(cloudlet) {
                row.0.cloudlet_loc = held.value.0.location;
            }
            Ok::<_, selvage_store::Error>(())
        });
        match moved.await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(Error::Store(error)),
        }
    }
    Ok(())
}

/// Follows every cloudlet until told to stop.
pub async fn reconcile_locations(controller: Arc<Controller>, stop: CancellationToken) {
    let tables = &controller.tables;
    let mut changes = tables.cloudlets.subscribe();
    follow_all(tables).await;
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = stop.cancelled() => return,
        };
        match change {
            Some(Change::Put(held)) => follow_logged(tables, &held.key).await,
            Some(Change::Deleted(_)) => {}
            Some(Change::Reset) => follow_all(tables).await,
            None => return,
        }
    }
}

async fn follow_all(tables: &Tables) {
    for held in tables.cloudlets.list() {
        follow_logged(tables, &held.key).await;
    }
}

async fn follow_logged(tables: &Tables, cloudlet: &str) {
    if let Err(error) = follow_cloudlet(tables, cloudlet).await {
        tracing::warn!(cloudlet, %error, "instances do not know yet that their cloudlet moved");
    }
}
