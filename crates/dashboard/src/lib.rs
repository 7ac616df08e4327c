//! The dashboard: `stats.StatsService` as existing dashboards know it, and
//! `selvage.dashboard`: one sentence, the problems and what fixes them, marks
//! that explain themselves, history, events and audit lines.
//!
//! [`source`]s are asked in the background and write to a [`Board`]; of what
//! is on it one immutable [`Snapshot`] is made whenever something changed.
//! Services read that snapshot and nothing else, so a call never waits for a
//! source, and a thousand readers cost the sources no more than one.
//!
//! Other parts are reached through their contracts; nothing here changes
//! anything.

#![allow(clippy::disallowed_methods, reason = "the age of files and answers goes by this machine")]

mod audit;
mod board;
mod daemon;
mod events;
pub mod facts;
mod journal;
mod metrics;
mod options;
mod page;
mod part;
mod radar;
pub mod rules;
mod scope;
mod series;
mod service;
mod snapshot;
pub mod source;
mod stats;
mod text;

use jiff::Timestamp;

pub use board::{Board, SourceState};
pub use daemon::DashboardPart;
pub use options::{CephOptions, Options};
pub use page::page;
pub use part::{Dashboard, Settings};
pub use rules::{RULES, Rule, Thresholds};
pub use snapshot::Snapshot;

/// The time as messages carry it.
pub(crate) fn stamp(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

/// The time that a message carries.
pub(crate) fn unstamp(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}
