//! Sessions: opening, recognising, listing and ending them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_api::selvage::identity as wire;
use selvage_kit::identity::{Identity, Kind, Peer};
use selvage_store::{Record, Stored, Table, Transaction, transact};
use zeroize::Zeroizing;

use crate::{
    Auth,
    clock::{self, since},
    error::{Error, Result},
    records::{self, Session, User, from_millis},
    secrets,
};

/// Fraction of the idle time that may pass before a use is written down.
const TOUCH_FRACTION: u32 = 20;
/// Longest time that a call waits for that.
const TOUCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Deletes in one transaction, well below what the store takes.
const BATCH: usize = 50;
/// Sessions younger than this are not swept: our views of sessions and of
/// users are fed separately, and one may know of a login before the other.
const SETTLED: Duration = Duration::from_secs(60);

/// Carrier of the token: header or cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Bearer,
    Cookie,
}

impl Carrier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bearer => "bearer",
            Self::Cookie => "cookie",
        }
    }
}

/// Reason for looking at a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Its owner does something.
    Use,
    /// Something that was begun goes on, or a program keeps itself fresh.
    Recheck,
}

pub(crate) type StoredSession = Arc<Stored<Session>>;

/// A session that is about to be opened.
pub(crate) struct NewSession {
    pub(crate) token: Zeroizing<String>,
    pub(crate) expires: Timestamp,
    pub(crate) id: String,
    record: Session,
}

impl Auth {
    pub(crate) fn new_session(&self, peer: Option<&Peer>, carrier: Carrier) -> NewSession {
        let token = secrets::new_session_token();
        let now = self.now();
        let expires = clock::after(now, self.inner.options.absolute);
        let id = records::new_id();
        let record = Session {
            digest: secrets::session_digest(&token).unwrap_or_default(),
            id: id.clone(),
            created_at: now.as_millisecond(),
            last_used_at: now.as_millisecond(),
            expires_at: expires.as_millisecond(),
            peer: peer.map_or_else(String::new, ToString::to_string),
            kind: carrier.name().into(),
            ..Session::default()
        };
        NewSession { token, expires, id, record }
    }

    /// Adds the session to a transaction that has read the user, so that a
    /// change of the user in between undoes it.
    pub(crate) async fn add_session(
        &self,
        tx: &Transaction,
        user: &User,
        new: &NewSession,
    ) -> Result<()> {
        let mut record = new.record.clone();
        record.username.clone_from(&user.username);
        record.generation.clone_from(&user.generation);
        tx.put(&record)?;
        let mut others = self.inner.sessions.by_index("user", &user.username);
        others.sort_by_key(|session| session.value.created_at);
        let room = self.inner.options.max_sessions_per_user.max(1) - 1;
        let surplus = others.len().saturating_sub(room).min(BATCH);
        for session in &others[..surplus] {
            delete_if_there::<Session>(tx, &session.key).await?;
        }
        Ok(())
    }

    /// The live session of a token, and its user.
    fn find_session(&self, token: &str) -> Option<(StoredSession, Arc<Stored<User>>)> {
        let session = self.inner.sessions.get(&secrets::session_digest(token)?)?;
        let user = self.live(&session.value)?;
        Some((session, user))
    }

    /// The user of a session, if it has not ended.
    fn live(&self, session: &Session) -> Option<Arc<Stored<User>>> {
        let now = self.now();
        let idle = since(now, from_millis(session.last_used_at));
        if now.as_millisecond() >= session.expires_at || idle >= self.inner.options.idle {
            return None;
        }
        let user = self.inner.users.get(&session.username)?;
        let holds = !user.value.disabled && user.value.generation == session.generation;
        holds.then_some(user)
    }

    pub(crate) fn is_live_token(&self, token: &str) -> bool {
        match secrets::api_digest(token) {
            Some(digest) => self.is_live_api_token(&digest),
            None => self.find_session(token).is_some(),
        }
    }

    /// Identity of the token's owner.
    pub(crate) async fn identify(&self, token: &str, look: Activity) -> Option<Identity> {
        let (session, user) = self.find_session(token)?;
        if look == Activity::Use {
            self.touch(&session).await;
        }
        Some(identity_of(&session.value, &user.value))
    }

    /// The same by the session's id.
    pub(crate) async fn identify_session(&self, id: &str, look: Activity) -> Option<Identity> {
        let session = self.session_by_id(id)?;
        let user = self.live(&session.value)?;
        if look == Activity::Use {
            self.touch(&session).await;
        }
        Some(identity_of(&session.value, &user.value))
    }

    /// When the session ends if nobody uses it until then.
    pub(crate) fn idle_end(&self, id: &str) -> Option<Timestamp> {
        let session = self.session_by_id(id)?;
        let idle_end =
            clock::after(from_millis(session.value.last_used_at), self.inner.options.idle);
        Some(idle_end.min(from_millis(session.value.expires_at)))
    }

    /// Writes the use down if the last one written is old enough. That it
    /// cannot be written is no reason to refuse the call.
    async fn touch(&self, session: &Stored<Session>) {
        let now = self.now();
        let step = self.inner.options.idle / TOUCH_FRACTION;
        if since(now, from_millis(session.value.last_used_at)) < step {
            return;
        }
        let now = now.as_millisecond();
        self.write_use(&self.inner.sessions, &session.key, |record: &mut Session| {
            record.last_used_at = record.last_used_at.max(now);
        })
        .await;
    }

