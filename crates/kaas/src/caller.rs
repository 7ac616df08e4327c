//! Whose a cluster is, and what a caller may do with it.

use selvage_kit::identity::{Identity, Kind, Machine, Role};

use crate::{Error, Result, record::Cluster};

/// A caller as clusters see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    /// Every cluster is open to it.
    pub admin: bool,
    /// May look at every cluster.
    pub reader: bool,
    /// Organisations whose clusters it may change.
    pub organisations: Vec<String>,
}

impl From<&Identity> for Caller {
    fn from(identity: &Identity) -> Self {
        let organisations = identity.organisations(Role::Developer).map(str::to_owned).collect();
        // Of machines only a controller: an operator is no developer who
        // happens to have the same name.
        let controller = identity.kind == Kind::Machine(Machine::Controller);
        let admin = identity.has_role(Role::Admin) || controller;
        let reader = identity.has_role(Role::Viewer) || identity.has_role(Role::Operator);
        Self { name: identity.name.clone(), admin, reader, organisations }
    }
}

impl Caller {
    /// Whether it may know of the cluster.
    pub fn sees(&self, cluster: &Cluster) -> bool {
        self.reader || self.owns(cluster)
    }

    fn owns(&self, cluster: &Cluster) -> bool {
        self.admin || self.organisations.contains(&cluster.organisation)
    }

    /// Refuses those who may not see the cluster as if it were not there, and
    /// those who may only look by saying so.
    pub fn check_owns(&self, cluster: &Cluster) -> Result<()> {
        if self.owns(cluster) {
            return Ok(());
        }
        if self.sees(cluster) {
            let text = format!("{} may only look at cluster {:?}", self.name, cluster.name);
            return Err(Error::Denied(text));
        }
        Err(Error::ClusterNotFound(cluster.name.clone()))
    }

    pub fn check_sees(&self, cluster: &Cluster) -> Result<()> {
        if self.sees(cluster) {
            return Ok(());
        }
        Err(Error::ClusterNotFound(cluster.name.clone()))
    }

    /// The organisation that a new cluster belongs to: the one that was named,
    /// or the only one there is.
    pub fn organisation(&self, named: &str) -> Result<String> {
        if !named.is_empty() {
            if self.admin || self.organisations.iter().any(|mine| mine == named) {
                return Ok(named.to_owned());
            }
            let text = format!("{} is no developer of organisation {named:?}", self.name);
            return Err(Error::Denied(text));
        }
        match self.organisations.as_slice() {
            [only] => Ok(only.clone()),
            _ if self.admin => Ok(String::new()),
            [] => Err(Error::Denied(format!("{} belongs to no organisation", self.name))),
            several => Err(Error::field(
                crate::ORGANISATION,
                format!("name one of your organisations in this header: {}", several.join(", ")),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_kit::identity::Grant;

    use super::*;

    fn developer(organisations: &[&str]) -> Caller {
        let grants = organisations
            .iter()
            .map(|name| Grant { role: Role::Developer, organisation: (*name).to_owned() });
        let kind = Kind::User { session: "s".into(), expires: 0 };
        Caller::from(&Identity { name: "dev".into(), kind, grants: grants.collect() })
    }

    fn cluster(organisation: &str) -> Cluster {
        let (name, organisation) = ("demo".into(), organisation.into());
        Cluster { name, organisation, ..Cluster::default() }
    }

    #[test]
    fn a_cluster_of_others_is_not_there() {
        let caller = developer(&["acme"]);
        caller.check_owns(&cluster("acme")).unwrap();
        let refused = caller.check_owns(&cluster("other")).unwrap_err();
        assert!(matches!(refused, Error::ClusterNotFound(_)));
        assert!(!caller.sees(&cluster("")));
    }

    #[test]
    fn those_who_only_look_are_told_so() {
        let kind = Kind::User { session: "s".into(), expires: 0 };
        let grants = vec![Grant { role: Role::Viewer, organisation: String::new() }];
        let viewer = Caller::from(&Identity { name: "v".into(), kind, grants });
        assert!(viewer.sees(&cluster("acme")));
        assert!(matches!(viewer.check_owns(&cluster("acme")), Err(Error::Denied(_))));
    }

    #[test]
    fn a_new_cluster_belongs_to_whoever_makes_it() {
        assert_eq!(developer(&["acme"]).organisation("").unwrap(), "acme");
        let several = developer(&["a", "b"]);
        assert!(matches!(several.organisation(""), Err(Error::Invalid(_))));
        assert_eq!(several.organisation("b").unwrap(), "b");
        assert!(matches!(several.organisation("c"), Err(Error::Denied(_))));
        let operator = Machine::Cloudlet { operator: "tmus".into(), name: "c".into() };
        let cloudlet = Caller::from(&Identity::machine(operator));
        assert!(matches!(cloudlet.organisation(""), Err(Error::Denied(_))));
        assert!(!cloudlet.sees(&cluster("tmus")), "a developer of the same name is another");
        let controller = Caller::from(&Identity::machine(Machine::Controller));
        assert_eq!(controller.organisation("").unwrap(), "");
    }
}
