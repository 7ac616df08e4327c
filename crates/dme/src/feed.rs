//! Makes tables out of what comes by notify.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use selvage_api::edgeproto::{App, AppInst, CloudletInfo, CloudletState};
use selvage_edge::is_serving;
use selvage_notify::{Cache, Change, Sink};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    error::Result,
    mirror::MirrorContents,
    stats::Stats,
    table::{AppEntry, AppName, CloudletName, Instance, Site, Table},
};

/// Delay after a change, so that one table is built for several changes.
const COALESCE_DELAY: Duration = Duration::from_millis(5);

/// Objects that are known, and the table that is made of them. Clones are the
/// same.
#[derive(Clone)]
pub struct Feed {
    /// All apps of the region.
    pub apps: Arc<Cache<App>>,
    /// All their instances, in whatever state.
    pub instances: Arc<Cache<AppInst>>,
    /// Reports of agents about their cloudlets.
    pub cloudlets: Arc<Cache<CloudletInfo>>,
    shared: Arc<Shared>,
}

struct Shared {
    table: ArcSwap<Table>,
    known: Mutex<FeedState>,
    changed: Notify,
    stats: Arc<Stats>,
}

/// Objects that the table is made of.
#[derive(Default)]
struct FeedState {
    apps: HashMap<AppName, Parts>,
    /// States of cloudlets.
    states: HashMap<CloudletName, i32>,
    /// The apps with an instance on a cloudlet.
    on: HashMap<CloudletName, HashSet<AppName>>,
    /// Apps whose entry is not as it should be.
    dirty: HashSet<AppName>,
    /// True if a cloudlet that nothing is said of is down. It is not where
    /// nothing is said of any: the original's controllers are like that.
    knows_cloudlets: bool,
}

/// An instance may come before its app, and the app may come late.
#[derive(Default)]
struct Parts {
    app: Option<Arc<App>>,
    instances: BTreeMap<Site, Arc<AppInst>>,
}

impl Parts {
    /// Returns true if it has an instance on a cloudlet.
    fn is_on(&self, cloudlet: &CloudletName) -> bool {
        let first = Site { cloudlet: cloudlet.clone(), ..Site::default() };
        let found = self.instances.range(first..).next();
        found.is_some_and(|(site, _)| site.cloudlet == *cloudlet)
    }
}

impl Feed {
    /// Knows nothing yet.
    pub fn new(stats: Arc<Stats>) -> Result<Self> {
        let shared = Arc::new(Shared {
            table: ArcSwap::default(),
            known: Mutex::new(FeedState { knows_cloudlets: true, ..FeedState::default() }),
            changed: Notify::new(),
            stats,
        });
        let feed = Self {
            apps: Cache::new()?,
            instances: Cache::new()?,
            cloudlets: Cache::new()?,
            shared,
        };
        let shared = Arc::clone(&feed.shared);
        feed.apps.on_change(move |change| shared.change(|known| known.app(change)));
        let shared = Arc::clone(&feed.shared);
        feed.instances.on_change(move |change| shared.change(|known| known.instance(change)));
        let shared = Arc::clone(&feed.shared);
        feed.cloudlets.on_change(move |change| shared.change(|known| known.cloudlet(change)));
        Ok(feed)
    }

    /// The newest table.
    pub fn table(&self) -> arc_swap::Guard<Arc<Table>> {
        self.shared.table.load()
    }

    /// Makes a table of all that has come so far.
    pub fn publish(&self) {
        let mut known = self.shared.known.lock();
        let dirty = std::mem::take(&mut known.dirty);
        if dirty.is_empty() {
            return;
        }
        let mut table = Table::clone(&self.shared.table.load());
        for name in dirty {
            match known.entry(&name, &self.shared.stats) {
                Some(entry) => table.apps.insert(name, Arc::new(entry)),
                None => table.apps.remove(&name),
            };
        }
        self.shared.table.store(Arc::new(table));
    }

    /// Marks the initial synchronisation as complete: it is known now whether
    /// the controller also reports cloudlets.
    pub fn in_sync(&self) {
        let known_now = self.cloudlets.checkpoint().is_some() || !self.cloudlets.is_empty();
        self.shared.change(|known| known.set_knows_cloudlets(known_now));
    }

