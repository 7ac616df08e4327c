//! Which runs of controllers on this store there have been, so that an agent
//! that was told revisions in one of them can go on in another.
//!
//! A run begins when a controller starts and no other is there; those that
//! join it belong to it. Each has a row, and the revision of the row is where
//! the run begins. Revisions told in a run are of the store's history up to
//! where the next run begins: in a store that was put back from a copy, that
//! is where the copy ended, and what was told after it is not believed.

use std::sync::Arc;
use std::time::Duration;

use selvage_notify::Lineage;
use selvage_store::{Record, SharedStore, Stored, Table};

use crate::error::Result;

/// Rows that hang on a lease are not carried to another store, where they
/// would mean nothing. Longer than anything lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// An agent that was away for longer gets everything.
const KEPT: usize = 64;

/// One run.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Run {
    #[prost(uint64, tag = "1")]
    epoch: u64,
}

impl Record for Run {
    const KIND: &'static str = "notify-run";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        format!("{:016x}", self.epoch)
    }
}

/// All runs that are remembered.
pub(crate) struct Runs(Arc<Table<Run>>);

impl Runs {
    /// Begins a run, unless a controller is there whose run it is.
    pub(crate) async fn join(store: &SharedStore, alone: bool) -> Result<Self> {
        let runs = Self(Table::open(Arc::clone(store)).await?);
        if alone || runs.0.is_empty() {
            let lease = store.lease_grant(FOR_EVER).await?;
            let run = Run { epoch: rand::random::<u64>().max(1) };
            runs.0.put_with_lease(run, lease.id).await?;
        }
        let rows = runs.rows();
        for row in rows.iter().take(rows.len().saturating_sub(KEPT)) {
            if let Some(lease) = row.lease {
                // The row goes with it. Another may have been quicker.
                match store.lease_revoke(lease).await {
                    Ok(()) | Err(selvage_store::Error::LeaseNotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(runs)
    }

    /// In the order of their beginnings.
    fn rows(&self) -> Vec<Arc<Stored<Run>>> {
        let mut rows = self.0.list();
        rows.sort_by_key(|row| row.create_revision);
        rows
    }
}

impl Lineage for Runs {
    fn epoch(&self) -> u64 {
        self.rows().last().map_or(0, |row| row.value.epoch)
    }

    fn end(&self, epoch: u64) -> Option<i64> {
        let rows = self.rows();
        let at = rows.iter().position(|row| row.value.epoch == epoch)?;
        Some(
            rows.get(at + 1)
                .map_or(i64::MAX, |next| i64::try_from(next.create_revision).unwrap_or(i64::MAX)),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_store::embedded::{Embedded, Options};

    use super::*;

    #[tokio::test]
    async fn revisions_of_a_run_hold_until_the_next_one_begins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let store: SharedStore = Embedded::open(&file, Options::default()).await.unwrap();
        let first = Runs::join(&store, true).await.unwrap();
        let one = first.epoch();
        assert_ne!(one, 0);
        assert_eq!((first.end(one), first.end(one ^ 1)), (Some(i64::MAX), None));

        let joined = Runs::join(&store, false).await.unwrap();
        assert_eq!(joined.epoch(), one, "somebody is there");

        let second = Runs::join(&store, true).await.unwrap();
        let two = second.epoch();
        assert_ne!(one, two);
        let begun = i64::try_from(store.revision().await.unwrap()).unwrap();
        assert_eq!((second.end(one), second.end(two)), (Some(begun), Some(i64::MAX)));
        first.0.wait_for(store.revision().await.unwrap()).await.unwrap();
        assert_eq!(first.epoch(), two, "those who are there learn of it");

        for _ in 0..KEPT {
            Runs::join(&store, true).await.unwrap();
        }
        let last = Runs::join(&store, false).await.unwrap();
        assert_eq!(last.rows().len(), KEPT);
        assert_eq!(last.end(one), None, "forgotten");
        store.close().await.unwrap();
    }
}
