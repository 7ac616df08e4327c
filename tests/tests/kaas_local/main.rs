//! Real clusters of Kubernetes' own programs on machines of this host, by the
//! command line alone. Needs root and the folder that `./dev kubernetes` makes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod by_ssh;
mod faults;
mod flow;
mod hibernate;
mod joined;
mod kubectl;
mod life;
mod load;
mod remedy;
mod restore;
mod rotate;
mod site;
mod skew;
mod upgrade;
mod volumes;
