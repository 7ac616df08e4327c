//! The agents' side of the edge contract: what the crm of a cloudlet receives
//! from a controller, what it reports, and the words and states for it;
//! [`mirror`], where agents keep what they were told.
//!
//! The crm that runs things and the simulated one stand on this, a match engine
//! on the mirror alone. What they do about what they receive is not known here.

mod caches;
mod image_path;
pub mod mirror;
mod verb;

pub use caches::AgentCaches;
pub use image_path::{image_path_part, registry_folder};
pub use verb::{ObjectKind, Verb};
