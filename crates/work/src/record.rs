//! Records in the store. Times are milliseconds since 1970.
//!
//! Three types: the operation, the lock that an operation holds on its object,
//! and the driver, a process that drives operations. A driver's record hangs
//! on a lease, so that it is gone soon after its process. Every start of a
//! process is a session of its own.
//!
//! Whoever drives an operation writes it only while its record carries its
//! generation. Taking an operation over raises the generation, so of two who
//! both believe to drive it only one can write.

use std::fmt;

use selvage_api::Code;
use selvage_api::selvage::operations as wire;
use selvage_store::Record;
use selvage_store::clock::Millis;

use crate::{Failure, Running};

/// Longest line of progress that is stored; the rest is cut off.
const LINE_BYTES: usize = 2048;

pub(crate) const STATE_INDEX: &str = "state";
pub(crate) const ACTIVE: &str = "active";
pub(crate) const ENDED: &str = "ended";
pub(crate) const KEY_INDEX: &str = "key";

/// A line of progress. Numbered without gaps; after a crash a number may be
/// given again, then by a later generation.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Line {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) generation: u64,
    #[prost(string, tag = "3")]
    pub(crate) text: String,
}

impl Line {
    /// The line as it is stored.
    pub(crate) fn shortened(mut self) -> Self {
        if self.text.len() > LINE_BYTES {
            let cut = (0..=LINE_BYTES).rev().find(|at| self.text.is_char_boundary(*at));
            self.text.truncate(cut.unwrap_or_default());
            self.text.push('…');
        }
        self
    }
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct OperationRecord {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) kind: String,
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    #[prost(string, tag = "4")]
    pub(crate) organisation: String,
    #[prost(string, tag = "5")]
    pub(crate) started_by: String,
    #[prost(enumeration = "wire::State", tag = "6")]
    pub(crate) state: i32,
    /// The step being taken or undone; empty once it ended.
    #[prost(string, tag = "7")]
    pub(crate) step: String,
    /// Steps to be undone, in the order in which they were done.
    #[prost(string, repeated, tag = "8")]
    pub(crate) done: Vec<String>,
    /// Steps that were jumped over.
    #[prost(string, repeated, tag = "9")]
    pub(crate) skipped: Vec<String>,
    #[prost(uint32, tag = "10")]
    pub(crate) steps_total: u32,
    #[prost(string, tag = "11")]
    pub(crate) error: String,
    #[prost(int32, tag = "12")]
    pub(crate) error_code: i32,
    #[prost(bool, tag = "13")]
    pub(crate) cancelling: bool,
    #[prost(string, tag = "14")]
    pub(crate) cancelled_by: String,
    #[prost(uint64, tag = "15")]
    pub(crate) started_at: Millis,
    #[prost(uint64, tag = "16")]
    pub(crate) updated_at: Millis,
    #[prost(uint64, tag = "17")]
    pub(crate) ended_at: Millis,
    /// Time after which it is undone if it has not ended; 0 for never.
    #[prost(uint64, tag = "18")]
    pub(crate) deadline: Millis,
    #[prost(string, tag = "19")]
    pub(crate) driver: String,
    #[prost(string, tag = "20")]
    pub(crate) session: String,
    #[prost(uint64, tag = "21")]
    pub(crate) generation: u64,
    /// The last lines of progress.
    #[prost(message, repeated, tag = "22")]
    pub(crate) lines: Vec<Line>,
    /// The operation's own state. Empty once it ended.
    #[prost(bytes = "vec", tag = "23")]
    pub(crate) data: Vec<u8>,
    /// Number of failed attempts to undo the current step, and the last error.
    #[prost(uint32, tag = "24")]
    pub(crate) undo_failures: u32,
    #[prost(string, tag = "25")]
    pub(crate) undo_error: String,
    /// The steps that could not be undone, if it was given up.
    #[prost(string, tag = "26")]
    pub(crate) stuck: String,
    /// Number of writes, to tell late progress from new ones.
    #[prost(uint64, tag = "27")]
    pub(crate) writes: u64,
}

impl Record for OperationRecord {
    const KIND: &'static str = "work-operation";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.id.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        let state = if self.is_active() { ACTIVE } else { ENDED };
        vec![(STATE_INDEX, state.to_owned()), (KEY_INDEX, self.key.clone())]
    }
}

impl fmt::Debug for OperationRecord {
    /// Writes the record without the state, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationRecord")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("key", &self.key)
            .field("state", &self.state())
            .field("step", &self.step)
            .field("driver", &self.driver)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl OperationRecord {
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state(), wire::State::Running | wire::State::Undoing)
    }

    /// Returns the failure that it ended with, or is going to end with.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if self.error.is_empty() && self.error_code == 0 {
            return None;
        }
        let code =
            Code::from_grpc(tonic::Code::from_i32(self.error_code)).unwrap_or(Code::Internal);
        Some(Failure::new(code, self.error_text()))
    }

    fn error_text(&self) -> String {
        match self.stuck.as_str() {
            "" => self.error.clone(),
            steps => format!("{}; stuck: {steps} not undone: {}", self.error, self.undo_error),
        }
    }

    /// Returns its result, once it has ended.
    pub(crate) fn outcome(&self) -> Option<Result<(), Failure>> {
        match self.state() {
            wire::State::Succeeded => Some(Ok(())),
            wire::State::Failed => Some(Err(self
                .failure()
                .unwrap_or_else(|| Failure::new(Code::Internal, "failed without a reason")))),
            _ => None,
        }
    }

    pub(crate) fn running(&self) -> Running {
        Running { id: self.id.clone(), kind: self.kind.clone(), key: self.key.clone() }
    }

    pub(crate) fn to_wire(&self) -> wire::Operation {
        wire::Operation {
            id: self.id.clone(),
            kind: self.kind.clone(),
            key: self.key.clone(),
            organisation: self.organisation.clone(),
            started_by: self.started_by.clone(),
            state: self.state,
            step: self.step.clone(),
            steps_done: u32::try_from(self.done.len()).unwrap_or(u32::MAX),
            steps_total: self.steps_total,
            error: self.error_text(),
            error_code: self.error_code,
            cancelling: self.cancelling,
            started_at: Some(timestamp(self.started_at)),
            updated_at: Some(timestamp(self.updated_at)),
            driver: self.driver.clone(),
        }
    }
}

fn timestamp(millis: Millis) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or_default(),
    }
}

/// Lock on an object, held while an operation works on it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Lock {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) operation: String,
}

impl Record for Lock {
    const KIND: &'static str = "work-lock";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.key.clone()
    }
}

/// A process that drives operations.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Driver {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) session: String,
    #[prost(uint64, tag = "3")]
    pub(crate) started_at: Millis,
}

impl Record for Driver {
    const KIND: &'static str = "work-driver";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_between_characters() {
        for head in 0..4 {
            let text = format!("{}{}", "a".repeat(head), "€".repeat(LINE_BYTES));
            let line = Line { text, ..Line::default() }.shortened();
            assert!(line.text.ends_with("€…"), "{head}");
            assert!(line.text.len() <= LINE_BYTES + '…'.len_utf8());
        }
        let short = Line { text: "short".into(), ..Line::default() };
        assert_eq!(short.clone().shortened(), short);
    }

    #[test]
    fn the_state_of_an_operation_does_not_show() {
        let record = OperationRecord { data: b"canary".to_vec(), ..OperationRecord::default() };
        let shown = format!("{record:?}");
        assert!(!shown.contains("canary") && !shown.contains("99, 97, 110"), "{shown}");
    }
}
