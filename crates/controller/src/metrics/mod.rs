//! Samples that agents send: those that their sender may speak of are kept,
//! bounded in number, size and time, the oldest going first; the newest of
//! each shown to whoever watches the process; all of them handed on to a
//! database, if there is one.

pub(crate) mod newest;
mod sender;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use selvage_api::edgeproto as wire;
use selvage_notify::Stream;

use self::sender::Unwanted;
use crate::state::ControllerState;

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

    /// Number of refused samples, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Unwanted::ALL.iter().map(|why| why.label()).zip(counts)
    }
}

impl ControllerState {
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
