//! Ownership of clusters, and what a caller may do with them.

use selvage_kit::identity::{CLUSTER_PREFIX, Identity, Kind, Machine, Role};

use crate::{Error, Result, record::Cluster};

/// A caller as clusters see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    /// Every cluster is open to it.
    pub admin: bool,
    /// May look at every cluster.
    pub viewer: bool,
    /// May look at the clusters of developers, and at those of cloudlets of
    /// these operators.
    pub operators: Vec<String>,
    /// Organisations whose clusters it may change. That of a cloudlet is the
    /// name in its certificate, which no person can be given.
    pub organisations: Vec<String>,
    /// Stands for everybody, cloudlets too: the process runs with `--insecure`.
    pub everybody: bool,
}

/// The cloudlet that an organisation is, if it is one.
fn cloudlet(organisation: &str) -> Option<Machine> {
    let machine = Machine::parse(organisation).ok();
    machine.filter(|machine| matches!(machine, Machine::Cloudlet { .. }))
}

/// Checks that the name of a new cluster is one that its owner may give.
pub(crate) fn check_cluster_name(organisation: &str, name: &str) -> Result<()> {
    let reason = match cloudlet(organisation) {
        Some(machine) if !name.starts_with(&machine.cluster_prefix()) => {
            format!("names of clusters of {machine} begin with {}", machine.cluster_prefix())
        }
        None if name.starts_with(CLUSTER_PREFIX) => {
            format!("names that begin with {CLUSTER_PREFIX} are for clusters of cloudlets")
        }
        _ => return Ok(()),
    };
    Err(Error::field("name", reason))
}

impl From<&Identity> for Caller {
    fn from(identity: &Identity) -> Self {
        let own = |role| identity.organisations(role).map(str::to_owned).collect::<Vec<_>>();
        let (mut organisations, operators) = (own(Role::Developer), own(Role::Operator));
        // What a person is called developer of cannot be a cloudlet.
        organisations.retain(|name| cloudlet(name).is_none());
        let mut admin = identity.has_role(Role::Admin);
        match &identity.kind {
            Kind::Machine(Machine::Controller) => admin = true,
            Kind::Machine(machine @ Machine::Cloudlet { .. }) => {
                organisations = vec![machine.to_string()];
            }
            _ => {}
        }
        let (name, viewer) = (identity.name.clone(), identity.has_role(Role::Viewer));
        let everybody = identity.kind == Kind::Insecure;
        Self { name, admin, viewer, operators, organisations, everybody }
    }
}

impl Caller {
    /// Returns whether the caller may know of the cluster.
    pub fn sees(&self, cluster: &Cluster) -> bool {
        let as_operator = match cloudlet(&cluster.organisation) {
            Some(Machine::Cloudlet { operator, .. }) => self.operators.contains(&operator),
            _ => !self.operators.is_empty(),
        };
        self.viewer || as_operator || self.owns(cluster)
    }

    /// Returns whether the caller may change the cluster, and have keys of it.
    pub fn owns(&self, cluster: &Cluster) -> bool {
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
            let any = if cloudlet(named).is_some() { self.everybody } else { self.admin };
            if any || self.organisations.iter().any(|mine| mine == named) {
                return Ok(named.to_owned());
            }
            if cloudlet(named).is_some() {
                let text = format!("clusters of {named} are made by its crm alone");
                return Err(Error::Denied(text));
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
    fn viewers_are_told_that_they_may_only_look() {
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
        let controller = Caller::from(&Identity::machine(Machine::Controller));
        assert_eq!(controller.organisation("").unwrap(), "");
    }

    fn machine(name: &str) -> Caller {
        Caller::from(&Identity::machine(Machine::parse(name).unwrap()))
    }

    fn person(role: Role, organisation: &str) -> Caller {
        let kind = Kind::User { session: "s".into(), expires: 0 };
        let grants = vec![Grant { role, organisation: organisation.into() }];
        Caller::from(&Identity { name: "p".into(), kind, grants })
    }

    #[test]
    fn a_cloudlet_has_its_own_clusters_and_no_others() {
        let west = machine("cloudlet/tmus/west");
        assert_eq!(west.organisation("").unwrap(), "cloudlet/tmus/west");
        assert_eq!(west.organisation("cloudlet/tmus/west").unwrap(), "cloudlet/tmus/west");
        for other in ["cloudlet/tmus/east", "tmus", "acme"] {
            assert!(matches!(west.organisation(other), Err(Error::Denied(_))), "{other}");
            let refused = west.check_owns(&cluster(other)).unwrap_err();
            assert!(matches!(refused, Error::ClusterNotFound(_)), "{other}");
            assert!(!west.sees(&cluster(other)), "{other}");
        }
        assert!(!west.sees(&cluster("")));
        west.check_owns(&cluster("cloudlet/tmus/west")).unwrap();
        for name in ["node/west", "dme/west"] {
            assert!(!machine(name).sees(&cluster("cloudlet/tmus/west")), "{name}");
            assert!(matches!(machine(name).organisation(""), Err(Error::Denied(_))), "{name}");
        }
    }

    #[test]
    fn people_cannot_be_a_cloudlet() {
        let own = cluster("cloudlet/tmus/west");
        // However a grant came to bear such a name.
        let impostor = person(Role::Developer, "cloudlet/tmus/west");
        assert!(!impostor.sees(&own));
        for caller in [impostor, person(Role::Admin, ""), developer(&["acme"])] {
            let refused = caller.organisation("cloudlet/tmus/west");
            assert!(matches!(refused, Err(Error::Denied(_))), "{caller:?}");
        }
        let insecure = Caller::from(&Identity::all_powerful("anybody", Kind::Insecure));
        assert_eq!(insecure.organisation("cloudlet/tmus/west").unwrap(), own.organisation);
    }

    #[test]
    fn an_operator_looks_at_clusters_of_its_own_cloudlets() {
        let own = cluster("cloudlet/tmus/west");
        let operator = person(Role::Operator, "tmus");
        assert!(operator.sees(&own) && operator.sees(&cluster("acme")));
        assert!(matches!(operator.check_owns(&own), Err(Error::Denied(_))));
        assert!(!person(Role::Operator, "other").sees(&own));
        assert!(!developer(&["acme"]).sees(&own) && !developer(&["tmus"]).sees(&own));
        assert!(person(Role::Viewer, "").sees(&own));
        person(Role::Admin, "").check_owns(&own).unwrap();
    }

    #[test]
    fn names_of_clusters_of_cloudlets_are_apart() {
        let west = Machine::parse("cloudlet/tmus/west").unwrap();
        let good = format!("{}demo", west.cluster_prefix());
        check_cluster_name("cloudlet/tmus/west", &good).unwrap();
        check_cluster_name("acme", "demo").unwrap();
        check_cluster_name("", "demo").unwrap();
        for (organisation, name) in [
            ("cloudlet/tmus/west", "demo"),
            ("cloudlet/tmus/east", good.as_str()),
            ("acme", good.as_str()),
            ("", "slv-x"),
        ] {
            let refused = check_cluster_name(organisation, name).unwrap_err();
            assert!(refused.to_string().starts_with("name: names "), "{refused}");
        }
    }
}
