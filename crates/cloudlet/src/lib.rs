//! The agents' side of the edge contract: [`AgentCaches`], what the crm of a cloudlet
//! receives from a controller and what it reports; [`mirror`], where agents keep
//! what they were told.
//!
//! The crm that runs things and the simulated one stand on this, a match engine
//! on the mirror. What they do about what they receive is not known here; texts and
//! states that controllers share with them are in `selvage-edge`.

mod caches;
pub mod mirror;
mod site;

pub use caches::AgentCaches;
pub use site::SiteInstances;
