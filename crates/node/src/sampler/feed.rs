//! The containers of one namespace, as a runtime's events tell of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use parking_lot::Mutex;
use selvage_runtime::{Container, Event, EventKind, Runtime, cgroup::Mounts};

use super::{Measured, Owns, Sampler, Tracked};
use crate::history::Point;

/// Delay of a listing after the first event: events come in bursts.
const COALESCE_DELAY: Duration = Duration::from_millis(50);

/// The containers of one namespace.
#[derive(Default)]
pub(super) struct Feed {
    /// Containers by the id that the runtime gave them.
    tracked: Mutex<BTreeMap<String, Tracked>>,
}

impl Feed {
    /// Measures all. `full` says of which, by number, everything is read.
    pub(super) fn look(&self, now: i64, full: impl Fn(usize) -> bool) {
        let mut tracked = self.tracked.lock();
        let mut buffer = Vec::new();
        for (at, one) in tracked.values_mut().enumerate() {
            if let Err(error) = one.look(now, full(at), &mut buffer) {
                // Its end is on the way as an event.
                tracing::debug!(container = %one.container.id, %error, "not measured any more");
            }
        }
    }

    pub(super) fn history(&self, runtime_id: &str, since: i64, step: i64) -> Vec<Point> {
        let tracked = self.tracked.lock();
        tracked.get(runtime_id).map(|one| one.history.points(since, step)).unwrap_or_default()
    }

    pub(super) fn measured(&self) -> BTreeMap<String, Measured> {
        let tracked = self.tracked.lock();
        tracked.iter().filter_map(|(id, one)| Some((id.clone(), one.latest()?.clone()))).collect()
    }

    pub(super) fn each(&self, show: &mut dyn FnMut(&Tracked)) {
        self.tracked.lock().values().for_each(show);
    }

    /// Makes what is tracked the same as what was listed.
    fn reconcile(&self, listed: Vec<Container>) {
        let mounts = Mounts::read();
        let mut tracked = self.tracked.lock();
        let ids: BTreeSet<&str> = listed.iter().map(|one| one.runtime_id.as_str()).collect();
        tracked.retain(|id, _| ids.contains(id.as_str()));
        for container in listed {
            let container = Arc::new(container);
            let one = tracked
                .entry(container.runtime_id.clone())
                .or_insert_with(|| Tracked::new(Arc::clone(&container)));
            if !one.update(container) {
                continue;
            }
            let opened = match &mounts {
                Ok(mounts) => one.open(mounts).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = opened {
                tracing::debug!(container = %one.container.id, error, "cannot be measured");
            }
        }
    }
}

impl Sampler {
    /// Follows a runtime's events until they end.
    pub(super) async fn keep_up(
        self,
        runtime: Arc<dyn Runtime>,
        owns: Owns,
    ) -> selvage_runtime::Result<()> {
        let mut events = runtime.events().await?;
        self.relist_all(&runtime, &owns).await;
        while let Some(first) = events.next().await {
            let mut burst = vec![first];
            let until = tokio::time::sleep(COALESCE_DELAY);
            tokio::pin!(until);
            loop {
                tokio::select! {
                    biased;
                    () = &mut until => break,
                    Some(event) = events.next() => burst.push(event),
                    else => break,
                }
            }
            self.follow(&runtime, &owns, &burst).await;
        }
        Ok(())
    }

    async fn follow(&self, runtime: &Arc<dyn Runtime>, owns: &Owns, burst: &[Event]) {
        if burst.iter().any(|event| event.kind == EventKind::Lost) {
            tracing::warn!(runtime = runtime.name(), "the runtime cannot be reached");
        }
        if burst.iter().any(|event| event.kind == EventKind::Resync) {
            self.relist_all(runtime, owns).await;
            return;
        }
        let changed = |event: &&Event| {
            !matches!(event.kind, EventKind::Lost | EventKind::OutOfMemory)
                && !event.namespace.is_empty()
        };
        let namespaces: BTreeSet<&str> =
            burst.iter().filter(changed).map(|event| event.namespace.as_str()).collect();
        for namespace in namespaces.into_iter().filter(|namespace| owns(runtime, namespace)) {
            self.relist(runtime, namespace).await;
        }
    }

    async fn relist_all(&self, runtime: &Arc<dyn Runtime>, owns: &Owns) {
        let namespaces = match runtime.namespaces().await {
            Ok(namespaces) => namespaces,
            Err(error) => {
                // Events tell when it can be reached again.
                tracing::debug!(runtime = runtime.name(), %error, "namespaces are not listed");
                return;
            }
        };
        for namespace in namespaces.iter().filter(|namespace| owns(runtime, namespace)) {
            self.relist(runtime, namespace).await;
        }
    }

    async fn relist(&self, runtime: &Arc<dyn Runtime>, namespace: &str) {
        match runtime.list(namespace).await {
            Ok(listed) => self.reconcile(namespace, listed).await,
            Err(error) => {
                tracing::warn!(runtime = runtime.name(), namespace, %error, "the containers of a runtime could not be listed");
            }
        }
    }

    /// Measures these from now on, in the place of what was measured in the
    /// namespace before.
    pub(super) async fn reconcile(&self, namespace: &str, listed: Vec<Container>) {
        let feed = {
            let mut feeds = self.0.feeds.lock();
            if listed.is_empty() {
                feeds.remove(namespace);
                return;
            }
            Arc::clone(feeds.entry(namespace.to_owned()).or_default())
        };
        // Opens a dozen files for each that is new.
        if let Err(error) = tokio::task::spawn_blocking(move || feed.reconcile(listed)).await {
            tracing::error!(%error, "containers are not measured");
        }
    }
}
