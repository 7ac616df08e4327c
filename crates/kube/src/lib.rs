//! Client of Kubernetes clusters, shared by the parts that use one.
//!
//! A [`Connection`] is made from a kubeconfig file, a kubeconfig text or from
//! credentials, and hands out clients; [`Objects`] reads, applies, patches,
//! watches and removes objects of one kind; [`Pods`] runs commands and reads
//! logs; [`Nodes`] cordons and drains; [`Rollout`] waits until what was applied
//! runs and says why it does not. Errors carry a [`selvage_api::Code`] and the
//! API server's own text.
//!
//! Everything not wrapped here is used from the `kube` and `k8s_openapi` crates,
//! whose versions this crate decides.

mod connection;
mod error;
mod node;
mod object;
mod pod;
mod problem;
pub mod quantity;
mod rollout;

pub use k8s_openapi;
pub use kube;

pub use self::{
    connection::{Connection, Credentials, metrics, ready},
    error::{Context, Error, Result, ignore_not_found},
    node::Nodes,
    object::{FIELD_MANAGER, Objects, Reference, name, resource},
    pod::{Pods, is_running, main_container},
    rollout::{Outcome, Rollout},
};
