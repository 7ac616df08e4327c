//! Testkit: code that tests of several crates need. A dev-dependency, and of the
//! packages that hold nothing but tests and benchmarks a dependency; no program
//! that is shipped contains it (`tests/tests/layers.rs` keeps this true).
//!
//! Without features it needs tokio alone. `etcd` and `containers` bring real
//! servers, for crates whose tests start some.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "containers")]
pub mod containers;
#[cfg(feature = "etcd")]
pub mod etcd;
mod parts;
mod ports;
mod wait;

pub use parts::{find, say_skipped, skip};
pub use ports::free_port;
pub use wait::{TIMEOUT, blocking, wait_for, wait_ok, wait_until, within};
