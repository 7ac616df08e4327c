//! The crm with real containers and machines: runc, containerd, QEMU, network
//! namespaces, bridges, and a controller's end of notify over a real socket.
//! Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clusters;
mod conformance;
mod containers;
mod crashes;
mod egress;
mod faults;
mod forwarding;
mod kubernetes;
mod machines;
#[path = "../../../runtime/tests/real/mod.rs"]
mod real;
mod registry;
mod shell;
mod support;
mod updates;