    /// Returns true if the controller tells which cloudlets are up.
    pub(crate) fn knows_cloudlets(&self) -> bool {
        self.shared.known.lock().knows_cloudlets
    }

    /// Goes by what was known once, until a controller says more.
    pub(crate) fn restore(&self, found: MirrorContents) -> Result<()> {
        for app in found.apps {
            self.apps.put(app)?;
        }
        for instance in found.instances {
            self.instances.put(instance)?;
        }
        for cloudlet in found.cloudlets {
            self.cloudlets.put(cloudlet)?;
        }
        self.shared.change(|known| known.set_knows_cloudlets(found.tells_of_cloudlets));
        self.publish();
        Ok(())
    }

    /// Keeps the table up to date until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.shared.changed.notified()).await.is_some() {
            self.publish();
            tokio::time::sleep(COALESCE_DELAY).await;
        }
    }
}

impl Shared {
    fn change(&self, apply: impl FnOnce(&mut FeedState)) {
        let mut known = self.known.lock();
        apply(&mut known);
        let dirty = !known.dirty.is_empty();
        drop(known);
        if dirty {
            self.changed.notify_one();
        }
    }
}

impl FeedState {
    fn app(&mut self, change: &Change<'_, App>) {
        let Some(app) = change.now.or(change.before) else { return };
        let name = AppName::of(app.key.as_ref());
        let parts = self.apps.entry(name.clone()).or_default();
        parts.app = change.now.cloned();
        self.tidy(&name);
        self.dirty.insert(name);
    }

    fn instance(&mut self, change: &Change<'_, AppInst>) {
        let Some(instance) = change.now.or(change.before) else { return };
        let key = instance.key.as_ref();
        let name = AppName::of(key.and_then(|key| key.app_key.as_ref()));
        let site = Site::of(key.and_then(|key| key.cluster_inst_key.as_ref()));
        let cloudlet = site.cloudlet.clone();
        let parts = self.apps.entry(name.clone()).or_default();
        match change.now {
            Some(instance) => {
                parts.instances.insert(site, Arc::clone(instance));
                self.on.entry(cloudlet).or_default().insert(name.clone());
            }
            None => {
                parts.instances.remove(&site);
                if !parts.is_on(&cloudlet) {
                    self.leave(&cloudlet, &name);
                }
            }
        }
        self.tidy(&name);
        self.dirty.insert(name);
    }

    fn leave(&mut self, cloudlet: &CloudletName, name: &AppName) {
        if let Some(apps) = self.on.get_mut(cloudlet) {
            apps.remove(name);
            if apps.is_empty() {
                self.on.remove(cloudlet);
            }
        }
    }

    fn tidy(&mut self, name: &AppName) {
        let empty = |parts: &Parts| parts.app.is_none() && parts.instances.is_empty();
        if self.apps.get(name).is_some_and(empty) {
            self.apps.remove(name);
        }
    }

    fn cloudlet(&mut self, change: &Change<'_, CloudletInfo>) {
        let Some(info) = change.now.or(change.before) else { return };
        let name = CloudletName::of(info.key.as_ref());
        let before = self.is_online(&name);
        match change.now {
            Some(info) => self.states.insert(name.clone(), info.state),
            None => self.states.remove(&name),
        };
        if self.is_online(&name) != before
            && let Some(apps) = self.on.get(&name)
        {
            self.dirty.extend(apps.iter().cloned());
        }
    }

    fn set_knows_cloudlets(&mut self, known_now: bool) {
        if self.knows_cloudlets != known_now {
            self.knows_cloudlets = known_now;
            self.dirty.extend(self.apps.keys().cloned());
        }
    }

    fn is_online(&self, cloudlet: &CloudletName) -> bool {
        match self.states.get(cloudlet) {
            _ if cloudlet.is_default() => true,
            Some(state) => *state == i32::from(CloudletState::Ready),
            None => !self.knows_cloudlets,
        }
    }

    fn entry(&self, name: &AppName, stats: &Stats) -> Option<AppEntry> {
        let parts = self.apps.get(name)?;
        let app = parts.app.as_ref()?;
        let usable = parts
            .instances
            .iter()
            .filter(|(site, instance)| is_serving(instance) && self.is_online(&site.cloudlet));
        let instances = usable.map(|(site, instance)| Instance::new(site.clone(), instance));
        Some(AppEntry::new(name.clone(), app, instances, stats.of(name)))
    }
}
