//! The agents' side of the edge contract: what the crm of a cloudlet receives
//! from a controller, what it reports, and the words and states for it;
//! [`mirror`], where agents keep what they were told.
//!
//! The crm that runs things and the simulated one stand on this, a match engine
//! on the mirror and on what counts as serving. What they do about what they
//! receive is not known here.

mod caches;
mod image_path;
pub mod mirror;
mod names;
mod serving;
mod site;
mod verb;

pub use caches::AgentCaches;
pub use image_path::{image_path_part, registry_folder};
pub use names::{app_label, cloudlet_domain, dns_label, kubernetes_name};
pub use serving::is_serving;
pub use site::SiteInstances;
pub use verb::{ObjectKind, Verb};
