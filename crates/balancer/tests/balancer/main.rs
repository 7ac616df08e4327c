//! The balancer on real sockets. Every test has a loopback address of its
//! own, so that ports never meet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod health;
mod http;
mod publish;
mod tcp;
mod tls;
mod udp;
mod upgrade;
