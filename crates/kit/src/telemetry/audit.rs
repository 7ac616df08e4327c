//! Lines of the audit log for whoever keeps them, besides the log itself. They
//! are passed on whatever the log's filter says.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, filter::filter_fn, layer::Context, registry::LookupSpan};

/// The target of events that are lines of the audit log.
const TARGET: &str = "audit";
/// Lines that wait for whoever keeps them; more are lost, and that is told.
const WAITING: usize = 16_384;

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Time at which it was written.
    pub time: Timestamp,
    /// "call", "refused", "logged in" and the like.
    pub message: String,
    /// Fields by name.
    pub fields: BTreeMap<&'static str, String>,
    /// Lines before this one that were lost because nobody took them.
    pub lost: u64,
}

#[derive(Default)]
struct Keeper {
    sender: Option<mpsc::Sender<AuditLine>>,
    lost: u64,
}

static KEEPER: LazyLock<Mutex<Keeper>> = LazyLock::new(Mutex::default);

/// The lines from now on, for the one who keeps them.
pub fn audit_lines() -> mpsc::Receiver<AuditLine> {
    let (sender, receiver) = mpsc::channel(WAITING);
    KEEPER.lock().sender = Some(sender);
    receiver
}

/// Passes lines on.
pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    Pass.with_filter(filter_fn(|metadata| metadata.target() == TARGET))
}

struct Pass;

impl<S: Subscriber> Layer<S> for Pass {
    #[allow(clippy::disallowed_methods, reason = "audit lines have the time of the machine")]
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut keeper = KEEPER.lock();
        let lost = keeper.lost;
        let Some(sender) = &keeper.sender else { return };
        let mut line = AuditLine {
            time: Timestamp::now(),
            message: String::new(),
            fields: BTreeMap::new(),
            lost,
        };
        event.record(&mut line);
        match sender.try_send(line) {
            Ok(()) => keeper.lost = 0,
            Err(mpsc::error::TrySendError::Full(_)) => keeper.lost += 1,
            Err(mpsc::error::TrySendError::Closed(_)) => keeper.sender = None,
        }
    }
}

impl AuditLine {
    fn put(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => drop(self.fields.insert(name, value)),
        }
    }
}

impl Visit for AuditLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn lines_are_passed_on_and_nothing_else() {
        let mut lines = audit_lines();
        let subscriber = tracing_subscriber::registry().with(layer());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("no line");
            let code = tonic::Code::NotFound;
            tracing::info!(target: "audit", method = "a.B/C", who = %"ann", ?code, "call");
        });
        let line = lines.try_recv().unwrap();
        assert_eq!(line.message, "call");
        let fields: Vec<_> =
            line.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(fields, [("code", "NotFound"), ("method", "a.B/C"), ("who", "ann")]);
        assert!(lines.try_recv().is_err());
    }
}
