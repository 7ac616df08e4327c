//! A simulated crm against a controller that keeps to the contract.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controller;
mod faults;
mod life;
