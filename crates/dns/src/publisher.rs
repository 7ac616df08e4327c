//! Keeps zones of another name server in step with what devices may be sent to:
//! for those whose DNS is elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use hickory_proto::rr::Name;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_kit::clock::Clock;
use selvage_part::Result;
use selvage_store::{Record as _, SharedStore, Table};
use selvage_work::{Failure, Reconcile, Summary};

use crate::{
    directory::Directory,
    update::{Change, Primary},
    zone::{Datum, Names, Zone},
};

/// Names in one update, which is carried out as a whole.
const NAMES_AT_ONCE: usize = 64;

/// Interval at which everything is sent again: somebody may have removed records at
/// the server, and it does not tell.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// A name that was or may have been published. It is remembered before it is
/// sent, so that whoever runs next can take it back.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Published {
    #[prost(string, tag = "1")]
    zone: String,
    #[prost(string, tag = "2")]
    name: String,
}

impl Published {
    fn new(zone: &Name, name: &Name) -> Self {
        Self { zone: zone.to_ascii(), name: name.to_ascii() }
    }
}

impl selvage_store::Record for Published {
    const KIND: &'static str = "dns-published";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        format!("{}/{}", self.zone, self.name)
    }
}

/// The reconciler of another name server's zones.
pub(crate) struct Publisher {
    directory: Arc<Directory>,
    primary: Primary,
    published: Arc<Table<Published>>,
    /// Records that the server has taken from this process, by zone.
    taken: Mutex<BTreeMap<Name, Names>>,
    clock: Arc<dyn Clock>,
    /// When everything was sent last.
    refreshed: Mutex<Duration>,
}

impl Publisher {
    pub(crate) async fn open(
        directory: Arc<Directory>,
        primary: Primary,
        store: SharedStore,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let published = Table::open(store).await.context("names that were published")?;
        let (taken, refreshed) = (Mutex::default(), Mutex::new(clock.elapsed()));
        Ok(Self { directory, primary, published, taken, clock, refreshed })
    }

    /// Forgets from time to time what the server has taken, so that it is sent again.
    fn refresh_if_due(&self) {
        let now = self.clock.elapsed();
        let mut refreshed = self.refreshed.lock();
        if now.saturating_sub(*refreshed) >= REFRESH_INTERVAL {
            *refreshed = now;
            self.taken.lock().clear();
        }
    }

    /// Sends what differs; returns the number of names.
    async fn publish(&self, zone: &Zone) -> Result<usize> {
        let origin = &zone.origin;
        let wanted = zone.of_instances();
        let taken = self.taken.lock().get(origin).cloned().unwrap_or_default();
        let remembered = self.remembered(origin);
        let gone: BTreeSet<Name> = remembered
            .iter()
            .chain(taken.keys())
            .filter(|name| !wanted.contains_key(*name))
            .cloned()
            .collect();
        let mut changed = Vec::new();
        for (name, data) in wanted.iter().filter(|(name, data)| taken.get(*name) != Some(*data)) {
            if !remembered.contains(name) {
                self.published.put(Published::new(origin, name)).await?;
            }
            changed.push((name.clone(), data.clone()));
        }
        changed.extend(gone.iter().map(|name| (name.clone(), BTreeSet::new())));
        for some in changed.chunks(NAMES_AT_ONCE) {
            self.send(zone, some).await?;
        }
        for name in gone {
            match self.published.delete(&Published::new(origin, &name).key()).await {
                Ok(_) | Err(selvage_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(changed.len())
    }

    async fn send(&self, zone: &Zone, some: &[(Name, BTreeSet<Datum>)]) -> Result<()> {
        let change = |(name, data): &(Name, BTreeSet<Datum>)| Change {
            name: name.clone(),
            records: data.iter().map(|datum| zone.record(name, datum)).collect(),
        };
        let changes: Vec<Change> = some.iter().map(change).collect();
        let failed = || format!("dns.update: name server {}", self.primary.server);
        self.primary.update(&zone.origin, &changes).await.with_context(failed)?;
        let mut taken = self.taken.lock();
        let taken = taken.entry(zone.origin.clone()).or_default();
        for (name, data) in some {
            match data.is_empty() {
                true => taken.remove(name),
                false => taken.insert(name.clone(), data.clone()),
            };
        }
        Ok(())
    }

    /// Names of a zone that some process may have published.
    fn remembered(&self, origin: &Name) -> BTreeSet<Name> {
        let rows = self.published.list_prefix(&format!("{}/", origin.to_ascii()));
        rows.iter().filter_map(|row| Name::from_ascii(&row.value.name).ok()).collect()
    }
}

#[async_trait]
impl Reconcile for Publisher {
    fn name(&self) -> &str {
        "dns: updates"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        // Nothing is taken back before it is known what there is.
        let Some(zones) = self.directory.zones() else { return Ok(Summary::default()) };
        self.refresh_if_due();
        let mut changes = 0;
        for zone in zones.iter() {
            let published = self.publish(zone).await;
            let failed = |error| Failure::new(Code::Unavailable, format!("{error:#}"));
            changes += published.map_err(failed)?;
        }
        Ok(Summary { changes: changes as u64, ..Summary::default() })
    }
}

#[cfg(test)]
mod tests;
