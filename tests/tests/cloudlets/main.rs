//! Whole cloudlets on real parts: several of them on machines of their own
//! with a network that is cut, one whose apps keep data on volumes, and one whose
//! ports speak TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod https;
mod lab;
mod partition;
mod volumes;
