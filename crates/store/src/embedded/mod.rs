//! The store in one file of this machine.
//!
//! Writers hand their transactions to one thread, which does all that wait in
//! one write transaction of the file and syncs once for all of them; each
//! still gets a revision of its own. Such a commit writes only the log; rows
//! are moved to their places many at a time. Readers work on snapshots and wait for
//! nobody. A sync that fails ends writing for good: what is on disk is then
//! unknown, and only opening the file again can tell.

mod batch;
mod fault;
mod feed;
mod format;
mod inspect;
mod lease;
mod open;
mod options;
mod pending;
mod read;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadableDatabase, ReadableTable};
use tokio::sync::{mpsc, oneshot, watch};

use self::batch::{Outcome, Retention, Work};
use self::fault::{contain, storage};
use self::feed::{Feed, Position};
use self::format::{CURRENT, FIRST_REVISION, LEASES, LOG, META, META_COMPACTED};
use self::lease::{LeaseBook, Term};
use self::open::{FORMAT, LockFile};
use self::pending::{Pending, Rows, overlay};
use self::read::{Horizon, Newer};
use self::writer::{Job, Writer};
use crate::clock::{Clock, Millis, to_millis};
use crate::{
    Error, KeyRange, Lease, LeaseId, RangeReply, RangeRequest, Result, Revision, Status, Store,
    Txn, TxnReply, Watch,
};

pub(crate) use self::inspect::inspect;
pub use self::options::Options;

/// Interval at which old history is looked for when nothing else happens.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(60);

/// State shared by the handle, the writer and the watches.
struct Shared {
    opened: RwLock<Option<Opened>>,
    feed: Feed,
    pending: RwLock<Pending>,
    failure: RwLock<Option<String>>,
    clock: Arc<dyn Clock>,
    path: Option<PathBuf>,
}

struct Opened {
    database: Database,
    /// Dropped after the database: whoever gets the lock finds it closed.
    _lock: Option<LockFile>,
}

impl Shared {
    fn with_database<T>(&self, work: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let opened = self.opened.read();
        let opened = opened.as_ref().ok_or(Error::Closed)?;
        contain(|| work(&opened.database))
    }

    fn read_range(&self, request: &RangeRequest) -> Result<RangeReply> {
        self.with_database(|database| {
            let mut rows = Rows::new();
            // The snapshot must be taken while what is pending stands still.
            let (read, revision) = {
                let pending = self.pending.read();
                overlay(&mut rows, pending.rows(), &request.range);
                (database.begin_read().map_err(storage)?, pending.revision)
            };
            let meta = read.open_table(META).map_err(storage)?;
            let compacted = meta.get(META_COMPACTED).map_err(storage)?.map_or(0, |row| row.value());
            let current = read.open_table(CURRENT).map_err(storage)?;
            let log = read.open_table(LOG).map_err(storage)?;
            let horizon = Horizon { revision, compacted };
            read::range(&current, &log, horizon, Newer { rows, own: &[] }, request)
        })
    }

    fn failure(&self) -> Option<String> {
        self.failure.read().clone()
    }

    fn fail(&self, reason: String) {
        self.failure.write().get_or_insert(reason);
    }

    fn release(&self) {
        self.feed.close();
        let opened = self.opened.write().take();
        let closed = contain(|| {
            drop(opened);
            Ok(())
        });
        if let Err(error) = closed {
            tracing::error!(%error, "closing the data file came to a halt");
        }
    }
}

/// A store in one file, or in whatever a [`redb::StorageBackend`] writes to.
/// Dropping it closes it.
pub struct Embedded {
    shared: Arc<Shared>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    stopped: watch::Receiver<bool>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the file, making it if it is not there. Must be called within a
    /// tokio runtime.
    pub async fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>> {
        let path = path.as_ref().to_owned();
        let (opened, options) = blocking(move || {
            let lock = open::lock(&path)?;
            let database = open::database(&path, &open::builder(options.cache_bytes))?;
            Ok(((path, Opened { database, _lock: Some(lock) }), options))
        })
        .await?;
        let (path, opened) = opened;
        Self::start(opened, Some(path), options).await
    }

