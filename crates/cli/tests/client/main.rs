//! The client commands against servers of the contracts in this process, over
//! TLS, plain TCP and unix sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod call;
mod contexts;
mod credentials;
mod failures;
mod fake;
mod harness;
mod join;
mod login;
mod people;
