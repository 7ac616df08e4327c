//! The kernel's log: its records, as text and as JSON, and those who follow
//! it.

mod query;
mod record;
mod ring;
mod stream;
mod time;

pub use query::{BadQuery, Query};
pub use record::{Malformed, Record, parse};
pub use stream::{Kmsg, OpenError};
pub use time::Boot;
