//! The overview as a stream of what changes in it.

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, stream};
use jiff::Timestamp;
use selvage_api::selvage::dashboard::{Event, Overview, OverviewUpdate, Problem};
use tokio::sync::{broadcast, watch};
use tonic::Status;

use super::Shared;
use crate::{scope::Scope, snapshot, stamp};

/// Interval of the messages by which a stream shows that it is alive.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Most events of the past that a stream begins with.
const MAX_PAST_EVENTS: usize = 500;

pub(crate) type Updates = Pin<Box<dyn Stream<Item = Result<OverviewUpdate, Status>> + Send>>;

struct Watcher {
    shared: Arc<Shared>,
    scope: Scope,
    versions: watch::Receiver<u64>,
    events: broadcast::Receiver<Arc<Event>>,
    /// Overview that was sent last; None before the first update.
    sent: Option<Arc<Overview>>,
    since: Option<Timestamp>,
    /// Counted for as long as the stream is open.
    _counted: Arc<()>,
}

pub(super) fn updates(shared: Arc<Shared>, scope: Scope, since: Option<Timestamp>) -> Updates {
    let watcher = Watcher {
        versions: shared.board.watch(),
        events: shared.board.events().watch(),
        sent: None,
        since,
        _counted: Arc::clone(&shared.watchers),
        scope,
        shared,
    };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let update = watcher.next().await?;
        Some((Ok(update), watcher))
    }))
}

impl Watcher {
    /// The next update; None when the process ends.
    async fn next(&mut self) -> Option<OverviewUpdate> {
        if self.sent.is_none() {
            return Some(self.first());
        }
        loop {
            let stop = self.shared.stop.clone();
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(KEEPALIVE_INTERVAL) => return Some(self.alive()),
                changed = self.versions.changed() => {
                    changed.ok()?;
                    let update = self.difference();
                    let nothing = update.changed.is_empty()
                        && update.problems.is_empty()
                        && update.problems_ended.is_empty()
                        && update.events.is_empty();
                    if !nothing {
                        return Some(update);
                    }
                }
            }
        }
    }

    fn first(&mut self) -> OverviewUpdate {
        self.versions.mark_unchanged();
        let view = self.shared.view(&self.scope);
        self.sent = Some(Arc::clone(&view));
        let since = self.since.map(stamp).map(|since| (since.seconds, since.nanos));
        let mut events = Vec::new();
        if since.is_some() {
            let past = self.shared.board.events().list(MAX_PAST_EVENTS, |event| {
                event.time.map(|time| (time.seconds, time.nanos)) >= since && self.sees(event)
            });
            events.extend(past.iter().rev().map(|event| (**event).clone()));
        }
        let all = ["verdict", "problems", "counts", "radar", "capacity", "sources", "places"];
        OverviewUpdate {
            version: view.version,
            time: view.time,
            changed: all.map(Into::into).to_vec(),
            overview: Some(Overview::clone(&view)),
            events,
            ..OverviewUpdate::default()
        }
    }

    fn sees(&self, event: &Event) -> bool {
        event.object.as_ref().is_some_and(|object| self.scope.sees(object))
    }

    /// Says that the stream is alive, and how old everything is.
    fn alive(&mut self) -> OverviewUpdate {
        let now = self.shared.board.clock().now();
        let version = self.sent.as_ref().map_or(0, |sent| sent.version);
        let mut update = OverviewUpdate { version, time: Some(stamp(now)), ..Default::default() };
        if self.scope.sees_shared() {
            let sources = self.shared.board.sources();
            let there = sources.iter().filter(|state| !state.absent).map(snapshot::to_source);
            update.changed.push("sources".into());
            update.overview = Some(Overview { sources: there.collect(), ..Overview::default() });
        }
        update
    }

    fn difference(&mut self) -> OverviewUpdate {
        let new = self.shared.view(&self.scope);
        let old = self.sent.replace(Arc::clone(&new)).unwrap_or_default();
        let mut update =
            OverviewUpdate { version: new.version, time: new.time, ..Default::default() };
        update.events = self.new_events();
        let mut overview = Overview::default();
        let mut changed = Vec::new();
        macro_rules! compare {
            ($($field:ident),*) => {$(
                if old.$field != new.$field {
                    overview.$field = new.$field.clone();
                    changed.push(stringify!($field).to_owned());
                }
            )*};
        }
        compare!(verdict, problems_total, counts, radar, capacity, places);
        if !same_sources(&old, &new) {
            overview.sources.clone_from(&new.sources);
            changed.push("sources".into());
        }
        (update.problems, update.problems_ended) = problems(&old.problems, &new.problems);
        update.overview = (!changed.is_empty()).then_some(overview);
        update.changed = changed;
        update
    }

    fn new_events(&mut self) -> Vec<Event> {
        let mut found = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) if self.sees(&event) => found.push((*event).clone()),
                // A watcher that slept has missed some; ListEvents has them.
                Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return found,
            }
        }
    }
}

/// Apart from when each last answered.
fn same_sources(old: &Overview, new: &Overview) -> bool {
    let shape = |overview: &Overview| -> Vec<_> {
        let shape = |source: &selvage_api::selvage::dashboard::Source| {
            (source.name.clone(), source.section.clone(), source.stale, source.error.clone())
        };
        overview.sources.iter().map(shape).collect()
    };
    shape(old) == shape(new)
}

/// Those that are new or different, and the ids of those that are over.
fn problems(old: &[Problem], new: &[Problem]) -> (Vec<Problem>, Vec<String>) {
    let known: HashMap<&str, &Problem> = old.iter().map(|p| (p.id.as_str(), p)).collect();
    let lasting: HashMap<&str, &Problem> = new.iter().map(|p| (p.id.as_str(), p)).collect();
    let changed = new.iter().filter(|p| known.get(p.id.as_str()).is_none_or(|known| *known != *p));
    let ended = old.iter().filter(|p| !lasting.contains_key(p.id.as_str()));
    (changed.cloned().collect(), ended.map(|p| p.id.clone()).collect())
}
