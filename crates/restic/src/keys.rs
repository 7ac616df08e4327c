//! Keys of a repository: passphrases that open it.

use jiff::Timestamp;

use crate::{
    Error, Id, Repository, Result, Secret,
    backend::{File, Kind},
    key::KeyFile,
    repository::{internal, seal_key},
};

/// A key of a repository, without what it hides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Name of its file.
    pub id: Id,
    /// Machine that it was made on.
    pub hostname: String,
    /// User that made it.
    pub username: String,
    /// Time at which it was made, if the file tells.
    pub created: Option<Timestamp>,
    /// True if the repository was opened with it.
    pub current: bool,
}

impl Repository {
    /// Returns all keys, the oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyInfo>> {
        let mut keys = Vec::new();
        for listed in self.backend().list(Kind::Key).await? {
            match self.key_info(listed.id).await {
                // Removed between the list and the look.
                Err(Error::MissingFile(_)) => {}
                key => keys.push(key?),
            }
        }
        keys.sort_by_key(|key| (key.created, key.id));
        Ok(keys)
    }

    async fn key_info(&self, id: Id) -> Result<KeyInfo> {
        let text = self.fetch_named(Kind::Key, id).await?;
        let file: KeyFile = serde_json::from_slice(&text)
            .map_err(|error| Error::damaged(File::Named(Kind::Key, id), error.to_string()))?;
        let (hostname, username, created) = file.into_origin();
        Ok(KeyInfo { id, hostname, username, created, current: id == self.key_id() })
    }

    /// Adds a key. Those that are there still open the repository.
    pub async fn add_key(&self, password: &Secret) -> Result<KeyInfo> {
        if password.is_empty() {
            let reason = "a repository needs one".to_owned();
            return Err(Error::Invalid { field: "new_encryption_key", reason });
        }
        let master = self.key().copy();
        let (file, _) = seal_key(master, password.clone(), self.options()).await?;
        let id = Id::of(&file);
        self.backend().write(File::Named(Kind::Key, id), file).await?;
        self.key_info(id).await
    }

    /// Removes a key by its id or the beginning of it. The one that the repository
    /// was opened with stays: without a key nobody could open it any more.
    pub async fn remove_key(&self, id: &str) -> Result<KeyInfo> {
        let mut found: Vec<KeyInfo> = self.keys().await?;
        found.retain(|key| !id.is_empty() && key.id.to_string().starts_with(id));
        let invalid = |reason: String| Err(Error::Invalid { field: "id", reason });
        let key = match <[KeyInfo; 1]>::try_from(found) {
            Ok([key]) => key,
            Err(found) if found.is_empty() => return invalid(format!("there is no key '{id}'")),
            Err(found) => return invalid(format!("{} keys begin with '{id}'", found.len())),
        };
        if key.current {
            let reason = "it is the key that the repository was opened with: open it with another";
            return invalid(reason.to_owned());
        }
        self.backend().remove(File::Named(Kind::Key, key.id)).await?;
        match self.backend().size(File::Named(Kind::Key, key.id)).await? {
            None => Ok(key),
            Some(_) => Err(internal("the key is still there")),
        }
    }
}
