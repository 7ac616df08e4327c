//! What the kernel tells under `/proc` of processes and memory.

mod meminfo;
mod redact;
mod scanner;
mod stat;
mod told;

pub use meminfo::meminfo;
pub use redact::redact;
pub use scanner::{Limits, Scanner};
pub use stat::{Stat, stat};
