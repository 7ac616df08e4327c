//! Intent as the controller last said it, on disk: the crm knows what should
//! run when it starts while the controller is away.

use std::{borrow::Cow, sync::Arc, time::Duration};

use selvage_api::object::Object;
use selvage_cloudlet::{AgentCaches, mirror};
use selvage_notify::Cache;
use selvage_store::SharedStore;
use tokio_util::sync::CancellationToken;

use crate::Result;

/// The crm's store has what is installed too.
const ROOT: &str = "/mirror/";

/// Objects of the controller on disk.
pub(crate) struct Intent(Arc<mirror::Mirror>);

impl Intent {
    /// Puts what is on disk into the caches, and follows it from then on.
    pub(crate) async fn open(caches: &AgentCaches, store: SharedStore) -> Result<Self> {
        let mirror = mirror::Mirror::new(store, ROOT);
        attach(&mirror, &caches.flavors, "flavor").await?;
        attach(&mirror, &caches.apps, "app").await?;
        attach(&mirror, &caches.cloudlets, "cloudlet").await?;
        attach(&mirror, &caches.clusters, "cluster").await?;
        attach(&mirror, &caches.instances, "instance").await?;
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
