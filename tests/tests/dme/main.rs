//! The match engine in a real process: devices ask it, simulated cloudlets are
//! what it sends them to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod joined;
mod site;
mod walk;
