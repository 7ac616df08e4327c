//! Whole cloudlets on real parts: several of them on machines of their own
//! with a network that is cut, one whose apps keep data on volumes, one whose
//! ports speak TLS, one whose crm is killed, and one that is taken down.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod down;
mod https;
mod killed;
mod network;
mod partition;
mod volumes;