    /// Writes down that a record was used.
    pub(crate) async fn write_use<R: Record>(
        &self,
        table: &Arc<Table<R>>,
        key: &str,
        change: impl Fn(&mut R) + Send + Sync,
    ) {
        // Of many calls at once one writes; the others go on.
        let Some(_touching) = Touching::begin(&self.inner.touching, key) else { return };
        // Fails when the record has been deleted meanwhile, rather than
        // bringing it back.
        let written = table.update(key, |record| {
            change(record);
            Ok::<(), selvage_store::Error>(())
        });
        match tokio::time::timeout(TOUCH_TIMEOUT, written).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, kind = R::KIND, "a use not written"),
            Err(_) => tracing::warn!(kind = R::KIND, "a use not written in time"),
        }
    }

    /// Ends the session of a token; whether there was one.
    pub(crate) async fn end_token(&self, token: &str) -> Result<Option<StoredSession>> {
        let Some(digest) = secrets::session_digest(token) else { return Ok(None) };
        let Some(session) = self.inner.sessions.get(&digest) else { return Ok(None) };
        self.delete_sessions(vec![digest]).await?;
        Ok(Some(session))
    }

    pub(crate) fn session_by_id(&self, id: &str) -> Option<StoredSession> {
        self.inner.sessions.by_index("id", id).pop()
    }

    /// The sessions of a user, or of all, that have not ended.
    pub(crate) fn live_sessions(&self, username: Option<&str>) -> Vec<StoredSession> {
        let all = match username {
            Some(name) => self.inner.sessions.by_index("user", name),
            None => self.inner.sessions.list(),
        };
        let mut live: Vec<_> =
            all.into_iter().filter(|session| self.live(&session.value).is_some()).collect();
        live.sort_by(|a, b| {
            let order = |s: &Session| (s.username.clone(), s.created_at, s.id.clone());
            order(&a.value).cmp(&order(&b.value))
        });
        live
    }

    /// Removes sessions that a change of their user has ended already. Should
    /// it fail, housekeeping does it.
    pub(crate) async fn discard_sessions(&self, ended: Vec<StoredSession>) {
        let keys = ended.iter().map(|session| session.key.clone()).collect();
        if let Err(error) = self.delete_sessions(keys).await {
            tracing::warn!(%error, "ended sessions not removed yet");
        }
    }

    pub(crate) async fn delete_sessions(&self, keys: Vec<String>) -> Result<()> {
        self.delete_all(&self.inner.sessions, keys).await
    }

    pub(crate) async fn delete_all<R: Record>(
        &self,
        table: &Arc<Table<R>>,
        keys: Vec<String>,
    ) -> Result<()> {
        for batch in keys.chunks(BATCH) {
            let done = transact(&self.inner.store, |tx| async move {
                for key in batch {
                    delete_if_there::<R>(&tx, key).await?;
                }
                Ok::<(), Error>(())
            });
            table.wait_for(done.await?.revision).await?;
        }
        Ok(())
    }

    pub(crate) async fn sweep_sessions(&self) -> Result<usize> {
        let now = self.now();
        let settled = |session: &Session| since(now, from_millis(session.created_at)) >= SETTLED;
        let ended: Vec<String> = self
            .inner
            .sessions
            .list()
            .iter()
            .filter(|session| settled(&session.value) && self.live(&session.value).is_none())
            .map(|session| session.key.clone())
            .collect();
        let count = ended.len();
        self.delete_sessions(ended).await?;
        Ok(count)
    }
}

fn identity_of(session: &Session, user: &User) -> Identity {
    Identity {
        name: user.username.clone(),
        kind: Kind::User {
            session: session.id.clone(),
            expires: from_millis(session.expires_at).as_second(),
        },
        grants: user.grants(),
    }
}

/// Marks a session whose use is being written.
struct Touching<'a> {
    all: &'a Mutex<HashSet<String>>,
    key: &'a str,
}

impl<'a> Touching<'a> {
    fn begin(all: &'a Mutex<HashSet<String>>, key: &'a str) -> Option<Self> {
        // Not `then_some`: a mark made in vain would be dropped under the lock
        // that its drop takes, and take away what another has marked.
        let first = all.lock().insert(key.to_owned());
        first.then(|| Self { all, key })
    }
}

impl Drop for Touching<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(self.key);
    }
}

/// Two who delete the same are both right.
async fn delete_if_there<R: Record>(tx: &Transaction, key: &str) -> Result<()> {
    if tx.get::<R>(key).await?.is_some() {
        tx.delete::<R>(key).await?;
    }
    Ok(())
}

impl Session {
    pub(crate) fn to_wire(&self, current: Option<&str>) -> wire::Session {
        let time = |millis| Some(clock::to_wire(from_millis(millis)));
        wire::Session {
            id: self.id.clone(),
            username: self.username.clone(),
            created_at: time(self.created_at),
            last_used_at: time(self.last_used_at),
            expires: time(self.expires_at),
            peer: self.peer.clone(),
            kind: self.kind.clone(),
            current: current == Some(self.id.as_str()),
        }
    }
}

impl NewSession {
    /// Lifetime of the browser's cookie.
    pub(crate) fn lifetime(&self) -> Duration {
        since(self.expires, from_millis(self.record.created_at))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_mark_that_is_there_is_not_made_twice_nor_waited_for() {
        let (report, marks) = mpsc::channel();
        // In a thread of its own: one that waited for itself would never end.
        std::thread::spawn(move || {
            let all = Mutex::default();
            let first = Touching::begin(&all, "a");
            let refused = Touching::begin(&all, "a").is_none();
            let other = Touching::begin(&all, "b").is_some();
            let kept = all.lock().contains("a");
            drop(first);
            report.send((refused, other, kept, Touching::begin(&all, "a").is_some())).unwrap();
        });
        let seen = marks.recv_timeout(Duration::from_secs(120)).unwrap();
        assert_eq!(seen, (true, true, true, true));
    }
}
