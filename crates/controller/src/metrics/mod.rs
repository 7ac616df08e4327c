//! Samples that agents send: those that their sender may speak of are kept,
//! bounded in number, size and time, the oldest going first; the newest of
//! each shown to whoever watches the process; all of them handed on to a
//! database, if there is one.

pub(crate) mod influx;
pub(crate) mod keeper;
mod line;
pub(crate) mod newest;
mod ring;
pub(crate) mod scope;
mod sender;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use selvage_api::edgeproto as wire;
use selvage_notify::Stream;

pub(crate) use self::ring::{Counts, Limits, Samples, merged};
use self::sender::Unwanted;
use crate::controller::Controller;

/// A sample of an application carries this tag,
const APP_TAG: &str = "app";
/// one of a cluster this one,
const CLUSTER_TAG: &str = "cluster";
/// and one of a cloudlet only this one.
const CLOUDLET_TAG: &str = "cloudlet";
/// Whose app it is.
const DEVELOPER_TAG: &str = "dev";
/// Whose cloudlet: as crms call it, and as match engines do.
const OPERATOR_TAGS: [&str; 2] = ["operator", "oper"];

/// The values of the tags of one of these names.
fn tagged<'a>(sample: &'a wire::Metric, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let named = sample.tags.iter().filter(move |tag| names.contains(&tag.name.as_str()));
    named.map(|tag| tag.val.as_str())
}

/// Samples that were not taken.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    counts: [AtomicU64; Unwanted::ALL.len()],
    /// The last stream of each sender of which this was said.
    said: Mutex<HashMap<String, i64>>,
}

impl Refused {
    /// Counts one. Says so in the log once for a stream.
    fn note(&self, why: Unwanted, sample: &wire::Metric, stream: &Stream) {
        self.counts[why as usize].fetch_add(1, Ordering::Relaxed);
        let sender = stream.peer.identity.name.clone();
        if self.said.lock().insert(sender, stream.id) != Some(stream.id) {
            let name: String = sample.name.chars().take(64).collect();
            tracing::warn!(peer = ?stream.peer, name, reason = why.text(), "samples are not taken");
        }
    }

    /// How many there were, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Unwanted::ALL.iter().map(|why| why.label()).zip(counts)
    }
}

impl Controller {
    /// Takes in what an agent sent, if it may be taken.
    pub(crate) fn receive_sample(&self, sample: wire::Metric, stream: &Stream) {
        let checked = sender::check(&sample, &stream.peer.identity);
        if let Err(why) = checked {
            self.memory.refused.note(why, &sample, stream);
            return;
        }
        let now = self.clock.now();
        let sample = Arc::new(self.memory.samples.add(sample, now));
        self.memory.newest.put(&sample, now);
        if let Some(sink) = &self.memory.influx {
            sink.put(sample);
        }
    }
}
