//! Everything that is promised about a store, tried on real files and on real
//! etcd servers. One program, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod conformance;
mod crash;
mod embedded;
mod faults;
mod garbage;
mod support;
mod table;
mod transfer;
