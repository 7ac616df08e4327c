//! Lines of the audit log for whoever keeps them, besides the log itself. They
//! are passed on whatever the log's filter says.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, filter::filter_fn, layer::Context, registry::LookupSpan};

/// The target of events that are lines of the audit log.
const TARGET: &str = "audit";
/// The span of a call and its field with the id of the request, which a line of the call
/// has where it names none itself.
const CALL: &str = "call";
const REQUEST_ID: &str = "request_id";
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
    Pass.with_filter(filter_fn(|metadata| {
        metadata.target() == TARGET || (metadata.is_span() && metadata.name() == CALL)
    }))
}

/// Id of the request that a span is of.
struct RequestId(String);

impl Visit for RequestId {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == REQUEST_ID {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

struct Pass;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Pass {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut request = RequestId(String::new());
        attributes.record(&mut request);
        span.extensions_mut().insert(request);
    }

    #[allow(clippy::disallowed_methods, reason = "audit lines have the time of the machine")]
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
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
        let spans = context.event_scope(event).into_iter().flatten();
        for span in spans {
            if let Some(RequestId(id)) = span.extensions().get() {
                line.fields.entry(REQUEST_ID).or_insert_with(|| id.clone());
            }
        }
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
        // Those of a call have the id of its request.
        let subscriber = tracing_subscriber::registry().with(layer());
        tracing::subscriber::with_default(subscriber, || {
            let _call =
                tracing::info_span!("call", method = "a.B/C", request_id = "id-7").entered();
            let _inner = tracing::info_span!("inner", request_id = "another").entered();
            tracing::info!(target: "audit", action = "user.add", "done");
            tracing::info!(target: "audit", request_id = "its own", "call");
        });
        let mut id = || lines.try_recv().unwrap().fields.remove("request_id");
        assert_eq!((id().as_deref(), id().as_deref()), (Some("id-7"), Some("its own")));
    }
}
