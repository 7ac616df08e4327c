//! Keys of clusters: made when they are first needed, stored sealed, opened
//! once.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use selvage_store::{Revision, SharedStore, Table, clock::Clock};
use zeroize::Zeroizing;

use crate::{
    Error, Result,
    pki::{self, ClusterPki, Seal},
    record::{Cluster, Pki},
};

/// Keys as they are stored, and as they are used.
type Opened = (Vec<u8>, Arc<ClusterPki>);

/// Keys of all clusters.
pub struct Keyring {
    table: Arc<Table<Pki>>,
    seal: Seal,
    clock: Arc<dyn Clock>,
    /// By uid of the cluster.
    opened: Mutex<HashMap<String, Opened>>,
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
        let failed = |source| Error::Keys { cluster: cluster.name.clone(), source };
        if self.table.get(uid).is_none() {
            let now = self.clock.now() / 1000;
            let fresh = ClusterPki::generate(&cluster.name, now).map_err(failed)?;
            let sealed = fresh.seal(&self.seal, uid).map_err(failed)?;
            match self.table.create(Pki { uid: uid.clone(), sealed }).await {
                Ok(_) => {}
                // Somebody else made them just now: the view has them in a moment.
                Err(selvage_store::Error::AlreadyExists { .. }) => {
                    self.wait_for(self.table.store().revision().await?).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Whoever was first counts.
        let stored = self.table.get(uid);
        let stored = stored.ok_or_else(|| Error::ClusterNotFound(cluster.name.clone()))?;
        let sealed = &stored.value.sealed;
        if let Some((from, known)) = self.opened.lock().get(uid)
            && from == sealed
        {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(ClusterPki::open(&self.seal, uid, sealed).map_err(failed)?);
        self.opened.lock().insert(uid.clone(), (sealed.clone(), Arc::clone(&opened)));
        Ok(opened)
    }

    /// Makes authorities that the present ones are to be replaced by.
    pub async fn prepare(&self, cluster: &Cluster) -> Result<()> {
        let now = self.clock.now() / 1000;
        self.change(cluster, |keys| keys.prepare(&cluster.name, now)).await
    }

    /// Forgets the authorities before that generation.
    pub(crate) async fn advance(&self, cluster: &Cluster, generation: u32) -> Result<()> {
        self.change(cluster, |keys| {
            keys.advance(generation);
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        cluster: &Cluster,
        change: impl Fn(&mut ClusterPki) -> Result<(), pki::Error>,
    ) -> Result<()> {
        self.keys(cluster).await?;
        let failed = |source| Error::Keys { cluster: cluster.name.clone(), source };
        let changed = self.table.update(&cluster.uid, |stored: &mut Pki| {
            let mut keys =
                ClusterPki::open(&self.seal, &stored.uid, &stored.sealed).map_err(failed)?;
            change(&mut keys).map_err(failed)?;
            stored.sealed = keys.seal(&self.seal, &stored.uid).map_err(failed)?;
            Ok::<_, Error>(())
        });
        changed.await.map(drop)
    }

    /// Keys of a cluster as they are stored.
    pub(crate) async fn sealed(&self, cluster: &Cluster) -> Result<Vec<u8>> {
        self.keys(cluster).await?;
        let stored = self.table.get(&cluster.uid);
        let stored = stored.ok_or_else(|| Error::ClusterNotFound(cluster.name.clone()))?;
        Ok(stored.value.sealed.clone())
    }

    /// Opens keys as they are stored, to be kept where another seal protects them.
    pub(crate) fn unseal(
        &self,
        cluster: &str,
        uid: &str,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>> {
        let failed = |source| Error::Keys { cluster: cluster.to_owned(), source };
        self.seal.open_sealed(uid, sealed).map_err(failed)
    }

    /// Seals keys that [`Self::unseal`] opened, here or at another controller.
    pub(crate) fn seal(
        &self,
        cluster: &str,
        uid: &str,
        plain: Zeroizing<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let failed = |source| Error::Keys { cluster: cluster.to_owned(), source };
        self.seal.seal(uid, plain).map_err(failed)
    }

    /// Seals the keys of one cluster for another, and tells the generation of their
    /// authorities. Those that were about to replace them are left out.
    pub(crate) fn reseal(&self, from: &str, sealed: &[u8], to: &Cluster) -> Result<(Vec<u8>, u32)> {
        let failed = |source| Error::Keys { cluster: to.name.clone(), source };
        let mut keys = ClusterPki::open(&self.seal, from, sealed).map_err(failed)?;
        keys.discard_next();
        Ok((keys.seal(&self.seal, &to.uid).map_err(failed)?, keys.generation()))
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
