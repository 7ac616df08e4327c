//! The crm with real containers: runc, network namespaces, bridges, and a
//! controller's end of notify over a real socket. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod containers;
mod crashes;
mod support;
