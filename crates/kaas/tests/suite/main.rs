//! The cluster service on simulated machines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod bad_input;
mod care;
mod conformance;
mod crash;
mod defects;
mod lab;
mod lifecycle;
mod maas;
mod model;
mod preview;
mod ssh;
mod wire;
