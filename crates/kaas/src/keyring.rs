//! Keys of clusters: made when they are first needed, stored sealed, opened
//! once.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use selvage_store::{Revision, SharedStore, Table, clock::Clock};

use crate::{
    Error, Result,
    pki::{ClusterPki, Seal},
    record::{Cluster, Pki},
};

/// Keys of all clusters.
pub struct Keyring {
    table: Arc<Table<Pki>>,
    seal: Seal,
    clock: Arc<dyn Clock>,
    /// Opened keys, by uid of the cluster.
    opened: Mutex<HashMap<String, Arc<ClusterPki>>>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(…)")
    }
}

impl Keyring {
    pub async fn open(store: SharedStore, seal: Seal, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let (table, opened) = (Table::open(store).await?, Mutex::default());
        Ok(Arc::new(Self { table, seal, clock, opened }))
    }

    /// Keys of a cluster; made when they are first needed.
    pub async fn keys(&self, cluster: &Cluster) -> Result<Arc<ClusterPki>> {
        let uid = &cluster.uid;
        if let Some(known) = self.opened.lock().get(uid) {
            return Ok(Arc::clone(known));
        }
        let failed = |source| Error::Keys { cluster: cluster.name.clone(), source };
        if self.table.get(uid).is_none() {
            let now = self.clock.now() / 1000;
            let fresh = ClusterPki::generate(&cluster.name, now).map_err(failed)?;
            let sealed = fresh.seal(&self.seal, uid).map_err(failed)?;
            match self.table.create(Pki { uid: uid.clone(), sealed }).await {
                Ok(_) | Err(selvage_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Whoever was first counts.
        let stored = self.table.get(uid);
        let stored = stored.ok_or_else(|| Error::ClusterNotFound(cluster.name.clone()))?;
        let opened = ClusterPki::open(&self.seal, uid, &stored.value.sealed).map_err(failed)?;
        let opened = Arc::new(opened);
        self.opened.lock().insert(uid.clone(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Keys of a cluster as they are stored.
    pub(crate) async fn sealed(&self, cluster: &Cluster) -> Result<Vec<u8>> {
        self.keys(cluster).await?;
        let stored = self.table.get(&cluster.uid);
        let stored = stored.ok_or_else(|| Error::ClusterNotFound(cluster.name.clone()))?;
        Ok(stored.value.sealed.clone())
    }

    /// Seals the keys of one cluster for another.
    pub(crate) fn reseal(&self, from: &str, sealed: &[u8], to: &Cluster) -> Result<Vec<u8>> {
        let failed = |source| Error::Keys { cluster: to.name.clone(), source };
        let keys = ClusterPki::open(&self.seal, from, sealed).map_err(failed)?;
        keys.seal(&self.seal, &to.uid).map_err(failed)
    }

    /// Waits until the keys of that revision are seen.
    pub(crate) async fn wait_for(&self, revision: Revision) -> Result<()> {
        Ok(self.table.wait_for(revision).await?)
    }

    /// Forgets the keys of a cluster that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.opened.lock().remove(uid);
    }
}
