//! Counters of one stream, under the original's names.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use prost::Message;

use crate::{exchange::Exchange, frame::Frame};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one stream, or of several added up. On a server they
        /// start at zero with each connection, on a client they add up.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct StatsSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Notices sent, by short name of the type.
            pub obj_send: BTreeMap<String, u64>,
            /// Notices received, by short name of the type.
            pub obj_recv: BTreeMap<String, u64>,
        }

        #[derive(Debug, Default)]
        pub(crate) struct Stats {
            $(pub(crate) $name: AtomicU64,)*
            obj_send: Box<[AtomicU64]>,
            obj_recv: Box<[AtomicU64]>,
        }

        impl StatsSnapshot {
            /// The counters with their names, for metrics.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds another stream's counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                for (sum, part) in
                    [(&mut self.obj_send, &other.obj_send), (&mut self.obj_recv, &other.obj_recv)]
                {
                    for (name, count) in part {
                        *sum.entry(name.clone()).or_default() += count;
                    }
                }
            }
        }

        impl Stats {
            fn scalars(&self) -> StatsSnapshot {
                StatsSnapshot {
                    $($name: self.$name.load(Relaxed),)*
                    ..StatsSnapshot::default()
                }
            }
        }
    };
}

counters! {
    /// Attempts to connect. Clients only.
    tries,
    /// Connections that got through negotiation. Clients only.
    connects,
    /// Negotiations that failed.
    negotiate_errors,
    /// Times that everything was sent.
    send_all,
    /// Times that the peer said it has sent everything.
    recv_all,
    /// Notices about objects and messages sent.
    send,
    /// Notices about objects and messages received.
    recv,
    /// Bytes of all notices sent, as the stream carries them.
    send_bytes,
    /// Bytes of all notices received.
    recv_bytes,
    /// Notices that make no sense, or that could not be taken.
    recv_errors,
    /// Streams that ended while there was something to send.
    send_errors,
    /// Objects too large to be sent.
    marshal_errors,
    /// Objects that could not be read.
    unmarshal_errors,
    /// Notices of types that are not wanted.
    unknown_types,
    /// Messages dropped because too many waited.
    messages_dropped,
    /// Send-alls that sent only what changed.
    resumed,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Adds the size of a notice with what gRPC puts before it.
pub(crate) fn count_bytes(counter: &AtomicU64, frame: &Frame) {
    const PREFIX: usize = 5;
    counter.fetch_add((PREFIX + frame.encoded_len()) as u64, Relaxed);
}

impl Stats {
    pub(crate) fn new(exchange: &Exchange) -> Self {
        let zeros = |length| (0..length).map(|_| AtomicU64::new(0)).collect();
        Self {
            obj_send: zeros(exchange.sends.len()),
            obj_recv: zeros(exchange.receives.len()),
            ..Self::default()
        }
    }

    pub(crate) fn sent(&self, index: usize) {
        count(&self.send);
        if let Some(counter) = self.obj_send.get(index) {
            count(counter);
        }
    }

    pub(crate) fn received(&self, index: usize) {
        count(&self.recv);
        if let Some(counter) = self.obj_recv.get(index) {
            count(counter);
        }
    }

    pub(crate) fn snapshot(&self, exchange: &Exchange) -> StatsSnapshot {
        let sends = exchange.sends.iter().map(|out| out.kind().short_name());
        let receives = exchange.receives.iter().map(|r| r.kind().short_name());
        StatsSnapshot {
            obj_send: by_name(sends, &self.obj_send),
            obj_recv: by_name(receives, &self.obj_recv),
            ..self.scalars()
        }
    }
}

fn by_name<'a>(
    names: impl Iterator<Item = &'a str>,
    counters: &[AtomicU64],
) -> BTreeMap<String, u64> {
    names.zip(counters).map(|(name, counter)| (name.to_owned(), counter.load(Relaxed))).collect()
}
