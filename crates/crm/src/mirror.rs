//! What the controller last said, on disk: the crm knows what should run when
//! it starts while the controller is away.

use std::{borrow::Cow, sync::Arc, time::Duration};

use selvage_api::object::Object;
use selvage_cloudlet::{Desk, mirror};
use selvage_notify::Cache;
use selvage_store::SharedStore;
use tokio_util::sync::CancellationToken;

use crate::Result;

/// The crm's store has its books too.
const ROOT: &str = "/mirror/";

/// The desk's way to the disk.
pub(crate) struct Mirror(Arc<mirror::Mirror>);

impl Mirror {
    /// Puts what is on disk on the desk, and follows it from then on.
    pub(crate) async fn open(desk: &Desk, store: SharedStore) -> Result<Self> {
        let mirror = mirror::Mirror::new(store, ROOT);
        attach(&mirror, &desk.flavors, "flavor").await?;
        attach(&mirror, &desk.apps, "app").await?;
        attach(&mirror, &desk.cloudlets, "cloudlet").await?;
        attach(&mirror, &desk.clusters, "cluster").await?;
        attach(&mirror, &desk.instances, "instance").await?;
        Ok(Self(mirror))
    }

    /// Writes what changes, at once, until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.0.run(Duration::ZERO, &stop, || self.0.write()).await;
    }
}

async fn attach<M: Object + PartialEq + Send + Sync + 'static>(
    mirror: &Arc<mirror::Mirror>,
    cache: &Cache<M>,
    folder: &'static str,
) -> Result<()> {
    for object in mirror.read(folder).await? {
        cache.put(object)?;
    }
    mirror.follow(cache, folder, |object| Cow::Borrowed(object));
    Ok(())
}
