//! Components of Kubernetes on one machine: etcd, the control plane, containerd,
//! kubelet, kube-proxy, CoreDNS.
//!
//! A [`MemberAgent`] is told what the machine has to be, keeps that on its disk
//! and makes it so, also after a restart and while nobody else can be reached.
//! Every component is a container of namespace `system` by the runtime without a
//! daemon: it outlives the agent, and whatever shows, restarts and logs
//! containers of a machine does so with etcd and kubelet too.
//!
//! One file a component below `component`, each with the same functions:
//! which files it needs, its command line, how to see that it is healthy.

#![allow(
    clippy::disallowed_methods,
    reason = "files and processes of this machine are as old as its clock says"
)]

mod agent;
mod artifact;
mod component;
mod error;
mod etcd_members;
mod etcd_restore;
mod images;
mod keys;
pub mod machine;
mod member;
mod network;
mod pause;
mod probe;
mod reset;
mod service;
mod spec;
mod status;
mod volumes;

pub use agent::{MemberAgent, Settings};
pub use artifact::{artifact_folder, missing, needed};
pub use error::{Error, Result};
pub use member::Lvmd;
pub use volumes::PodVolumes;