    /// A store that is gone when it is closed.
    pub async fn in_memory(options: Options) -> Result<Arc<Self>> {
        Self::open_with_backend(redb::backends::InMemoryBackend::new(), options).await
    }

    pub async fn open_with_backend(
        backend: impl redb::StorageBackend,
        options: Options,
    ) -> Result<Arc<Self>> {
        let (opened, options) = blocking(move || {
            let builder = open::builder(options.cache_bytes);
            let database = contain(|| builder.create_with_backend(backend).map_err(storage))?;
            Ok((Opened { database, _lock: None }, options))
        })
        .await?;
        Self::start(opened, None, options).await
    }

    async fn start(opened: Opened, path: Option<PathBuf>, options: Options) -> Result<Arc<Self>> {
        let file = path.clone();
        let (opened, loaded) = blocking(move || {
            let loaded = contain(|| {
                open::prepare(&opened.database)?;
                open::load(&opened.database)
            });
            match (loaded, file) {
                (Ok(loaded), _) => Ok((opened, loaded)),
                (Err(error), Some(file)) => Err(open::name_file(error, &file)),
                (Err(error), None) => Err(error),
            }
        })
        .await?;
        let Horizon { revision, compacted } = loaded.horizon;
        let position = Position { revision, compacted, closed: false };
        let shared = Arc::new(Shared {
            opened: RwLock::new(Some(opened)),
            feed: Feed::new(position, options.ring_revisions, options.ring_bytes),
            pending: RwLock::new(Pending::new(loaded.pending, revision)),
            failure: RwLock::new(None),
            clock: Arc::clone(&options.clock),
            path,
        });
        Self::run(shared, loaded.leases, &options)
    }

    /// Starts the writer and the housekeeping.
    fn run(shared: Arc<Shared>, book: LeaseBook, options: &Options) -> Result<Arc<Self>> {
        let batch = options.batch.max(1);
        let (jobs, receiver) = mpsc::channel(batch * 2);
        let (next_end, next_end_seen) = watch::channel(book.next_end());
        let (stop, stopped) = watch::channel(false);
        let retention =
            Retention { revisions: options.log_revisions, age: to_millis(options.log_age) };
        let writer = Writer {
            shared: Arc::clone(&shared),
            jobs: receiver,
            book,
            next_end,
            batch,
            retention,
            pending_keys: options.pending_keys,
            pending_bytes: options.pending_bytes,
        };
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                writer.run();
                stop.send_replace(true);
            })
            .map_err(|error| Error::io("starting the writer thread", error))?;
        tokio::spawn(keep_house(jobs.downgrade(), next_end_seen, Arc::clone(&shared.clock)));
        Ok(Arc::new(Self { shared, jobs: Mutex::new(Some(jobs)), stopped }))
    }

    async fn submit(&self, work: Work) -> Result<Outcome> {
        let jobs = self.jobs.lock().clone().ok_or(Error::Closed)?;
        let (reply, answer) = oneshot::channel();
        jobs.send(Job { work, reply }).await.map_err(|_| Error::Closed)?;
        drop(jobs);
        answer.await.map_err(|_| Error::Closed)?
    }

    async fn submit_lease(&self, work: Work) -> Result<Lease> {
        match self.submit(work).await? {
            Outcome::Lease(lease) => Ok(lease),
            other => Err(Error::internal(format!("a lease was asked for, got {other:?}"))),
        }
    }
}

/// Asks for maintenance whenever a lease ends, and now and then.
async fn keep_house(
    jobs: mpsc::WeakSender<Job>,
    mut next_end: watch::Receiver<Option<Millis>>,
    clock: Arc<dyn Clock>,
) {
    loop {
        let ends = *next_end.borrow_and_update();
        let regular = clock.now().saturating_add(to_millis(HOUSEKEEPING_INTERVAL));
        let wake = ends.map_or(regular, |ends| ends.min(regular));
        tokio::select! {
            () = clock.sleep_until(wake) => {}
            changed = next_end.changed() => match changed {
                Ok(()) => continue,
                // The writer has ended.
                Err(_) => return,
            },
        }
        let Some(sender) = jobs.upgrade() else { return };
        let (reply, answer) = oneshot::channel();
        if sender.send(Job { work: Work::Maintain, reply }).await.is_err() {
            return;
        }
        drop(sender);
        if matches!(answer.await, Ok(Err(_)) | Err(_)) {
            return;
        }
    }
}

