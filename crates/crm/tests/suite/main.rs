//! The crm with real containers and machines: runc, containerd, QEMU, network
//! namespaces, bridges, and a controller's end of notify over a real socket.
//! Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clusters;
mod confined;
mod conformance;
mod containers;
mod crashes;
mod egress;
mod faults;
mod forwarding;
mod kubernetes;
mod machines;
mod power;
mod registry;
mod shell;
mod support;
mod updates;

use selvage_testkit::containers as real;
