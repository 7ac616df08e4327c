//! The volumes of this machine: what there is, what may be done, and who is
//! told.
//!
//! Volumes lie in memory, as the backend last told them. A change waits
//! for its turn in its group, is decided on what is there at that moment,
//! made, and read back before the next one has its turn, so that no two can
//! promise the same space. It goes on if the client that asked for it goes
//! away.

mod change;
mod clone;
mod revert;
mod room;
mod unfinished;

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
pub use change::{NewSnapshot, NewVolume};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use unfinished::Unfinished;

use crate::{
    Error, Group, Hold, Pool, Result, Volume,
    backend::{Backend, Groups},
    config::{Classes, Config},
    hold::Holds,
};

/// Interval at which changes from outside are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Watchers are told so often even if nothing happened, as the original does.
const REMINDER: Duration = Duration::from_secs(600);

/// Number of looks after which promises to volumes are made good.
const POLLS_PER_RESERVE: u32 = 20;

/// Parts of a pool that are used, in thousandths, from which on it is said to be nearly full.
const NEARLY_FULL: [u32; 2] = [800, 950];

/// Number of times a group that changes while it is read is read at once.
const READINGS: usize = 3;

/// Free space, as watchers are told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Free in the default class.
    pub default_free: u64,
    /// Those classes whose group is there.
    pub classes: Vec<ClassCapacity>,
}

/// Free space in one class, less its spare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCapacity {
    pub name: String,
    pub free: u64,
    /// Of the group, or of the pool for a thin class.
    pub size: u64,
    /// Its thin pool, if it has one.
    pub pool: Option<Pool>,
}

/// The volumes of this machine. Clones are the same.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    classes: ArcSwap<Classes>,
    groups: ArcSwap<Groups>,
    /// The backend's fingerprint when the groups were read.
    seen: Mutex<u64>,
    /// By group: who has the turn.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Shared by our own changes; alone with it, others' can be looked for.
    changing: tokio::sync::RwLock<()>,
    /// One reading at a time, so that an older one is never the last.
    reading: Mutex<()>,
    capacity: watch::Sender<Arc<Capacity>>,
    /// Why what is told may be old.
    health: watch::Sender<std::result::Result<(), String>>,
    holds: Holds,
    unfinished: Unfinished,
}

/// Returns how many of the limits a pool has reached.
fn fullness(pool: &Pool) -> usize {
    NEARLY_FULL.iter().filter(|limit| pool.fill() >= **limit).count()
}

impl Volumes {
    /// Reads what there is. Removes what a clone that was cut off left.
    pub async fn open(backend: Arc<dyn Backend>, config: &Config) -> Result<Self> {
        let inner = Inner {
            backend,
            classes: ArcSwap::from_pointee(Classes::new(config)),
            groups: ArcSwap::default(),
            seen: Mutex::new(0),
            turns: Mutex::default(),
            changing: tokio::sync::RwLock::default(),
            reading: Mutex::default(),
            capacity: watch::Sender::new(Arc::default()),
            health: watch::Sender::new(Ok(())),
            holds: Holds::default(),
            unfinished: Unfinished::default(),
        };
        let this = Self { inner: Arc::new(inner) };
        this.blocking(|inner| inner.read()).await?;
        this.inner.tell_missing();
        this.remove_leftovers().await;
        this.resume_reverts();
        this.inner.notify();
        Ok(this)
    }

    /// Returns the backend of the groups, for those who read and write content.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// The classes in force.
    pub fn classes(&self) -> Arc<Classes> {
        self.inner.classes.load_full()
    }

    /// All groups as they were last read.
    pub fn groups(&self) -> Arc<Groups> {
        self.inner.groups.load_full()
    }

    /// A group as it was last read.
    pub fn group(&self, name: &str) -> Result<Arc<Group>> {
        self.inner.group(name)
    }

    /// The volumes of a class, by name; those that are not complete included.
    pub fn list(&self, class: &str) -> Result<Vec<Volume>> {
        let classes = self.classes();
        let class = classes.find(class)?;
        let group = self.inner.group(&class.volume_group)?;
        Ok(group.volumes.values().filter(|volume| class.holds(volume)).cloned().collect())
    }

    /// Bytes free in a class, less its spare.
    pub fn free(&self, class: &str) -> Result<u64> {
        let classes = self.classes();
        let class = classes.find(class)?;
        let group = self.inner.group(&class.volume_group)?;
        Ok(class.free_in(&group)?.saturating_sub(class.spare()))
    }

    /// Returns free space, now and after every change. Who is slow misses what was
    /// between.
    pub fn watch(&self) -> watch::Receiver<Arc<Capacity>> {
        self.inner.capacity.subscribe()
    }

    /// Tells why volumes cannot be read, as long as they cannot.
    pub fn health(&self) -> watch::Receiver<std::result::Result<(), String>> {
        self.inner.health.subscribe()
    }

    /// Keeps a volume from being removed or resized; `why` completes
    /// "logical volume NAME is …".
    pub fn hold(&self, group: &str, name: &str, why: &str) -> Hold {
        self.inner.holds.hold(group, name, why)
    }

    /// Returns whether work is done on a volume.
    pub(crate) fn is_held(&self, group: &str, name: &str) -> bool {
        self.inner.holds.check(group, name).is_err()
    }

    /// Puts a changed configuration in force.
    pub async fn configure(&self, config: &Config) -> Result<()> {
        let _alone = self.inner.changing.write().await;
        let taken = config.clone();
        self.blocking(move |inner| {
            inner.backend.configure(&taken)?;
            inner.classes.store(Arc::new(Classes::new(&taken)));
            inner.read()
        })
        .await?;
        self.inner.tell_missing();
        self.inner.notify();
        Ok(())
    }

