//! Real clusters of Kubernetes' own programs, on machines of this host. Needs
//! root and the folder that `./dev kubernetes` makes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod authority;
mod cluster;
mod lab;
mod one_machine;
mod three_planes;
mod two_networks;
