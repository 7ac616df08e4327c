//! The samples that somebody may see.

use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Kind, Machine, Role};
use serde_json::Value;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::{DEVELOPER_TAG, Error, OPERATOR_TAGS, tagged};

/// Metadata by which a controller asks another for what its caller may see.
const SCOPE: &str = "x-selvage-scope-bin";

/// The samples that a caller may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Everything,
    /// Samples of the apps of some organisations and of the cloudlets of
    /// others.
    Of {
        /// Organisations whose apps.
        developers: Vec<String>,
        /// Organisations whose cloudlets.
        operators: Vec<String>,
    },
}

impl Scope {
    /// Scope of an identity.
    pub fn of(who: &Identity) -> Self {
        let all = who.has_role(Role::Admin)
            || who.has_role(Role::Viewer)
            || matches!(who.kind, Kind::Machine(Machine::Controller));
        if all {
            return Self::Everything;
        }
        let named = |role| who.organisations(role).map(str::to_owned).collect();
        Self::Of { developers: named(Role::Developer), operators: named(Role::Operator) }
    }

    /// Scope of the caller, or of the identity on whose behalf a controller asks.
    pub fn of_call(who: &Identity, metadata: &MetadataMap) -> Result<Self, Error> {
        let own = Self::of(who);
        match metadata.get_bin(SCOPE) {
            Some(value) if own == Self::Everything => {
                let read = value.to_bytes().ok().and_then(|bytes| Self::read(&bytes));
                read.ok_or(Error::Scope(SCOPE))
            }
            _ => Ok(own),
        }
    }

    /// Asks another controller for this and no more.
    pub fn ask(&self, metadata: &mut MetadataMap) {
        if let Self::Of { developers, operators } = self {
            let text = serde_json::json!({"developers": developers, "operators": operators});
            metadata.insert_bin(SCOPE, MetadataValue::from_bytes(text.to_string().as_bytes()));
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let names = |field: &str| {
            let names = value.get(field)?.as_array()?.iter();
            names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        Some(Self::Of { developers: names("developers")?, operators: names("operators")? })
    }

    /// Returns whether a sample may be seen.
    pub fn includes(&self, sample: &wire::Metric) -> bool {
        let Self::Of { developers, operators } = self else { return true };
        let any = |names: &[&str], of: &[String]| {
            tagged(sample, names).any(|value| of.iter().any(|name| name == value))
        };
        any(&[DEVELOPER_TAG], developers) || any(&OPERATOR_TAGS, operators)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_kit::identity::Grant;

    use super::*;

    fn user(role: Role, organisation: &str) -> Identity {
        let grants = vec![Grant { role, organisation: organisation.into() }];
        let kind = Kind::User { session: String::new(), expires: 0 };
        Identity { name: "someone".into(), kind, grants }
    }

    fn sample(tags: &[(&str, &str)]) -> wire::Metric {
        let tag = |(name, val): &(&str, &str)| wire::MetricTag {
            name: (*name).into(),
            val: (*val).into(),
        };
        wire::Metric { tags: tags.iter().map(tag).collect(), ..Default::default() }
    }

    #[test]
    fn everybody_sees_what_is_his_own() {
        let instance = sample(&[("operator", "tele"), ("dev", "demo"), ("app", "one")]);
        let cloudlet = sample(&[("operator", "tele"), ("cloudlet", "west")]);
        let calls = sample(&[("dev", "demo"), ("oper", "tele")]);
        let sees = |who: &Identity| {
            [&instance, &cloudlet, &calls].map(|sample| Scope::of(who).includes(sample))
        };
        assert_eq!(sees(&user(Role::Developer, "demo")), [true, false, true]);
        assert_eq!(sees(&user(Role::Operator, "tele")), [true; 3]);
        // The name of an organisation with another role is another thing.
        assert_eq!(sees(&user(Role::Operator, "demo")), [false; 3]);
        assert_eq!(sees(&user(Role::Developer, "tele")), [false; 3]);
        assert_eq!(sees(&Identity::anonymous()), [false; 3]);
        let agent = Identity::machine(Machine::parse("cloudlet/tele/west").unwrap());
        assert_eq!(sees(&agent), [false; 3]);
        for all in [
            user(Role::Admin, ""),
            user(Role::Viewer, ""),
            Identity::machine(Machine::Controller),
            Identity::all_powerful("local", Kind::Local),
        ] {
            assert_eq!(sees(&all), [true; 3], "{all:?}");
        }
    }

    #[test]
    fn a_controller_asks_another_for_no_more_than_its_caller_may_see() {
        let scope = Scope::of(&user(Role::Developer, "démo, too"));
        let mut metadata = MetadataMap::new();
        scope.ask(&mut metadata);
        let controller = Identity::machine(Machine::Controller);
        assert_eq!(Scope::of_call(&controller, &metadata).unwrap(), scope);
        let other = user(Role::Developer, "other");
        assert_eq!(Scope::of_call(&other, &metadata).unwrap(), Scope::of(&other), "only less");
        metadata.insert_bin(SCOPE, MetadataValue::from_bytes(b"{}"));
        assert!(Scope::of_call(&controller, &metadata).is_err());
        let mut metadata = MetadataMap::new();
        Scope::Everything.ask(&mut metadata);
        assert!(metadata.is_empty());
    }
}