/// Runs something that may wait for the disk away from the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::internal(error.to_string())),
    }
}

fn read_leases(database: &Database) -> Result<Vec<(LeaseId, Term)>> {
    let read = database.begin_read().map_err(storage)?;
    let mut found = Vec::new();
    for row in read.open_table(LEASES).map_err(storage)?.iter().map_err(storage)? {
        let (id, term) = row.map_err(storage)?;
        let (ttl, ends) = term.value();
        found.push((LeaseId(id.value()), Term { ttl, ends }));
    }
    Ok(found)
}

fn read_lease(database: &Database, id: LeaseId) -> Result<Option<Term>> {
    let read = database.begin_read().map_err(storage)?;
    let leases = read.open_table(LEASES).map_err(storage)?;
    let term = leases.get(id.0).map_err(storage)?;
    Ok(term.map(|term| {
        let (ttl, ends) = term.value();
        Term { ttl, ends }
    }))
}

#[async_trait]
impl Store for Embedded {
    async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        txn.validate()?;
        match self.submit(Work::Txn(txn)).await? {
            Outcome::Txn(reply) => Ok(reply),
            other => Err(Error::internal(format!("a transaction gave {other:?}"))),
        }
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply> {
        request.range.validate()?;
        // One key is a few pages, as a rule in memory: not worth a thread.
        if matches!(request.range, KeyRange::Key(_)) && request.at_revision.is_none() {
            return self.shared.read_range(&request);
        }
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.read_range(&request)).await
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        range.validate()?;
        if self.shared.feed.position().closed {
            return Err(Error::Closed);
        }
        Ok(feed::watch(Arc::clone(&self.shared), range, from))
    }

    async fn revision(&self) -> Result<Revision> {
        let position = self.shared.feed.position();
        if position.closed { Err(Error::Closed) } else { Ok(position.revision) }
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.submit(Work::Compact(revision)).await.map(|_| ())
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.submit_lease(Work::Grant(ttl)).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Lease> {
        self.submit_lease(Work::KeepAlive(id)).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<()> {
        self.submit(Work::Revoke(id)).await.map(|_| ())
    }

    async fn lease_ttl(&self, id: LeaseId) -> Result<Lease> {
        let now = self.shared.clock.now();
        let term = self.shared.with_database(|database| read_lease(database, id))?;
        match term {
            Some(term) if term.ends > now => Ok(term.lease(id, now)),
            _ => Err(Error::LeaseNotFound { id }),
        }
    }

    async fn lease_list(&self) -> Result<Vec<LeaseId>> {
        let now = self.shared.clock.now();
        let leases = self.shared.with_database(read_leases)?;
        Ok(leases.into_iter().filter(|(_, term)| term.ends > now).map(|(id, _)| id).collect())
    }

    async fn status(&self) -> Result<Status> {
        let position = self.shared.feed.position();
        if position.closed {
            return Err(Error::Closed);
        }
        let path = self.shared.path.as_ref();
        let bytes = path.and_then(|path| path.metadata().ok()).map_or(0, |data| data.len());
        Ok(Status {
            backend: "embedded",
            version: format!("file format {FORMAT}"),
            revision: position.revision,
            compacted: if position.compacted > FIRST_REVISION { position.compacted } else { 0 },
            bytes,
            failure: self.shared.failure(),
        })
    }

    async fn close(&self) -> Result<()> {
        drop(self.jobs.lock().take());
        let mut stopped = self.stopped.clone();
        // An error means that the writer thread is gone, which is as good.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        match self.shared.failure() {
            Some(reason) => Err(Error::Failed { reason }),
            None => Ok(()),
        }
    }
}
