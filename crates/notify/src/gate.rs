//! What a peer below may speak for.

use selvage_api::edgeproto::{CloudletKey, NodeKey, NodeType};
use selvage_kit::identity::{Identity, Kind as Caller, Machine, Role};

use crate::ObjectKey;

/// What a peer says, as far as it matters whether it may.
#[derive(Debug)]
pub struct Claim<'a> {
    /// Full name of the type.
    pub type_name: &'a str,
    /// The key, of objects.
    pub key: Option<&'a ObjectKey>,
    /// The cloudlet it is about, of types that are about one. Empty when the
    /// peer left it out.
    pub cloudlet: Option<&'a CloudletKey>,
}

/// Decides what peers may say and see.
pub trait Gate: Send + Sync + 'static {
    /// Whether the peer may have a stream at all.
    fn admit(&self, who: &Identity) -> Result<(), String>;

    /// Whether it may say this. A peer that says what it may not loses its
    /// stream.
    fn allow(&self, who: &Identity, claim: &Claim<'_>) -> Result<(), String>;

    /// Whether it sees only its own cloudlets, whatever it asks for.
    fn filters(&self, who: &Identity) -> bool;

    /// Whether it sees objects without the secrets in them.
    fn conceals(&self, who: &Identity) -> bool {
        let _ = who;
        false
    }
}

/// Everybody may say everything. For laboratories and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenGate;

impl Gate for OpenGate {
    fn admit(&self, _: &Identity) -> Result<(), String> {
        Ok(())
    }

    fn allow(&self, _: &Identity, _: &Claim<'_>) -> Result<(), String> {
        Ok(())
    }

    fn filters(&self, _: &Identity) -> bool {
        false
    }
}

/// By certificate: the crm of a cloudlet speaks for that cloudlet, a match
/// engine for itself, controllers and administrators for everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityGate;

impl Gate for IdentityGate {
    fn admit(&self, who: &Identity) -> Result<(), String> {
        match &who.kind {
            Caller::Machine(
                Machine::Controller | Machine::Cloudlet { .. } | Machine::Dme { .. },
            ) => Ok(()),
            _ if trusted(who) => Ok(()),
            _ => Err(format!("{} has no business with notify", name(who))),
        }
    }

    fn allow(&self, who: &Identity, claim: &Claim<'_>) -> Result<(), String> {
        match &who.kind {
            Caller::Machine(Machine::Controller) => Ok(()),
            Caller::Machine(Machine::Cloudlet { operator, name }) => {
                let same = |key: &CloudletKey| {
                    let owner = key.operator_key.as_ref().map_or("", |key| &key.name);
                    key.name == *name && owner == operator
                };
                match claim.cloudlet {
                    Some(key) if !same(key) => Err(format!("{} {}", who.name, about(claim, key))),
                    _ => Ok(()),
                }
            }
            Caller::Machine(Machine::Dme { .. }) => match claim.type_name {
                "edgeproto.Metric" => Ok(()),
                "edgeproto.Node" if is_engine(claim) => Ok(()),
                other => Err(format!("{} may not send this {other}", who.name)),
            },
            _ if trusted(who) => Ok(()),
            _ => Err(format!("{} may not send anything", name(who))),
        }
    }

    fn filters(&self, who: &Identity) -> bool {
        matches!(who.kind, Caller::Machine(Machine::Cloudlet { .. }))
    }

    /// A match engine starts nothing.
    fn conceals(&self, who: &Identity) -> bool {
        matches!(who.kind, Caller::Machine(Machine::Dme { .. }))
    }
}

fn trusted(who: &Identity) -> bool {
    matches!(who.kind, Caller::Insecure | Caller::Local) || who.has_role(Role::Admin)
}

fn name(who: &Identity) -> &str {
    if who.name.is_empty() { "nobody" } else { &who.name }
}

fn about(claim: &Claim<'_>, key: &CloudletKey) -> String {
    let owner = key.operator_key.as_ref().map_or("", |key| &key.name);
    let short = claim.type_name.rsplit('.').next().unwrap_or_default();
    format!("may not send {short} of cloudlet/{owner}/{}", key.name)
}

fn is_engine(claim: &Claim<'_>) -> bool {
    let key = claim.key.and_then(|key| key.decode::<NodeKey>().ok());
    key.is_some_and(|key| key.node_type == i32::from(NodeType::NodeDme))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto::{Node, OperatorKey};
    use selvage_kit::identity::Grant;

    use super::*;

    fn machine(text: &str) -> Identity {
        Identity::machine(Machine::parse(text).unwrap())
    }

    fn key(operator: &str, name: &str) -> CloudletKey {
        CloudletKey { operator_key: Some(OperatorKey { name: operator.into() }), name: name.into() }
    }

    fn says(who: &Identity, type_name: &str, cloudlet: Option<&CloudletKey>) -> bool {
        let claim = Claim { type_name, key: None, cloudlet };
        IdentityGate.allow(who, &claim).is_ok()
    }

    #[test]
    fn a_crm_speaks_for_its_own_cloudlet_only() {
        let crm = machine("cloudlet/tmus/west");
        assert!(IdentityGate.admit(&crm).is_ok() && IdentityGate.filters(&crm));
        assert!(!IdentityGate.conceals(&crm), "it starts apps");
        let info = "edgeproto.CloudletInfo";
        assert!(says(&crm, info, Some(&key("tmus", "west"))));
        for other in [key("tmus", "east"), key("att", "west"), CloudletKey::default()] {
            assert!(!says(&crm, info, Some(&other)), "{other:?}");
            assert!(!says(&crm, "edgeproto.ExecRequest", Some(&other)));
        }
        assert!(says(&crm, "edgeproto.Metric", None));
    }

    #[test]
    fn a_match_engine_speaks_for_itself_only() {
        let engine = machine("dme/west");
        assert!(IdentityGate.admit(&engine).is_ok() && !IdentityGate.filters(&engine));
        assert!(IdentityGate.conceals(&engine));
        assert!(says(&engine, "edgeproto.Metric", None));
        assert!(!says(&engine, "edgeproto.CloudletInfo", Some(&key("tmus", "west"))));
        let node = |node_type: NodeType| {
            let key = Some(NodeKey {
                name: "n".into(),
                node_type: node_type.into(),
                ..NodeKey::default()
            });
            let key = ObjectKey::of(&Node { key, ..Node::default() }).unwrap();
            let claim = Claim { type_name: "edgeproto.Node", key: Some(&key), cloudlet: None };
            IdentityGate.allow(&engine, &claim).is_ok()
        };
        assert!(node(NodeType::NodeDme));
        assert!(!node(NodeType::NodeCrm));
    }

    #[test]
    fn administrators_may_and_others_may_not() {
        let info = "edgeproto.CloudletInfo";
        let user = |role| Identity {
            name: "u".into(),
            kind: Caller::User { session: String::new(), expires: 0 },
            grants: vec![Grant { role, organisation: String::new() }],
        };
        for who in [
            machine("controller"),
            Identity::all_powerful("insecure", Caller::Insecure),
            Identity::all_powerful("local", Caller::Local),
            user(Role::Admin),
        ] {
            assert!(IdentityGate.admit(&who).is_ok(), "{who:?}");
            assert!(says(&who, info, Some(&key("a", "b"))));
        }
        for who in [Identity::anonymous(), machine("node/x"), user(Role::Operator)] {
            assert!(IdentityGate.admit(&who).is_err(), "{who:?}");
            assert!(!says(&who, info, Some(&key("a", "b"))));
        }
    }
}
