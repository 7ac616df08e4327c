//! Volumes that a failed change may have left behind.
//!
//! A disk can fail after LVM has written down a new volume and before it has
//! cleaned the beginning of it; then LVM cannot take it back either. Whoever
//! asked was told of a failure, and nobody must find such a volume.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::{Volumes, change::ChangeContext};
use crate::{Result, Volume};

/// Interval at which it is tried to remove one that resists.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Volumes that may be left.
#[derive(Default)]
pub(super) struct Unfinished(Mutex<Vec<UnfinishedVolume>>);

#[derive(Clone)]
struct UnfinishedVolume {
    class: String,
    name: String,
    /// When it was being made, in seconds since 1970: one of the same name
    /// that was made at another time is somebody else's.
    from: u64,
    until: u64,
    tried: Option<Instant>,
}

impl UnfinishedVolume {
    fn is(&self, volume: &Volume) -> bool {
        self.name == volume.name && (self.from..=self.until).contains(&volume.created)
    }
}

impl Unfinished {
    pub(super) fn left(&self, class: &str, volume: &Volume) -> bool {
        self.0.lock().iter().any(|left| left.class == class && left.is(volume))
    }

    /// Those whose turn it is to be looked for.
    fn due(&self) -> Vec<UnfinishedVolume> {
        let mut all = self.0.lock();
        let due = |left: &&mut UnfinishedVolume| {
            left.tried.is_none_or(|at| at.elapsed() >= RETRY_INTERVAL)
        };
        let mark = |left: &mut UnfinishedVolume| {
            left.tried = Some(Instant::now());
            left.clone()
        };
        all.iter_mut().filter(due).map(mark).collect()
    }

    fn forget(&self, gone: &UnfinishedVolume) {
        self.0.lock().retain(|left| left.name != gone.name || left.from != gone.from);
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl ChangeContext<'_> {
    /// Makes a volume, and remembers if that failed.
    pub(super) fn make(&self, name: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
        let from = now();
        let made = make();
        let class = &self.class.name;
        let mut unfinished = self.inner.unfinished.0.lock();
        // What is there of that name now is what was made now.
        unfinished.retain(|left| left.class != *class || left.name != name);
        if made.is_err() {
            unfinished.push(UnfinishedVolume {
                class: class.clone(),
                name: name.to_owned(),
                from,
                until: now(),
                tried: None,
            });
        }
        made
    }
}

impl Volumes {
    /// Removes what failed changes left, as far as it is to be had.
    pub(super) async fn remove_unfinished(&self) {
        for left in self.inner.unfinished.due() {
            let group = self.classes().find(&left.class).map(|class| class.volume_group.clone());
            let Ok(group) = group else { continue };
            // Until its disks are back nothing can be removed.
            if !self.group(&group).is_ok_and(|group| group.missing == 0) {
                continue;
            }
            let gone = left.clone();
            let removed = self.change(&gone.class, move |context| {
                // It may have been made well since, while this waited.
                let is_left =
                    |volume: &&Volume| context.inner.unfinished.left(&context.class.name, volume);
                if context.group.volumes.get(&left.name).filter(is_left).is_none() {
                    return Ok(false);
                }
                tracing::warn!(volume = %left.name, "removing what a failure left");
                context.remove(&left.name).map(|()| true)
            });
            match removed.await {
                Ok(_) => self.inner.unfinished.forget(&gone),
                Err(error) => tracing::warn!(volume = %gone.name, %error, "it stays for now"),
            }
        }
    }
}
