//! Registry of the controllers on one store: each has a row that hangs on its
//! lease. Whatever else a controller owns hangs on the same lease, so that when
//! it dies all of it goes, and when it only lost touch with the store for too
//! long it writes all of it again.

mod gather;
mod peers;
mod runs;

use std::sync::Arc;
use std::time::Duration;

use selvage_api::edgeproto as wire;
use selvage_store::Revision;
use tokio_util::sync::CancellationToken;

pub(crate) use gather::{AgentReport, Gathered, owner_of};
pub use gather::{LOCAL, UNREACHABLE};
pub use peers::{Encrypted, PeerConnector, Plaintext};
pub(crate) use runs::Runs;

use crate::error::{Error, Result};
use crate::row::{Row, StoredObject};
use crate::state::ControllerState;

/// Number of renewals in the time a lease lasts.
const RENEWALS: u32 = 4;

impl ControllerState {
    /// This controller's row.
    fn own_row(&self) -> Row<wire::Controller> {
        let addr = self.settings.external_address.clone();
        Row(wire::Controller { fields: Vec::new(), key: Some(wire::ControllerKey { addr }) })
    }

    pub(crate) async fn register(&self) -> Result<Revision> {
        Ok(self.tables.controllers.put_with_lease(self.own_row(), self.lease()).await?)
    }

    /// The run of controllers that this one belongs to, with all before it.
    pub(crate) async fn join_run(&self) -> Result<Runs> {
        let own = &self.settings.external_address;
        let controllers = self.tables.controllers.list();
        let others = controllers.iter().filter(|held| held.value.0.object_key().addr != *own);
        Runs::join(&self.store, others.count() == 0).await
    }

    /// Keeps the lease until told to stop, then gives it back.
    pub async fn keep_registered(self: Arc<Self>, stop: CancellationToken) {
        let period = self.settings.lease / RENEWALS;
        loop {
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = stop.cancelled() => break,
            }
            match self.renew().await {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "the lease is not renewed"),
            }
        }
        if let Err(error) = self.store.lease_revoke(self.lease()).await {
            tracing::debug!(%error, "the lease goes by itself");
        }
    }

    /// Renews the lease; if it is gone, takes a new one and writes everything
    /// again that hung on the old one.
    async fn renew(&self) -> Result<()> {
        match self.store.lease_keep_alive(self.lease()).await {
            Ok(_) => Ok(()),
            Err(selvage_store::Error::LeaseNotFound { .. }) => {
                tracing::warn!("the lease was lost, registering anew");
                let lease = self.store.lease_grant(self.settings.lease).await?;
                *self.lease.write() = lease.id;
                self.register().await?;
                self.restore_infos().await?;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A connection to another controller.
    pub(crate) async fn connect_peer(&self, address: &str) -> Result<tonic::transport::Channel> {
        self.peers
            .connect(address)
            .await
            .map_err(|source| Error::Connect { address: address.to_owned(), source })
    }

    pub(crate) fn peer_timeout(&self) -> Duration {
        self.settings.timeouts.peer
    }
}
