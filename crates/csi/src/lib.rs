//! Volumes of pods from lvmd: a driver of the Container Storage Interface, and
//! what makes, grows and removes volumes for claims, and their snapshots.
//!
//! A [`Driver`] runs on every machine that runs pods. It registers with the
//! kubelet of its machine and mounts volumes for it, and it does for the claims
//! of pods on its machine and for snapshots of its volumes what
//! external-provisioner, -resizer, -snapshotter and node-driver-registrar do
//! elsewhere. lvmd is spoken to by its contract, on a
//! socket.
//!
//! File systems on a volume are made here alone: lvmd knows nothing of them,
//! and nothing here knows how volumes are kept.

#![allow(clippy::disallowed_methods, reason = "times are written into objects of Kubernetes")]

#[cfg(test)]
mod cluster;
mod controller;
mod driver;
mod error;
mod filesystem;
#[doc(hidden)]
pub mod fuzz;
mod identity;
mod lvmd;
mod mounts;
mod node;
mod provision;
mod registration;
mod serve;
mod snapshot;
mod snapshotter;
#[cfg(test)]
mod tests;
mod volume;

#[allow(clippy::all, unreachable_pub, unused_qualifications, rustdoc::all, missing_docs)]
#[allow(dead_code)]
mod wire {
    pub mod csi {
        include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    }
    pub mod registration {
        include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    }
}

pub use driver::{Driver, Settings};
pub use error::{Error, Result};

/// Name of the driver.
pub const DRIVER: &str = "lvm.selvage.io";
/// Label of nodes by which volumes find theirs.
pub const TOPOLOGY: &str = "topology.selvage.io/node";
/// Parameter of a StorageClass that names the device class of lvmd.
pub const DEVICE_CLASS: &str = "selvage.io/device-class";
