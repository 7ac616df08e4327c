//! Killed at random points, two hundred times with those of the daemon: no
//! repository is hurt, little is sent twice, half a restore is mended.
//!
//! `SELVAGE_CRASHES` says how often for each place, `SELVAGE_CRASH_SEED`
//! repeats a run. What was drawn is printed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod matrix;
mod mortal;
#[path = "../common/s3.rs"]
mod store;
