//! The agents' side of the edge contract: what the crm of a cloudlet receives
//! from a controller, what it reports, and the words and states for it;
//! [`mirror`], where agents keep what they were told.
//!
//! The crm that runs things and the simulated one stand on this, a match engine
//! on the mirror alone. What they do about what they receive is not known here.

mod desk;
mod image_path;
pub mod mirror;

pub use desk::Desk;
pub use image_path::{image_path_part, registry_folder};
use selvage_api::edgeproto::TrackedState;

/// What an operation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// A ClusterInst.
    Cluster,
    /// An AppInst.
    Instance,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// To make it.
    Create,
    /// To change it.
    Update,
    /// To remove it.
    Delete,
}

impl Operation {
    /// The state while it is under way.
    pub fn busy(self) -> TrackedState {
        match self {
            Self::Create => TrackedState::Creating,
            Self::Update => TrackedState::Updating,
            Self::Delete => TrackedState::Deleting,
        }
    }

    /// The state when it has failed.
    pub fn failed(self) -> TrackedState {
        match self {
            Self::Create => TrackedState::CreateError,
            Self::Update => TrackedState::UpdateError,
            Self::Delete => TrackedState::DeleteError,
        }
    }

    /// What a controller asks for that has an object in this state, and
    /// whether it believes that the work has begun.
    pub fn asked_by(state: TrackedState) -> Option<(Self, bool)> {
        match state {
            TrackedState::CreateRequested => Some((Self::Create, false)),
            TrackedState::UpdateRequested => Some((Self::Update, false)),
            TrackedState::DeleteRequested => Some((Self::Delete, false)),
            TrackedState::Creating => Some((Self::Create, true)),
            TrackedState::Updating => Some((Self::Update, true)),
            TrackedState::Deleting => Some((Self::Delete, true)),
            _ => None,
        }
    }

    /// How the texts of its failures begin; clients know them.
    pub fn failure(self, what: What) -> &'static str {
        match (what, self) {
            (What::Cluster, Self::Create) => "Create failed",
            (What::Cluster, Self::Update) => "update failed",
            (What::Cluster, Self::Delete) => "Delete failed",
            (What::Instance, Self::Create) => "Create App Inst failed",
            (What::Instance, Self::Update) => "Update App Inst failed",
            (What::Instance, Self::Delete) => "Delete App Inst failed",
        }
    }
}
