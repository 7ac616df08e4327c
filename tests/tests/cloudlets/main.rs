//! Whole cloudlets on real parts: several of them on machines of their own
//! with a network that is cut, one whose apps keep data on volumes, one whose
//! ports speak TLS, and one whose crm is killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod https;
mod killed;
mod lab;
mod network;
mod partition;
mod volumes;
