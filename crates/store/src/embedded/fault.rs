//! Turning what redb reports, or how it stops, into our own errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Names the file in messages; its path is added where it is known.
const FILE: &str = "data file";

pub(super) fn storage(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(detail) => Error::corrupt(FILE, detail),
        redb::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Error::corrupt(FILE, error.to_string())
        }
        redb::Error::Io(error) => Error::io("input or output on the data file failed", error),
        redb::Error::PreviousIo => {
            Error::Failed { reason: "an earlier read or write on the data file failed".to_owned() }
        }
        redb::Error::DatabaseAlreadyOpen => {
            Error::Locked { path: FILE.into(), holder: "another program".to_owned() }
        }
        redb::Error::DatabaseClosed => Error::Closed,
        redb::Error::UpgradeRequired(found) => Error::corrupt(
            FILE,
            format!("its page layout has version {found}, which this program does not read"),
        ),
        redb::Error::RepairAborted => Error::corrupt(FILE, "it could not be repaired"),
        redb::Error::ValueTooLarge(found) => {
            Error::TooLarge { what: "value", found, limit: crate::types::MAX_VALUE_BYTES }
        }
        error @ (redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableIsNotMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableDoesNotExist(_)) => Error::corrupt(FILE, error.to_string()),
        other => Error::internal(other.to_string()),
    }
}

/// Runs something that reads or writes the file. A damaged page can make redb
/// stop with a panic; that becomes an error here.
pub(super) fn contain<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = panic_text(payload.as_ref());
        Err(Error::corrupt(FILE, format!("reading it came to a halt: {text}")))
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no reason given".to_owned())
}

/// The error and everything below it, for the one place that keeps it.
pub(super) fn chain(error: &Error) -> String {
    selvage_api::chain(error)
}
