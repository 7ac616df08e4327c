//! Logging in with a password.

use selvage_kit::identity::Peer;
use selvage_store::{Revision, transact};
use zeroize::Zeroizing;

use crate::{
    Auth, audit,
    error::{Error, Result},
    names,
    records::User,
    sessions::{Carrier, NewSession},
};

/// A user who is being changed during the login is looked at anew, so often.
const TRIES: u32 = 4;

impl Auth {
    /// Opens a session for whoever knows the password.
    pub(crate) async fn login(
        &self,
        username: &str,
        password: Zeroizing<String>,
        peer: Option<&Peer>,
        carrier: Carrier,
    ) -> Result<NewSession> {
        let outcome = self.try_login(username, password, peer, carrier).await;
        match &outcome {
            Ok(session) => audit::login(username, peer, &session.id, "password"),
            Err(error) => audit::login_refused(username, peer, error.class(), "password"),
        }
        outcome
    }

    async fn try_login(
        &self,
        username: &str,
        password: Zeroizing<String>,
        peer: Option<&Peer>,
        carrier: Carrier,
    ) -> Result<NewSession> {
        if !self.inner.options.password_login {
            return Err(Error::PasswordLoginOff(self.inner.oidc.labels()));
        }
        for (field, text) in [("username", username), ("password", &password)] {
            if text.is_empty() {
                return Err(Error::invalid(field, "must not be empty"));
            }
        }
        let known_form = names::is_username(username).then_some(username);
        let attempt = self.inner.limiter.begin(known_form, peer).await?;
        match self.check_and_open(known_form, password, peer, carrier).await {
            Ok(session) => {
                attempt.succeed();
                Ok(session)
            }
            Err(Error::WrongPassword) => Err(Error::WrongPassword),
            Err(other) => {
                attempt.forgive();
                Err(other)
            }
        }
    }

    async fn check_and_open(
        &self,
        username: Option<&str>,
        password: Zeroizing<String>,
        peer: Option<&Peer>,
        carrier: Carrier,
    ) -> Result<NewSession> {
        let session = self.new_session(peer, carrier);
        for _ in 0..TRIES {
            let user = match username {
                Some(name) => self.fresh_user(name).await?,
                None => None,
            };
            let hash = user
                .as_ref()
                .filter(|user| !user.disabled && !user.password_hash.is_empty())
                .map(|user| user.password_hash.clone());
            if !self.inner.hasher.verify(password.clone(), hash).await? {
                return Err(Error::WrongPassword);
            }
            let Some(user) = user else { return Err(Error::WrongPassword) };
            let rehashed = if self.inner.hasher.is_outdated(&user.password_hash) {
                Some(self.inner.hasher.hash(password.clone()).await?)
            } else {
                None
            };
            if self.open_if_unchanged(&user, rehashed.as_ref(), &session).await? {
                return Ok(session);
            }
        }
        Err(Error::Contended)
    }

    /// Opens the session unless the user changed since the password was
    /// looked at.
    async fn open_if_unchanged(
        &self,
        checked: &User,
        rehashed: Option<&String>,
        session: &NewSession,
    ) -> Result<bool> {
        let done = transact(&self.inner.store, |tx| async move {
            if tx.get::<User>(&checked.username).await?.as_ref() != Some(checked) {
                return Ok(None);
            }
            let mut user = checked.clone();
            if let Some(hash) = rehashed {
                user.password_hash.clone_from(hash);
                tx.put(&user)?;
            }
            self.add_session(&tx, &user, session).await?;
            Ok::<_, Error>(Some(user))
        });
        let done = done.await?;
        if let Some(user) = &done.value {
            self.show_login(done.revision, user).await?;
        }
        Ok(done.value.is_some())
    }

    /// Waits until a login is seen here, so that its token is good the
    /// moment that it is given out.
    pub(crate) async fn show_login(&self, revision: Revision, user: &User) -> Result<()> {
        self.inner.sessions.wait_for(revision).await?;
        let seen = self.inner.users.get(&user.username);
        if seen.is_none_or(|seen| seen.value != *user) {
            self.inner.users.wait_for(revision).await?;
        }
        Ok(())
    }
}
