//! Whole cloudlets on real parts: several of them on machines of their own
//! with a network that is cut, and one whose apps keep data on volumes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod lab;
mod partition;
mod volumes;
