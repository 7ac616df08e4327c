//! The plain objects: their rules, and how they are created, updated, deleted
//! and shown. Checks come in the order, and with the texts, of the contract.

mod app;
mod cloudlet;
mod cloudlet_info;
mod cluster;
mod developer;
mod flavor;
mod flavor_update;
mod location;
mod operator;
mod remove;
mod show;

pub(crate) use app::conceal;
pub use location::reconcile_locations;
pub use show::ShowStream;

use selvage_api::object::{Mask, Object, check_enums};
use selvage_store::Transaction;

use crate::controller::Mode;
use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::row::{Row, StoredObject};
use crate::state::ControllerState;
use crate::tables::HasTable;

/// Message of a call that is done: empty, or in a dry run what it would have
/// done.
pub type Summary = String;

fn summary<M: StoredObject>(mode: Mode, what: &str, key: &str) -> Summary {
    match mode {
        Mode::Real => String::new(),
        Mode::DryRun => format!("dry run: would {what} {} {key}", M::TITLE),
    }
}

/// Work that is done to its end whether or not the caller waits for it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "work on an object died");
        Err(Error::unavailable("the work was interrupted"))
    })
}

/// Writes an object that must not be there yet.
async fn insert<M: StoredObject>(tx: &Transaction, object: &M) -> Result<()> {
    if tx.get::<Row<M>>(&object.key_text()).await?.is_some() {
        return Err(Error::KeyExists);
    }
    check_size(object)?;
    tx.put(&Row(object.clone()))?;
    Ok(())
}

/// Largest size of one object. Apps carry manifests, and have a limit of their
/// own that names the field.
const LARGEST: usize = 64 * 1024;

fn check_size<M: StoredObject>(object: &M) -> Result<()> {
    let size = object.encoded_len();
    if size > LARGEST && M::NAME != "App" {
        return Err(Error::invalid(format!(
            "{} of {size} bytes is too large: at most {LARGEST} bytes are possible",
            M::NAME
        )));
    }
    Ok(())
}

/// Checks what every object must be, whatever its type.
fn check_object<M: StoredObject>(object: &M) -> Result<()> {
    object.object_key().check()?;
    check_enums(object)?;
    check_size(object)
}

impl ControllerState {
    /// Creates an object that refers to no other.
    async fn create_plain<M: HasTable>(&self, object: M, mode: Mode) -> Result<Summary> {
        let done = self
            .transact(mode, |tx| {
                let object = &object;
                async move { insert(&tx, object).await }
            })
            .await?;
        self.settle::<M>(mode, done.revision).await?;
        Ok(summary::<M>(mode, "create", &object.key_text()))
    }

    /// Merges the masked leaves of a request into the stored object. `check`
    /// sees the merged object and may refuse it; it runs again when somebody
    /// else wrote in between.
    async fn update_plain<M: HasTable + Object>(
        &self,
        request: &M,
        mode: Mode,
        check: impl Fn(&M) -> Result<()> + Sync,
    ) -> Result<Summary> {
        let mask = Mask::of(request)?;
        let key = request.key_text();
        let done = self
            .transact(mode, |tx| {
                let (mask, key, check) = (&mask, &key, &check);
                async move {
                    let (object, changes) = merge(&tx, key, mask, request).await?;
                    if changes > 0 {
                        check(&object)?;
                        same_key(&object, key)?;
                        tx.put(&Row(object))?;
                    }
                    Ok::<_, Error>(())
                }
            })
            .await?;
        self.settle::<M>(mode, done.revision).await?;
        Ok(summary::<M>(mode, "update", &key))
    }

    /// Returns once this process sees what was written.
    async fn settle<M: HasTable>(&self, mode: Mode, revision: u64) -> Result<()> {
        match mode {
            Mode::Real => Ok(self.tables.caught_up::<M>(revision).await?),
            Mode::DryRun => Ok(()),
        }
    }
}

/// The stored object with the masked leaves of the request, and how many of
/// them changed.
async fn merge<M: StoredObject + Object>(
    tx: &Transaction,
    key: &str,
    mask: &Mask,
    request: &M,
) -> Result<(M, usize)> {
    let mut object = tx.get::<Row<M>>(key).await?.ok_or(Error::KeyNotFound)?.0;
    let changes = mask.apply(&mut object, request)?;
    check_size(&object)?;
    Ok((object, changes))
}

/// A mask may name parts of the key, which then are those of the request: it
/// was found by them.
fn same_key<M: StoredObject>(object: &M, key: &str) -> Result<()> {
    if object.key_text() == key { Ok(()) } else { Err(Error::KeyNotFound) }
}
