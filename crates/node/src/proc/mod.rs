//! Readers of `/proc` for processes and memory.

mod meminfo;
mod redact;
mod scanner;
mod snapshot;
mod stat;

pub use meminfo::meminfo;
pub use redact::redact;
pub use scanner::{Limits, Scanner};
pub use stat::{Stat, stat};
