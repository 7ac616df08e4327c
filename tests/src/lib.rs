//! Helpers of whole-system tests: a real `selvage` process with a data
//! directory of its own, and clients that reach it as strangers would.
//!
//! Nothing here looks inside the process: what a test knows it has from the
//! ready file, the wire, the log and the exit code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

pub mod client;
pub mod cloudlet;
pub mod fleet;
pub mod process;
pub mod real;

pub use client::Client;
pub use process::Selvage;
