//! Deployments: what an App says it is to be run by.

/// Objects of Kubernetes, by a manifest.
pub const KUBERNETES: &str = "kubernetes";
/// A chart, which ends up in Kubernetes too.
pub const HELM: &str = "helm";
/// A container.
pub const DOCKER: &str = "docker";
/// A virtual machine, which needs no cluster.
pub const VM: &str = "vm";
