//! The basis of every daemon of Selvage: configuration, TLS identity, who may
//! call what, and the one recipe by which a listener serves gRPC, gRPC-Web,
//! REST and Connect.
//!
//! No part's rules are here, and no state: what must survive a restart is in
//! the store, except the keys and certificates that [`pki`] keeps as files.

pub mod access;
pub mod assertion;
pub mod build;
pub mod clock;
pub mod config;
pub mod dial;
pub mod identity;
pub mod labels;
pub mod pki;
pub mod seal;
pub mod serve;
pub mod tasks;
pub mod telemetry;
