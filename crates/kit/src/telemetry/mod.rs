//! Logs and metrics.
//!
//! Logs go to standard error through `tracing`, as text for people or as JSON
//! for machines. Nothing here redacts: secrets live in types that do not show
//! themselves (`Secret`, `Redacted`) and so never arrive. What may arrive is
//! text that an attacker chose, so in the text format control characters of
//! every value are escaped: a line of the log is a line we wrote.
//!
//! Metrics are a value, [`Metrics`], that is handed to whoever counts; there is
//! no global. Every label set is known beforehand: methods come from the
//! contracts, and a path that is none of them is counted as `other`, so a
//! scanner cannot grow our memory. After its first use a method costs one hash
//! lookup and a few atomic additions a call.

mod audit;
mod collect;
mod logging;
mod metrics;

use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
};

use selvage_api::Code;
use tracing::error;

pub use self::{
    audit::{AuditLine, audit_lines},
    logging::{LogFormat, LogOptions, init},
    metrics::{CONTENT_TYPE, Metrics, OpenConnection, Protocol, RpcCall},
};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter cannot be read.
    #[error("log filter {filter:?}: {reason}; an example: info,selvage_store=debug")]
    Filter {
        /// The filter as given.
        filter: String,
        /// Reason it is refused.
        reason: String,
    },
    /// The format is none of ours.
    #[error("log format {0:?} is neither \"text\" nor \"json\"")]
    Format(String),
    /// Done twice.
    #[error("logging is set up already")]
    Twice,
}

impl Error {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Filter { .. } | Self::Format(_) => Code::InvalidArgument,
            Self::Twice => Code::Internal,
        }
    }
}

/// Sends panics to the log, and counts them. To be called after [`init`]:
/// without a log they would vanish.
pub fn install_panic_hook(metrics: &Metrics) {
    let metrics = metrics.clone();
    std::panic::set_hook(Box::new(move |panic| {
        metrics.panic();
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        let wanted = backtrace.status() == BacktraceStatus::Captured;
        let words = panic_message(panic.payload());
        error!(
            panic = words,
            location = panic.location().map(tracing::field::display),
            thread = thread.name(),
            backtrace = wanted.then(|| tracing::field::display(&backtrace)),
            "thread panicked"
        );
    }));
}

/// The words of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
