//! Permissions of peers: the objects that each may report.

use selvage_api::edgeproto::{CloudletKey, NodeKey, NodeType};
use selvage_kit::identity::{Identity, Kind as Caller, Machine, Role};

use crate::ObjectKey;

/// Statement of a peer, with the fields that decide if it may make it.
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
    /// Checks that the peer may have a stream at all.
    fn admit(&self, who: &Identity) -> Result<(), String>;

    /// Checks that the peer may report this. A peer that reports what it may not
    /// loses its stream.
    fn allow(&self, who: &Identity, claim: &Claim<'_>) -> Result<(), String>;

    /// Returns true if the peer is sent objects or messages of this type, if it
    /// wants them.
    fn sends(&self, who: &Identity, type_name: &str) -> bool {
        let _ = (who, type_name);
        true
    }

    /// Returns true if the peer sees only its own cloudlets, no matter what it
    /// asks for.
    fn filters(&self, who: &Identity) -> bool;

    /// Returns true if the peer sees objects without the secrets in them.
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

/// Types that the crm of a cloudlet sends, each about this cloudlet.
const FROM_CLOUDLET: &[&str] = &[
    "edgeproto.AppInstInfo",
    "edgeproto.CloudletInfo",
    "edgeproto.ClusterInstInfo",
    "edgeproto.ExecRequest",
    "edgeproto.Metric",
    "edgeproto.Node",
];
/// Types that it is sent, as far as they concern this cloudlet.
const TO_CLOUDLET: &[&str] = &[
    "edgeproto.App",
    "edgeproto.AppInst",
    "edgeproto.Cloudlet",
    "edgeproto.Cluster",
    "edgeproto.ClusterInst",
    "edgeproto.ExecRequest",
    "edgeproto.Flavor",
];
/// Types that a match engine sends.
const FROM_ENGINE: &[&str] = &["edgeproto.Metric", "edgeproto.Node"];
/// Types that it is sent, without the secrets in them.
const TO_ENGINE: &[&str] = &["edgeproto.App", "edgeproto.AppInst", "edgeproto.CloudletInfo"];

/// Gate by certificate: the crm of a cloudlet speaks for that cloudlet, a match
/// engine for itself, administrators for everything. A type that is on neither
/// list of a kind is neither accepted from it nor sent to it.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityGate;

impl Gate for IdentityGate {
    fn admit(&self, who: &Identity) -> Result<(), String> {
        match &who.kind {
            Caller::Machine(Machine::Cloudlet { .. } | Machine::Dme { .. }) => Ok(()),
            _ if trusted(who) => Ok(()),
            _ => Err(format!("{} has no business with notify", name(who))),
        }
    }

    fn allow(&self, who: &Identity, claim: &Claim<'_>) -> Result<(), String> {
        match &who.kind {
            Caller::Machine(Machine::Cloudlet { operator, name }) => {
                let same = |key: &CloudletKey| {
                    let owner = key.operator_key.as_ref().map_or("", |key| &key.name);
                    key.name == *name && owner == operator
                };
                match claim.cloudlet {
                    Some(key) if !same(key) => Err(format!("{} {}", who.name, about(claim, key))),
                    _ => from_list(who, claim, FROM_CLOUDLET, |node| {
                        node.node_type == i32::from(NodeType::NodeCrm)
                    }),
                }
            }
            Caller::Machine(Machine::Dme { name }) => from_list(who, claim, FROM_ENGINE, |node| {
                node.node_type == i32::from(NodeType::NodeDme) && node.name == *name
            }),
            _ if trusted(who) => Ok(()),
            _ => Err(format!("{} may not send anything", name(who))),
        }
    }

    fn sends(&self, who: &Identity, type_name: &str) -> bool {
        match &who.kind {
            Caller::Machine(Machine::Cloudlet { .. }) => TO_CLOUDLET.contains(&type_name),
            Caller::Machine(Machine::Dme { .. }) => TO_ENGINE.contains(&type_name),
            _ => trusted(who),
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

/// Checks that the type is on the list and that a node is the peer's own.
fn from_list(
    who: &Identity,
    claim: &Claim<'_>,
    list: &[&str],
    owns: impl FnOnce(&NodeKey) -> bool,
) -> Result<(), String> {
    let listed = list.contains(&claim.type_name);
    let node = || claim.key.and_then(|key| key.decode::<NodeKey>().ok());
    let own = claim.type_name != "edgeproto.Node" || node().as_ref().is_some_and(owns);
    if listed && own {
        return Ok(());
    }
    Err(format!("{} may not send this {}", who.name, claim.type_name))
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

    /// Every type of the contract against every kind of peer.
    #[test]
    fn types_that_are_on_no_list_pass_in_neither_direction() {
        let (crm, engine) = (machine("cloudlet/tmus/west"), machine("dme/west"));
        let own = key("tmus", "west");
        let types = selvage_api::pool().all_messages();
        let types: Vec<String> = types
            .map(|message| message.full_name().to_owned())
            .filter(|name| name.starts_with("edgeproto.") && name != "edgeproto.Node")
            .collect();
        assert!(types.len() > 30, "{types:?}");
        for name in types.iter().map(String::as_str) {
            assert_eq!(says(&crm, name, Some(&own)), FROM_CLOUDLET.contains(&name), "{name}");
            assert_eq!(says(&engine, name, None), FROM_ENGINE.contains(&name), "{name}");
            assert_eq!(IdentityGate.sends(&crm, name), TO_CLOUDLET.contains(&name), "{name}");
            assert_eq!(IdentityGate.sends(&engine, name), TO_ENGINE.contains(&name), "{name}");
            for who in ["controller", "node/x"].map(machine) {
                assert!(!says(&who, name, None) && !IdentityGate.sends(&who, name), "{name}");
            }
        }
        assert!(!IdentityGate.sends(&engine, "edgeproto.ExecRequest"), "it runs no commands");
    }

    #[test]
    fn match_engine_reports_only_the_node_of_its_own_name() {
        let engine = machine("dme/west");
        assert!(IdentityGate.admit(&engine).is_ok() && !IdentityGate.filters(&engine));
        assert!(IdentityGate.conceals(&engine));
        assert!(says(&engine, "edgeproto.Metric", None));
        assert!(!says(&engine, "edgeproto.CloudletInfo", Some(&key("tmus", "west"))));
        let node = |name: &str, node_type: NodeType| {
            let key = Some(NodeKey {
                name: name.into(),
                node_type: node_type.into(),
                cloudlet_key: Some(key("tmus", "west")),
            });
            let key = ObjectKey::of(&Node { key, ..Node::default() }).unwrap();
            let claim = Claim { type_name: "edgeproto.Node", key: Some(&key), cloudlet: None };
            IdentityGate.allow(&engine, &claim).is_ok()
        };
        assert!(node("west", NodeType::NodeDme));
        for other in ["east", "", "WEST", "dme/west"] {
            assert!(!node(other, NodeType::NodeDme), "{other:?} is another engine");
        }
        assert!(!node("west", NodeType::NodeCrm) && !node("west", NodeType::NodeUnknown));
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
            Identity::all_powerful("insecure", Caller::Insecure),
            Identity::all_powerful("local", Caller::Local),
            user(Role::Admin),
        ] {
            assert!(IdentityGate.admit(&who).is_ok(), "{who:?}");
            assert!(says(&who, info, Some(&key("a", "b"))));
        }
        for who in
            [Identity::anonymous(), machine("node/x"), machine("controller"), user(Role::Operator)]
        {
            assert!(IdentityGate.admit(&who).is_err(), "{who:?}");
            assert!(!says(&who, info, Some(&key("a", "b"))));
        }
    }
}
