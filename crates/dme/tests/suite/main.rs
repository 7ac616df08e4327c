//! The engine by itself, and at the lower end of a real notify stream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cookies;
mod lab;
mod location;
mod mirror;
mod rules;
mod tokens;
mod upstream;
mod vectors;
mod wire;
