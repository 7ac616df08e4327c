//! Faults to inject.

use std::time::Duration;

use parking_lot::Mutex;
use selvage_notify::ObjectKey;

use crate::{ObjectKind, Verb};

/// Fault of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Fails with these errors.
    Fail {
        /// Errors that are reported, each after the usual words.
        errors: Vec<String>,
        /// True if a create leaves something on the infrastructure, and a delete
        /// removes something from it.
        residue: bool,
    },
    /// The request is ignored.
    Silent,
    /// Work begins and never ends.
    Stall,
    /// Takes that much longer.
    Late(Duration),
    /// The connection breaks after the beginning was reported.
    Disconnect,
    /// The crm dies after the beginning was reported, and starts again.
    Crash {
        /// True if it finds what is there on its infrastructure.
        remember: bool,
    },
}

/// Rule that makes operations fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// Kind of the objects.
    pub kind: ObjectKind,
    /// Verb that fails.
    pub verb: Verb,
    /// Only of the object whose key contains this; empty for all.
    pub key_contains: String,
    /// Number of times; `None` for ever.
    pub times: Option<u32>,
    /// Kind of the failure.
    pub fault: Fault,
}

impl FaultRule {
    /// Once, for whatever object comes first.
    pub fn once(kind: ObjectKind, verb: Verb, fault: Fault) -> Self {
        Self { kind, verb, key_contains: String::new(), times: Some(1), fault }
    }

    /// Creates a rule for all objects, without an end.
    pub fn always(kind: ObjectKind, verb: Verb, fault: Fault) -> Self {
        Self { times: None, ..Self::once(kind, verb, fault) }
    }

    /// Only of objects whose canonical key contains this text.
    #[must_use]
    pub fn of(mut self, text: &str) -> Self {
        self.key_contains = text.to_owned();
        self
    }
}

#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<FaultRule>>);

impl Faults {
    pub(crate) fn add(&self, rule: FaultRule) {
        self.0.lock().push(rule);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// The fault of an operation that begins now, by the oldest rule that
    /// holds.
    pub(crate) fn take(&self, kind: ObjectKind, verb: Verb, key: &ObjectKey) -> Option<Fault> {
        let mut rules = self.0.lock();
        let found = rules.iter_mut().find(|rule| {
            (rule.kind, rule.verb) == (kind, verb)
                && rule.times != Some(0)
                && key.text().contains(&rule.key_contains)
        })?;
        if let Some(times) = &mut found.times {
            *times -= 1;
        }
        let fault = found.fault.clone();
        rules.retain(|rule| rule.times != Some(0));
        Some(fault)
    }
}
