//! The crm: the agent of one cloudlet. It learns from a controller which
//! clusters and instances should be on its cloudlet, makes them so with a
//! [`Platform`], leads the public ports to them, and reports how they are.
//!
//! Intent and what it has made are on disk (`intent`, `installed`):
//! it works and starts again while the controller is away, and looks at what
//! runs before it says anything. Whatever it did not finish it does again or
//! undoes; names of everything it makes follow from the keys, so that nothing
//! is lost sight of.
//!
//! Which instances there should be, and what their ports and names are, is
//! the controller's to say; containers, images and cgroups are the runtime's.

#![allow(
    clippy::disallowed_methods,
    reason = "files, containers and samples of this machine have its time"
)]

mod claim;
mod daemon;
mod error;
mod footprint;
mod installed;
mod intent;
mod metrics;
mod options;
mod part;
pub mod platform;
mod publish;
mod reconcile;
mod registries;
mod shell;
mod site;
pub mod teardown;

pub use daemon::CrmPart;
pub use error::{Error, Result};
pub use footprint::Footprint;
pub use options::{Options, RuntimeKind};
pub use part::{Crm, Settings, Status};
pub use platform::{
    ImageFolders, Platform,
    network::{Egress, Forwarding},
};
pub use registries::Registries;
pub use selvage_fetch::Policy as FetchPolicy;
pub use site::{KaasSite, Kind, Site};
