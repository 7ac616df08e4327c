//! Developers.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_edge::registry_folder;
use selvage_store::{Revision, Transaction};

use super::remove::{Cascade, Removable};
use super::{Summary, check_object, insert, summary};
use crate::controller::{Controller, Mode, Progress};
use crate::error::{Error, Result};
use crate::guard::{claim, is_free_for, release};
use crate::keys::KeyText;
use crate::row::{Row, StoredObject, index};
use crate::tables::Tables;

/// Folders of images in registries, and names of pull secrets.
const FOLDERS: &str = "image-folder";
/// Developers whose folders are looked at in one transaction.
const BATCH: usize = 50;

#[async_trait]
impl Removable for wire::Developer {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        Ok(tables.caught_up::<wire::App>(revision).await?)
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        let apps = tables.find::<wire::App>(index::DEVELOPER, &self.key_text());
        let (own, others): (Vec<_>, Vec<_>) =
            apps.iter().partition(|app| app.value.0.del_opt() == wire::DeleteType::AutoDelete);
        if !others.is_empty() {
            return Err(Error::in_use("Developer in use by Application"));
        }
        super::app::going_with(tables, own.into_iter())
    }

    async fn finish(&self, tx: &Transaction) -> Result<()> {
        release(tx, FOLDERS, &folder_of(self.object_key()), &self.key_text()).await
    }
}

fn folder_of(key: &wire::DeveloperKey) -> String {
    registry_folder(&key.name)
}

/// Two developers whose names become the same folder would have each other's
/// images, and each other's credentials to pull them.
async fn claim_folder(tx: &Transaction, key: &wire::DeveloperKey) -> Result<bool> {
    let (folder, owner) = (folder_of(key), key.text());
    claim(tx, FOLDERS, &folder, &owner, &owner).await
}

fn folder_taken(key: &wire::DeveloperKey) -> Error {
    let text = format!(
        "Developer name gives the image folder {}, which another Developer has: choose a name \
         that differs in more than case, blanks and punctuation",
        folder_of(key)
    );
    Error::refused(Code::AlreadyExists, text)
}

/// Refuses an app whose images would lie in the folder of another developer. Stores
/// of before folders were claimed can have such developers.
pub(super) async fn check_folder(tx: &Transaction, key: &wire::DeveloperKey) -> Result<()> {
    if is_free_for(tx, FOLDERS, &folder_of(key), &key.text()).await? {
        return Ok(());
    }
    Err(folder_taken(key))
}

impl Controller {
    pub async fn create_developer(
        &self,
        mut developer: wire::Developer,
        mode: Mode,
    ) -> Result<Summary> {
        check_object(&developer)?;
        developer.fields.clear();
        let developer = &developer;
        let done = self
            .transact(mode, |tx| async move {
                insert(&tx, developer).await?;
                if claim_folder(&tx, developer.object_key()).await? {
                    return Ok(());
                }
                Err(folder_taken(developer.object_key()))
            })
            .await?;
        self.settle::<wire::Developer>(mode, done.revision).await?;
        Ok(summary::<wire::Developer>(mode, "create", &developer.key_text()))
    }

    /// Claims the folders of developers who were there before folders were claimed.
    /// Of two with the same folder the older one has it.
    pub(crate) async fn claim_folders(&self) -> Result<()> {
        let mut developers = self.tables.developers.list();
        developers.sort_by_key(|row| row.create_revision);
        for batch in developers.chunks(BATCH) {
            let done = self.transact(Mode::Real, |tx| async move {
                let mut without = Vec::new();
                for row in batch {
                    let key = row.value.0.object_key();
                    // Another controller may have deleted it meanwhile.
                    let is_there = tx.get::<Row<wire::Developer>>(&row.key).await?.is_some();
                    if is_there && !claim_folder(&tx, key).await? {
                        without.push(key.clone());
                    }
                }
                Ok::<_, Error>(without)
            });
            for key in done.await?.value {
                tracing::warn!(
                    developer = key.name,
                    folder = folder_of(&key),
                    "an older developer has the same image folder: no app of this one can be \
                     created or updated: make it anew under another name"
                );
            }
        }
        Ok(())
    }

    pub async fn update_developer(&self, request: wire::Developer, mode: Mode) -> Result<Summary> {
        self.update_plain(&request, mode, |_| Ok(())).await
    }

    pub async fn delete_developer(
        self: &Arc<Self>,
        request: &wire::Developer,
        mode: Mode,
    ) -> Result<Summary> {
        self.remove::<wire::Developer>(request.object_key(), mode, Progress::default()).await
    }
}
