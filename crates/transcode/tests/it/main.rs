//! The transcoder in front of a scripted gRPC service.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod connect;
mod documents;
mod harness;
mod properties;
mod real;
mod rest;
mod routes;
