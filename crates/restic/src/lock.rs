//! Locks as restic has them: a file that says who works here, renewed now and
//! then, looked for again after it was written.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Error, Id, Job, Repository, Result,
    backend::{File, Kind},
    format::LockFile,
    repository::internal,
};

/// A lock that was not renewed for so long belongs to nobody.
pub const STALE_AFTER: Duration = Duration::from_secs(30 * 60);

/// Interval at which a lock is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Timeout of removing a lock: whoever cancels a job while the object
/// store is away does not want to wait for it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks of ours that could not be removed, because a key had ended or a
/// store was away. Nobody works under them any more.
static ABANDONED: Mutex<BTreeSet<Id>> = Mutex::new(BTreeSet::new());

/// Held while one works with a repository.
#[derive(Debug)]
pub(crate) struct Lock {
    repository: Repository,
    exclusive: bool,
    current: Arc<Mutex<Id>>,
    /// True if somebody left a lock behind: that work may be half done.
    pub(crate) found_remains: bool,
    renewing: Option<AbortOnDropHandle<()>>,
    released: bool,
}

/// Locks that others hold.
struct OtherLocks {
    conflict: Option<LockFile>,
    stale: Vec<Id>,
}

impl Lock {
    /// Takes a lock, and waits a while for others to go.
    ///
    /// In a task of its own: if the job is cancelled while a lock is being
    /// written, it is still removed.
    pub(crate) async fn take(repository: &Repository, exclusive: bool, job: &Job) -> Result<Self> {
        let (repository, token) = (repository.clone(), job.token().clone());
        let taking = tokio::spawn(async move {
            let deadline = tokio::time::Instant::now() + repository.options().lock_wait;
            loop {
                match Self::try_take(&repository, exclusive).await {
                    Err(Error::Locked { .. }) if tokio::time::Instant::now() < deadline => {}
                    result => return result,
                }
                let pause = Duration::from_millis(200 + rand::random_range(0..300));
                if token.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return Err(Error::Cancelled);
                }
            }
        });
        job.or_cancelled(async { taking.await.map_err(internal)? }).await
    }

    async fn try_take(repository: &Repository, exclusive: bool) -> Result<Self> {
        let others = look(repository, exclusive, None).await?;
        if let Some(lock) = others.conflict {
            return Err(locked(lock));
        }
        let found_remains = !others.stale.is_empty();
        for id in others.stale {
            repository.backend().remove(File::Named(Kind::Lock, id)).await?;
        }
        let id = write(repository, exclusive).await?;
        let mut lock = Self {
            repository: repository.clone(),
            exclusive,
            current: Arc::new(Mutex::new(id)),
            found_remains,
            renewing: None,
            released: false,
        };
        // Two may have written at the same moment: at least one sees it now.
        match look(repository, exclusive, Some(id)).await {
            Ok(OtherLocks { conflict: None, .. }) => {
                lock.renewing = Some(lock.renew());
                Ok(lock)
            }
            Ok(OtherLocks { conflict: Some(other), .. }) => {
                lock.release().await?;
                Err(locked(other))
            }
            Err(error) => {
                let _ = lock.release().await;
                Err(error)
            }
        }
    }

    fn renew(&self) -> AbortOnDropHandle<()> {
        let (repository, exclusive) = (self.repository.clone(), self.exclusive);
        let current = Arc::clone(&self.current);
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW_INTERVAL).await;
                match write(&repository, exclusive).await {
                    Ok(id) => {
                        let old = std::mem::replace(&mut *current.lock(), id);
                        let _ = repository.backend().remove(File::Named(Kind::Lock, old)).await;
                    }
                    Err(error) => tracing::warn!(%error, "cannot renew the lock"),
                }
            }
        }))
    }

    /// Checks that it still holds: somebody may have taken it for stale while we
    /// slept.
    pub(crate) async fn check(&self) -> Result<()> {
        let id = *self.current.lock();
        match self.repository.backend().size(File::Named(Kind::Lock, id)).await? {
            Some(_) => Ok(()),
            // It may have been renewed in between.
            None if *self.current.lock() != id => Ok(()),
            None => Err(Error::LockLost),
        }
    }

    /// Lets go.
    pub(crate) async fn release(mut self) -> Result<()> {
        self.released = true;
        self.renewing = None;
        let id = *self.current.lock();
        remove(&self.repository, id).await
    }

    /// Ends a piece of work: lets go, and passes the outcome on.
    pub(crate) async fn finish<T>(self, outcome: Result<T>) -> Result<T> {
        let released = self.release().await;
        let value = outcome?;
        // The work is done and lasting; a lock that is left behind is stale
        // as soon as this process ends.
        if let Err(error) = released {
            tracing::warn!(%error, "cannot remove the lock");
        }
        Ok(value)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // The work was dropped in the middle; nobody waits for this.
        let (repository, id) = (self.repository.clone(), *self.current.lock());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = remove(&repository, id).await;
            });
        }
    }
}

