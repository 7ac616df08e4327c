//! Kinds of cloudlets: what instances are there.

/// Containers of a machine.
pub const CONTAINERS: &str = "containers";
/// Pods of Kubernetes clusters.
pub const KUBERNETES: &str = "kubernetes";
/// Virtual machines.
pub const MACHINES: &str = "vm";
