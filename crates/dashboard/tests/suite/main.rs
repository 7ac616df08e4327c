//! The dashboard from outside its crate.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// What was skipped, and the steps of chaos, are for whoever reads the log.
#![allow(clippy::print_stdout)]

mod bad_input;
#[path = "../../../../tests/shared/ceph.rs"]
mod ceph;
mod ceph_rest;
mod golden;
mod kept;
mod lab;
mod overview;
mod packaging;
mod prometheus;
mod real_ceph;
mod real_rook;
mod recorded;
mod rook;
mod stats;
