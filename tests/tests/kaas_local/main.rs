//! Real clusters of Kubernetes' own programs on machines of this host, by the
//! command line alone. Needs root and the folder that `./dev kubernetes` makes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod control_planes;
mod life;
mod site;
