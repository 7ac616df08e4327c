//! Deleting an object that others may refer to; see [`crate::guard`] for why
//! it goes in three steps.
//!
//! Dependents of an object go before it: a crash in the middle leaves the
//! object and some of what belonged to it, never something that refers to an
//! object that is gone. Deleting again then finishes. No operation is kept for
//! it in the store for that reason; the instances that go have their own.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_store::{Revision, Transaction};

use super::{Summary, summary};
use crate::controller::{Controller, Mode, Progress};
use crate::error::{Error, KEY_NOT_FOUND, Result};
use crate::guard::{Deletion, deletion_key};
use crate::keys::KeyText;
use crate::row::{Row, StoredObject};
use crate::tables::{HasTable, Tables};

/// Objects that go before an object goes.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    pub(super) app_insts: Vec<wire::AppInstKey>,
    pub(super) cluster_insts: Vec<wire::ClusterInstKey>,
    pub(super) apps: Vec<wire::AppKey>,
}

/// An object that is deleted only when nothing needs it.
#[async_trait]
pub(super) trait Removable: HasTable {
    /// Waits until everything that may refer to it is seen up to `revision`.
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()>;

    /// Fails if something needs the object; else gives what goes with it.
    fn users(&self, tables: &Tables) -> Result<Cascade>;

    /// Takes along what is kept only for the object.
    async fn finish(&self, _tx: &Transaction) -> Result<()> {
        Ok(())
    }
}

impl Controller {
    /// Deletes an object. Goes on when the caller goes away.
    pub(super) async fn remove<M: Removable>(
        self: &Arc<Self>,
        key: &M::Key,
        mode: Mode,
        progress: Progress,
    ) -> Result<Summary> {
        key.check()?;
        let text = key.text();
        match mode {
            Mode::DryRun => self.rehearse_removal::<M>(&text),
            Mode::Real => {
                let controller = Arc::clone(self);
                super::detached(async move { controller.remove_now::<M>(text, progress).await })
                    .await
            }
        }
    }

    fn rehearse_removal<M: Removable>(&self, key: &str) -> Result<Summary> {
        let held = self.tables.of::<M>().get(key).ok_or(Error::KeyNotFound)?;
        let cascade = held.value.0.users(&self.tables)?;
        let mut lines = vec![summary::<M>(Mode::DryRun, "delete", key)];
        lines.extend(cascade.app_insts.iter().map(|key| format!("AppInst {}", key.text())));
        lines.extend(cascade.cluster_insts.iter().map(|key| format!("ClusterInst {}", key.text())));
        lines.extend(cascade.apps.iter().map(|key| format!("App {}", key.text())));
        Ok(lines.join(" and "))
    }

    async fn remove_now<M: Removable>(
        self: &Arc<Self>,
        key: String,
        progress: Progress,
    ) -> Result<Summary> {
        let hold = self.hold::<M>(&key).await?;
        let result = self.remove_held::<M>(&key, &hold, &progress).await;
        if result.is_err() {
            self.let_go::<M>(&key, &hold.token).await;
        }
        result.map(|()| summary::<M>(Mode::Real, "delete", &key))
    }

    /// From now on nobody begins to refer to the object. Ends with
    /// [`Controller::let_go`], with the deletion, or with our lease.
    pub(super) async fn hold<M: StoredObject>(&self, key: &str) -> Result<Hold> {
        let lease = self.lease();
        let token = format!("{:032x}", rand::random::<u128>());
        let mine = &token;
        let done = self
            .transact(Mode::Real, |tx| async move {
                if tx.get::<Row<M>>(key).await?.is_none() {
                    return Err(Error::KeyNotFound);
                }
                if tx.get::<Deletion>(&deletion_key(M::KIND, key)).await?.is_some() {
                    return Err(Error::BeingDeleted { kind: M::TITLE, key: key.to_owned() });
                }
                let (kind, key, token) = (M::KIND.to_owned(), key.to_owned(), mine.clone());
                tx.put_with_lease(&Deletion { kind, key, token }, lease)?;
                Ok(())
            })
            .await?;
        Ok(Hold { token, revision: done.revision })
    }

    async fn remove_held<M: Removable>(
        self: &Arc<Self>,
        key: &str,
        hold: &Hold,
        progress: &Progress,
    ) -> Result<()> {
        self.tables.caught_up::<M>(hold.revision).await?;
        M::catch_up(&self.tables, hold.revision).await?;
        let held = self.tables.of::<M>().get(key).ok_or(Error::KeyNotFound)?;
        let cascade = held.value.0.users(&self.tables)?;
        self.cascade(cascade, progress).await?;
        let done = self
            .transact(Mode::Real, |tx| async move {
                still_held::<M>(&tx, key, &hold.token).await?;
                let object = tx.get::<Row<M>>(key).await?.ok_or(Error::KeyNotFound)?.0;
                object.finish(&tx).await?;
                tx.delete::<Row<M>>(key).await?;
                tx.delete::<Deletion>(&deletion_key(M::KIND, key)).await?;
                Ok::<_, Error>(())
            })
            .await?;
        self.settle::<M>(Mode::Real, done.revision).await
    }

    async fn cascade(self: &Arc<Self>, cascade: Cascade, progress: &Progress) -> Result<()> {
        for key in &cascade.app_insts {
            gone(self.instances.delete_app_inst(key, progress).await)?;
        }
        for key in &cascade.cluster_insts {
            gone(self.instances.delete_cluster_inst(key, progress).await)?;
        }
        for key in cascade.apps {
            let removal = self.remove_now::<wire::App>(key.text(), progress.clone());
            gone(Box::pin(removal).await.map(drop))?;
        }
        Ok(())
    }

    /// Ends a hold. If that fails it goes with the lease.
    pub(super) async fn let_go<M: StoredObject>(&self, key: &str, token: &str) {
        let done = self
            .transact(Mode::Real, |tx| async move {
                let place = deletion_key(M::KIND, key);
                if tx.get::<Deletion>(&place).await?.is_some_and(|mark| mark.token == token) {
                    tx.delete::<Deletion>(&place).await?;
                }
                Ok::<_, Error>(())
            })
            .await;
        if let Err(error) = done {
            tracing::warn!(kind = M::TITLE, key, %error, "a hold stays until the lease ends");
        }
    }
}

/// Nobody begins to refer to an object while one of these is on it.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) token: String,
    /// Everything that refers to the object was written before this.
    pub(super) revision: Revision,
}

/// Fails when the hold has ended with a lease of ours.
pub(super) async fn still_held<M: StoredObject>(
    tx: &Transaction,
    key: &str,
    token: &str,
) -> Result<()> {
    let mark = tx.get::<Deletion>(&deletion_key(M::KIND, key)).await?;
    if mark.is_some_and(|mark| mark.token == token) {
        return Ok(());
    }
    let text = format!("the hold on {} {key} was lost, try again", M::TITLE);
    Err(Error::refused(Code::Aborted, text))
}

/// Somebody else may have deleted it meanwhile.
fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.code() == Code::NotFound && error.to_string() == KEY_NOT_FOUND => {
            Ok(())
        }
        result => result,
    }
}
