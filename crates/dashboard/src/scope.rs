//! Scope of what a caller may see.

use std::collections::BTreeSet;

use selvage_api::selvage::dashboard::Object;
use selvage_kit::identity::{Identity, Kind, Machine, Role};
use tonic::Request;

/// Objects that a caller may see.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    Everything,
    /// Those of organisations; with what belongs to nobody, or without.
    Some {
        organisations: BTreeSet<String>,
        shared: bool,
    },
}

impl Scope {
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        let nobody = Identity::anonymous();
        Self::of_identity(request.extensions().get().unwrap_or(&nobody))
    }

    pub(crate) fn of_identity(caller: &Identity) -> Self {
        let controller = caller.kind == Kind::Machine(Machine::Controller);
        if controller || caller.has_role(Role::Admin) || caller.has_role(Role::Viewer) {
            return Self::Everything;
        }
        let organisations = caller.grants.iter().map(|grant| grant.organisation.clone());
        let organisations = organisations.filter(|name| !name.is_empty()).collect();
        Self::Some { organisations, shared: caller.has_role(Role::Operator) }
    }

    /// Returns true if the caller may see the object.
    pub(crate) fn sees(&self, object: &Object) -> bool {
        match self {
            Self::Everything => true,
            Self::Some { organisations, shared } => match object.organisation.as_str() {
                "" => *shared,
                organisation => organisations.contains(organisation),
            },
        }
    }

    /// Returns true if the caller may see objects that belong to no organisation.
    pub(crate) fn sees_shared(&self) -> bool {
        matches!(self, Self::Everything | Self::Some { shared: true, .. })
    }
}
