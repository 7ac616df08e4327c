//! Notify over real sockets: the original's tests replayed, its habits
//! tolerated, and what ours does better.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod basic;
mod crm;
mod hostile;
mod quirks;
mod reconnect;
mod resume;
mod support;
mod tls;
mod tree;