async fn remove(repository: &Repository, id: Id) -> Result<()> {
    let removing = repository.backend().remove(File::Named(Kind::Lock, id));
    let removed = match tokio::time::timeout(RELEASE_TIMEOUT, removing).await {
        Ok(removed) => removed,
        Err(_) => Err(Error::Unreachable {
            endpoint: repository.backend().location(),
            reason: "it took too long to remove the lock".to_owned(),
        }),
    };
    if removed.is_err() {
        ABANDONED.lock().insert(id);
    }
    removed
}

fn locked(lock: LockFile) -> Error {
    Error::Locked {
        host: lock.hostname,
        user: lock.username,
        pid: lock.pid,
        since: lock.time.to_string(),
    }
}

async fn write(repository: &Repository, exclusive: bool) -> Result<Id> {
    let options = repository.options();
    let lock = LockFile {
        time: options.clock.now(),
        exclusive,
        hostname: options.hostname.clone(),
        username: options.username.clone(),
        pid: std::process::id(),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    repository.save_document(Kind::Lock, &lock).await
}

/// A lock in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// Name of its file.
    pub id: Id,
    /// Content of the file.
    pub lock: LockFile,
    /// True if nobody holds it any more.
    pub stale: bool,
}

/// Result of removing locks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unlocked {
    /// Locks that were removed.
    pub removed: Vec<LockInfo>,
    /// Locks that are left.
    pub left: Vec<LockInfo>,
}

impl Repository {
    /// Returns all locks, the oldest first.
    pub async fn locks(&self) -> Result<Vec<LockInfo>> {
        let mut locks = Vec::new();
        for listed in self.backend().list(Kind::Lock).await? {
            let id = listed.id;
            let lock: LockFile = match self.load_document(Kind::Lock, id).await {
                Ok(lock) => lock,
                Err(Error::MissingFile(_)) => continue,
                Err(error) => return Err(error),
            };
            let options = self.options();
            let stale = ABANDONED.lock().contains(&id)
                || is_stale(&lock, options.clock.now(), &options.hostname);
            locks.push(LockInfo { id, lock, stale });
        }
        locks.sort_by_key(|info| (info.lock.time, info.id));
        Ok(locks)
    }

    /// Removes locks that nobody holds any more, or all of them.
    pub async fn unlock(&self, all: bool) -> Result<Unlocked> {
        let mut unlocked = Unlocked::default();
        for info in self.locks().await? {
            if all || info.stale {
                self.backend().remove(File::Named(Kind::Lock, info.id)).await?;
                unlocked.removed.push(info);
            } else {
                unlocked.left.push(info);
            }
        }
        Ok(unlocked)
    }
}

async fn look(repository: &Repository, exclusive: bool, ours: Option<Id>) -> Result<OtherLocks> {
    let mut others = OtherLocks { conflict: None, stale: Vec::new() };
    for info in repository.locks().await? {
        if Some(info.id) == ours {
            continue;
        }
        if info.stale {
            others.stale.push(info.id);
        } else if exclusive || info.lock.exclusive {
            others.conflict = Some(info.lock);
        }
    }
    Ok(others)
}

fn is_stale(lock: &LockFile, now: Timestamp, hostname: &str) -> bool {
    let age = now.duration_since(lock.time);
    if age > jiff::SignedDuration::from_secs(STALE_AFTER.as_secs() as i64) {
        return true;
    }
    lock.hostname == hostname && !process_lives(lock.pid)
}

fn process_lives(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    match pid {
        Some(pid) => rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH),
        None => false,
    }
}
