//! Texts, names and states that both ends of the edge contract share: controllers, the agents
//! of cloudlets, match engines and clients read and write them alike.
//!
//! Nothing here does anything: pure functions and names over the types of
//! `selvage-api`. Keys in their canonical text are `selvage_api::object::Key`.

pub mod access_ports;
pub mod cloudlet_kind;
pub mod deployment;
mod image_path;
pub mod measurement;
mod names;
mod serving;
mod verb;

pub use image_path::{image_path_part, registry_folder};
pub use names::{
    AUTO_CLUSTER, app_label, auto_cluster, cloudlet_domain, dns_label, is_auto_cluster,
    kubernetes_name,
};
pub use serving::is_serving;
pub use verb::{ObjectKind, Verb};
