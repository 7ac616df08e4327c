//! Operations, reconcilers and the service, against the embedded store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cancel;
mod engines;
mod follow;
mod keyed;
mod lifecycle;
mod proof;
mod random;
mod reconcile;
mod scope;
mod service;
mod support;
