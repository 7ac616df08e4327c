//! Users: making, changing and removing them.

use selvage_kit::identity::Grant;
use selvage_store::{Transaction, transact};
use zeroize::Zeroizing;

use crate::{
    Auth, GeneratedPassword, audit,
    caller::Caller,
    error::{Error, Result},
    names,
    records::{PASSWORD_SOURCE, Session, User, new_id},
};

/// Input of a change of a password.
pub(crate) struct PasswordChange {
    pub(crate) username: String,
    pub(crate) current: Zeroizing<String>,
    pub(crate) new: Zeroizing<String>,
}

impl Auth {
    pub(crate) fn new_user(&self, username: &str, source: &str) -> User {
        let now = self.now().as_millisecond();
        User {
            username: username.into(),
            source: source.into(),
            created_at: now,
            password_changed_at: now,
            generation: new_id(),
            ..User::default()
        }
    }

    /// Adds a user; gives the password if it had to be made.
    pub(crate) async fn add_user(
        &self,
        username: &str,
        grants: &[Grant],
        disabled: bool,
        password: Zeroizing<String>,
    ) -> Result<(User, Option<GeneratedPassword>)> {
        names::check_username("user.username", username)?;
        let (password, generated) = if password.is_empty() {
            let made = GeneratedPassword::generate();
            (Zeroizing::new(made.expose().to_owned()), Some(made))
        } else {
            names::check_password("password", &password)?;
            (password, None)
        };
        if self.inner.users.get(username).is_some() {
            return Err(Error::UserExists(username.into()));
        }
        let mut user = self.new_user(username, PASSWORD_SOURCE);
        user.set_grants(grants);
        user.disabled = disabled;
        user.password_hash = self.inner.hasher.hash(password).await?;
        match self.inner.users.create(user.clone()).await {
            Ok(_) => Ok((user, generated)),
            Err(selvage_store::Error::AlreadyExists { .. }) => {
                Err(Error::UserExists(username.into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sets what a user may do. Ends the user's sessions.
    pub(crate) async fn update_user(
        &self,
        username: &str,
        grants: &[Grant],
        disabled: bool,
    ) -> Result<User> {
        let ended = self.inner.sessions.by_index("user", username);
        let changed = transact(&self.inner.store, |tx| async move {
            let mut user = existing_user(&tx, username).await?;
            let was_administrator = user.is_administrator();
            user.set_grants(grants);
            user.disabled = disabled;
            user.renew_generation();
            if was_administrator && !user.is_administrator() {
                self.require_another_administrator(&tx, username).await?;
            }
            tx.put(&user)?;
            Ok::<User, Error>(user)
        });
        let changed = changed.await?;
        self.inner.users.wait_for(changed.revision).await?;
        self.discard_sessions(ended).await;
        Ok(changed.value)
    }

    pub(crate) async fn remove_user(&self, username: &str) -> Result<()> {
        let ended = self.inner.sessions.by_index("user", username);
        let removed = transact(&self.inner.store, |tx| async move {
            if existing_user(&tx, username).await?.is_administrator() {
                self.require_another_administrator(&tx, username).await?;
            }
            tx.delete::<User>(username).await?;
            Ok::<(), Error>(())
        });
        self.inner.users.wait_for(removed.await?.revision).await?;
        self.discard_sessions(ended).await;
        // They count no more whether they are removed or not.
        let keys = self.list_credentials(Some(username)).iter().map(|it| it.key.clone()).collect();
        if let Err(error) = self.delete_credentials(keys).await {
            tracing::warn!(%error, "tokens of a removed user not removed yet");
        }
        Ok(())
    }

    /// Finds another administrator within the transaction: if that one is removed
    /// at this moment, the transaction is done again.
    async fn require_another_administrator(&self, tx: &Transaction, but: &str) -> Result<()> {
        for user in self.inner.users.list() {
            if user.key == but || !user.value.is_administrator() {
                continue;
            }
            if tx.get::<User>(&user.key).await?.is_some_and(|user| user.is_administrator()) {
                return Ok(());
            }
        }
        Err(Error::LastAdministrator(but.into()))
    }

    /// Sets a password; gives the number of sessions that ended by it.
    pub(crate) async fn set_password(
        &self,
        caller: &Caller,
        change: PasswordChange,
    ) -> Result<u32> {
        let own = caller.username() == Some(change.username.as_str());
        if !own {
            caller.require_administrator("set another user's password")?;
        }
        names::check_password("new_password", &change.new)?;
        let user = self
            .fresh_user(&change.username)
            .await?
            .ok_or_else(|| Error::UserNotFound(change.username.clone()))?;
        if user.source != PASSWORD_SOURCE {
            return Err(Error::NoPasswordHere { username: user.username, provider: user.source });
        }
        if own {
            self.check_current_password(caller, &user, change.current).await?;
        }
        let hash = self.inner.hasher.hash(change.new).await?;
        // A change of one's own password goes by the hash read a moment ago.
        let as_of = own.then_some(user.generation.as_str());
        self.replace_password(&user.username, &hash, as_of, caller.session()).await
    }

    /// A stolen session must not be a way to guess the password, so this
    /// counts like a login.
    async fn check_current_password(
        &self,
        caller: &Caller,
        user: &User,
        current: Zeroizing<String>,
    ) -> Result<()> {
        if current.is_empty() {
            return Err(Error::invalid("current_password", "needed to change one's own password"));
        }
        let attempt = self.inner.limiter.begin(Some(&user.username), caller.peer.as_ref()).await?;
        if self.inner.hasher.verify(current, Some(user.password_hash.clone())).await? {
            attempt.succeed();
            return Ok(());
        }
        audit::refused("user.password", caller, &user.username, "wrong_credentials");
        Err(Error::Denied("current_password: wrong".into()))
    }

    /// Writes a new password and ends all sessions but the one to keep; only
    /// as of the given generation, if one is given.
    async fn replace_password(
        &self,
        username: &str,
        hash: &String,
        as_of: Option<&str>,
        keep: Option<&str>,
    ) -> Result<u32> {
        let (kept, ended): (Vec<_>, Vec<_>) = self
            .live_sessions(Some(username))
            .into_iter()
            .partition(|session| keep == Some(session.value.id.as_str()));
        let now = self.now().as_millisecond();
        let kept = kept.first();
        let changed = transact(&self.inner.store, |tx| async move {
            let mut user = existing_user(&tx, username).await?;
            if as_of.is_some_and(|generation| user.generation != generation) {
                return Err(Error::SessionEnded);
            }
            user.password_hash.clone_from(hash);
            user.password_changed_at = now;
            user.renew_generation();
            tx.put(&user)?;
            if let Some(kept) = kept
                && let Some(mut session) = tx.get::<Session>(&kept.key).await?
            {
                session.generation.clone_from(&user.generation);
                tx.put(&session)?;
            }
            Ok::<(), Error>(())
        });
        let revision = changed.await?.revision;
        self.inner.users.wait_for(revision).await?;
        if kept.is_some() {
            self.inner.sessions.wait_for(revision).await?;
        }
        let count = u32::try_from(ended.len()).unwrap_or(u32::MAX);
        self.discard_sessions(ended).await;
        Ok(count)
    }
}

async fn existing_user(tx: &Transaction, username: &str) -> Result<User> {
    tx.get::<User>(username).await?.ok_or_else(|| Error::UserNotFound(username.into()))
}