    /// Looks for changes from outside, and tells watchers, until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let mut reminder = tokio::time::interval(REMINDER);
        reminder.tick().await;
        let mut looks = 0_u32;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = reminder.tick() => self.inner.notify(),
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    let looked = self.look().await;
                    self.inner.report_health(looked.map_err(|error| error.to_string()));
                    self.remove_unfinished().await;
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(POLLS_PER_RESERVE) {
                        self.uphold().await;
                        self.resume_reverts();
                    }
                }
            }
        }
    }

    /// Makes good what volumes were promised, while nobody changes anything.
    async fn uphold(&self) {
        let Ok(_alone) = self.inner.changing.try_write() else { return };
        let upheld = self.blocking(|inner| {
            inner.backend.uphold();
            Ok(())
        });
        let _ = upheld.await;
    }

    /// Reads again if something changed that was not our doing.
    async fn look(&self) -> Result<()> {
        let Ok(_alone) = self.inner.changing.try_write() else { return Ok(()) };
        let changed = self
            .blocking(|inner| {
                if inner.backend.fingerprint() == *inner.seen.lock() {
                    return Ok(false);
                }
                let before = inner.groups.load_full();
                inner.read()?;
                Ok(*before != **inner.groups.load())
            })
            .await?;
        if changed {
            self.inner.tell_missing();
            self.inner.notify();
        }
        Ok(())
    }

    /// Does something where blocking is allowed.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(|_| Error::Task)?
    }
}

impl Inner {
    fn group(&self, name: &str) -> Result<Arc<Group>> {
        let groups = self.groups.load();
        groups.get(name).cloned().ok_or_else(|| Error::GroupNotFound(name.to_owned()))
    }

    /// Reads what the backend has, again if it changes meanwhile. Blocks.
    fn read(&self) -> Result<()> {
        let _one = self.reading.lock();
        let mut seen = self.backend.fingerprint();
        for _ in 0..READINGS {
            let groups = self.backend.scan()?;
            let before = self.groups.swap(Arc::new(groups));
            self.warn_of_pools(&before);
            let after = self.backend.fingerprint();
            if std::mem::replace(&mut seen, after) == after {
                *self.seen.lock() = after;
                return Ok(());
            }
        }
        // It does not come to rest: the next look reads it once more.
        *self.seen.lock() = 0;
        Ok(())
    }

    /// Says which pools promise more than they hold, and which are nearly full, when they
    /// begin to.
    fn warn_of_pools(&self, before: &Groups) {
        for (group, now) in &**self.groups.load() {
            for (pool, now) in &now.pools {
                let known = before.get(group).and_then(|group| group.pools.get(pool));
                let known = known.copied().unwrap_or_default();
                let (size, promised) = (now.size, now.promised);
                if promised > size && known.promised <= known.size {
                    tracing::warn!(
                        group,
                        pool,
                        size,
                        promised,
                        "a thin pool promises more than it holds: when it is full, writes to its volumes fail"
                    );
                }
                if fullness(now) > fullness(&known) {
                    let percent = now.fill() / 10;
                    tracing::warn!(
                        group,
                        pool,
                        size,
                        percent,
                        "a thin pool is nearly full: when it is, writes to its volumes fail"
                    );
                }
            }
        }
    }

    fn capacity(&self) -> Capacity {
        let (classes, groups) = (self.classes.load(), self.groups.load());
        let mut capacity = Capacity::default();
        for class in classes.all() {
            let free = groups.get(&class.volume_group).map(|group| class.free_in(group));
            let Some(Ok(free)) = free else { continue };
            let free = free.saturating_sub(class.spare());
            if class.default {
                capacity.default_free = free;
            }
            let held = groups.get(&class.volume_group).and_then(|group| class.holding(group));
            let (size, pool) = (held.map_or(0, |held| held.size), class.pool().and(held));
            capacity.classes.push(ClassCapacity { name: class.name.clone(), free, size, pool });
        }
        capacity
    }

    /// Tells all watchers what is free, whether it is news or not.
    fn notify(&self) {
        self.capacity.send_replace(Arc::new(self.capacity()));
    }

    /// Says whether volumes can be read, if it is news.
    fn report_health(&self, looked: std::result::Result<(), String>) {
        self.health.send_if_modified(|known| {
            if *known == looked {
                return false;
            }
            if let Err(error) = &looked {
                tracing::warn!(%error, "volumes cannot be read: what is told may be old");
            }
            *known = looked;
            true
        });
    }

    /// Says which classes cannot serve.
    fn tell_missing(&self) {
        let (classes, groups) = (self.classes.load(), self.groups.load());
        for class in classes.all() {
            let group = groups.get(&class.volume_group);
            let reason = match group.map(|group| class.free_in(group)) {
                Some(Ok(_)) => continue,
                Some(Err(error)) => error.to_string(),
                None => Error::GroupNotFound(class.volume_group.clone()).to_string(),
            };
            tracing::warn!(class = %class.name, %reason, "a device class has nothing to offer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_nearly_full_by_its_data_or_its_metadata() {
        let pool = |used, metadata_used| Pool { size: 1000, promised: 0, used, metadata_used };
        for (pool, expected) in [
            (pool(None, None), 0),
            (pool(Some(799), Some(799)), 0),
            (pool(Some(800), None), 1),
            (pool(Some(0), Some(949)), 1),
            (pool(Some(950), None), 2),
            (pool(Some(0), Some(1000)), 2),
            (Pool { size: 0, ..Pool::default() }, 0),
        ] {
            assert_eq!(fullness(&pool), expected, "{pool:?}");
        }
    }
}
