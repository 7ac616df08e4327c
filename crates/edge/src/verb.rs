//! Verbs of operations on instances, shared by controllers and agents.

use selvage_api::edgeproto::TrackedState;

/// Kind of an object that agents work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A ClusterInst.
    Cluster,
    /// An AppInst.
    Instance,
}

/// Verb of an operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Creation of an object.
    Create,
    /// Change of an object.
    Update,
    /// Deletion of an object.
    Delete,
}

impl Verb {
    /// State by which an agent is asked for it.
    pub fn requested(self) -> TrackedState {
        match self {
            Self::Create => TrackedState::CreateRequested,
            Self::Update => TrackedState::UpdateRequested,
            Self::Delete => TrackedState::DeleteRequested,
        }
    }

    /// State while it is under way.
    pub fn busy(self) -> TrackedState {
        match self {
            Self::Create => TrackedState::Creating,
            Self::Update => TrackedState::Updating,
            Self::Delete => TrackedState::Deleting,
        }
    }

    /// State when it has failed.
    pub fn failed(self) -> TrackedState {
        match self {
            Self::Create => TrackedState::CreateError,
            Self::Update => TrackedState::UpdateError,
            Self::Delete => TrackedState::DeleteError,
        }
    }

    /// State when it is done.
    pub fn reached(self) -> TrackedState {
        match self {
            Self::Create | Self::Update => TrackedState::Ready,
            Self::Delete => TrackedState::NotPresent,
        }
    }

    /// Returns the verb that an object in a transient state is in the middle
    /// of.
    pub fn of(state: TrackedState) -> Option<Self> {
        match state {
            TrackedState::DeletePrepare => Some(Self::Delete),
            other => Self::asked_by(other).map(|(verb, _)| verb),
        }
    }

    /// Returns the verb that a controller asks for that has an object in this
    /// state, and whether it believes that the work has begun.
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

    /// Name as texts begin with it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Update => "Update",
            Self::Delete => "Delete",
        }
    }

    /// Beginning of the texts of its failures; clients know them.
    pub fn failure(self, kind: ObjectKind) -> &'static str {
        match (kind, self) {
            (ObjectKind::Cluster, Self::Create) => "Create failed",
            (ObjectKind::Cluster, Self::Update) => "update failed",
            (ObjectKind::Cluster, Self::Delete) => "Delete failed",
            (ObjectKind::Instance, Self::Create) => "Create App Inst failed",
            (ObjectKind::Instance, Self::Update) => "Update App Inst failed",
            (ObjectKind::Instance, Self::Delete) => "Delete App Inst failed",
        }
    }
}
