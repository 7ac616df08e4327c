//! Calls that are meant for other processes.
//!
//! A [`Relay`] sees a call after it was identified and authorised here, and
//! may take it to others. The others must know on whose behalf: the relay
//! sends [`CALLER`] along, and `on_behalf` decides who is believed.
//!
//! * A controller may speak for everybody: it holds the keys to all anyway.
//! * A node may speak for others only to look, and for nobody above a viewer:
//!   an administrator whom it names sees what a viewer sees. Every machine has
//!   such a certificate, so one that was taken over could otherwise steer all
//!   others in an administrator's name, or read what is secret there. For more
//!   than that on other machines, call through a controller.
//! * Anybody else who sends the header is refused, whatever the rights.
//!
//! Only methods of nodes are relayed. Tokens and cookies are never sent on:
//! whoever gets them could use them.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use selvage_api::{Code, Method};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use crate::{
    access::{Denied, Effect, Rule},
    identity::{Grant, Identity, Kind, Machine, Role},
};

/// Header in which a relay tells on whose behalf it calls.
pub const CALLER: &str = "selvage-caller-bin";

/// The part whose methods may be called on behalf of others.
const RELAYED_PART: &str = "node";

/// Answers a call by this process's own services.
pub type Here =
    std::sync::Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Answer> + Send + Sync + 'static>;

/// Result of a call.
pub type Answer = Result<Response<Body>, Status>;

/// A call that was let in and is for others.
pub struct Call {
    /// Method that is called.
    pub method: &'static Method,
    /// Effect of calling it.
    pub effect: Effect,
    /// The request; the caller's [`Identity`] is in its extensions.
    pub request: Request<Body>,
    /// Deadline of the call.
    pub deadline: Option<Instant>,
    /// The way to this process's own services.
    pub here: Here,
}

/// Takes calls to other processes.
pub trait Relay: Send + Sync + 'static {
    /// Returns whether a call with these headers is for others.
    fn claims(&self, method: &Method, headers: &HeaderMap) -> bool;

    /// Makes the call there and answers with what they say.
    fn call(&self, call: Call) -> BoxFuture<'static, Answer>;
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerHeader {
    name: String,
    kind: CallerKind,
    grants: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum CallerKind {
    Anonymous,
    Machine(String),
    Person { session: String, expires: i64 },
}

/// Value of the header [`CALLER`] for a caller.
pub fn caller_header(caller: &Identity) -> Result<HeaderValue, Status> {
    let kind = match &caller.kind {
        Kind::Anonymous => CallerKind::Anonymous,
        Kind::Machine(machine) => CallerKind::Machine(machine.to_string()),
        Kind::User { session, expires } => {
            CallerKind::Person { session: session.clone(), expires: *expires }
        }
        // Its list of methods was looked at for this very method already, and its
        // grants are those that hold.
        Kind::Delegate(limits) => {
            CallerKind::Person { session: String::new(), expires: limits.expires }
        }
        Kind::Local | Kind::Insecure => {
            CallerKind::Person { session: String::new(), expires: i64::MAX }
        }
    };
    let grants = caller.grants.iter();
    let grants =
        grants.map(|grant| (grant.role.name().to_owned(), grant.organisation.clone())).collect();
    let header = CallerHeader { name: caller.name.clone(), kind, grants };
    let json = serde_json::to_vec(&header).ok();
    json.and_then(|json| HeaderValue::try_from(BASE64.encode(json)).ok()).ok_or_else(|| {
        tracing::error!("a caller could not be encoded for a relay");
        super::internal_error()
    })
}

fn read(value: &HeaderValue) -> Option<Identity> {
    let json = BASE64.decode(value.as_bytes()).ok()?;
    let header: CallerHeader = serde_json::from_slice(&json).ok()?;
    let kind = match header.kind {
        CallerKind::Anonymous => Kind::Anonymous,
        CallerKind::Machine(name) => Kind::Machine(Machine::parse(&name).ok()?),
        CallerKind::Person { session, expires } => Kind::User { session, expires },
    };
    let grants = header.grants.into_iter();
    let grants = grants
        .map(|(role, organisation)| Role::parse(&role).map(|role| Grant { role, organisation }))
        .collect::<Option<_>>()?;
    Some(Identity { name: header.name, kind, grants })
}

/// Caller for whom the peer speaks, if it speaks for another and may.
pub(super) fn on_behalf(
    peer: &Identity,
    headers: &HeaderMap,
    rule: &Rule,
) -> Result<Option<Identity>, Denied> {
    let mut header = headers.get_all(CALLER).iter();
    let Some(value) = header.next() else { return Ok(None) };
    let denied = |why: String| {
        Err(Denied { code: Code::PermissionDenied, message: format!("not authorized: {why}") })
    };
    match &peer.kind {
        // They may do everything without being believed anything.
        Kind::Local | Kind::Insecure => return Ok(None),
        Kind::Machine(Machine::Controller) => {}
        Kind::Machine(Machine::Node { .. }) if rule.effect == Effect::Read => {}
        Kind::Machine(Machine::Node { .. }) => {
            return denied(format!(
                "{} may speak for others only to look: to change something on other machines, \
                 call through a controller",
                peer.name
            ));
        }
        _ => return denied("only controllers and nodes may speak for others".into()),
    }
    if rule.method.part != RELAYED_PART || header.next().is_some() {
        return denied("only calls to nodes are made for others, each for one".into());
    }
    let unreadable = || Denied {
        code: Code::InvalidArgument,
        message: format!("{CALLER} is not as a relay writes it"),
    };
    let mut caller = read(value).ok_or_else(unreadable)?;
    if matches!(peer.kind, Kind::Machine(Machine::Node { .. })) {
        for grant in caller.grants.iter_mut().filter(|grant| grant.role == Role::Admin) {
            grant.role = Role::Viewer;
        }
    }
    Ok(Some(caller))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::access::Access;

    fn admin() -> Identity {
        Identity {
            name: "änn".into(),
            kind: Kind::User { session: "s1".into(), expires: 77 },
            grants: vec![
                Grant { role: Role::Admin, organisation: String::new() },
                Grant { role: Role::Operator, organisation: "Tele".into() },
            ],
        }
    }

    fn judge(peer: Identity, path: &str) -> Result<Option<Identity>, Code> {
        let mut headers = HeaderMap::new();
        headers.insert(CALLER, caller_header(&admin()).unwrap());
        let access = Access::load().unwrap();
        on_behalf(&peer, &headers, access.rule(path).unwrap()).map_err(|denied| denied.code)
    }

    fn machine(name: &str) -> Identity {
        Identity::machine(Machine::parse(name).unwrap())
    }

    const READ: &str = "/os.OSService/Memory";
    const SECRET: &str = "/machine.MachineService/Read";
    const CHANGE: &str = "/machine.MachineService/Reboot";

    #[test]
    fn a_controller_speaks_for_everybody_to_nodes_alone() {
        for path in [READ, SECRET, CHANGE] {
            assert_eq!(judge(machine("controller"), path), Ok(Some(admin())), "{path}");
        }
        let elsewhere = "/selvage.identity.IdentityService/AddUser";
        assert_eq!(judge(machine("controller"), elsewhere), Err(Code::PermissionDenied));
    }

    #[test]
    fn a_node_speaks_for_others_only_to_look() {
        let believed = judge(machine("node/n1"), READ).unwrap().unwrap();
        assert!(believed.has_role(Role::Viewer) && !believed.has_role(Role::Admin));
        assert_eq!((believed.name, believed.kind), (admin().name, admin().kind));
        for path in [SECRET, CHANGE] {
            assert_eq!(judge(machine("node/n1"), path), Err(Code::PermissionDenied), "{path}");
        }
    }

    #[test]
    fn nobody_else_speaks_for_others() {
        let plain = Identity { grants: Vec::new(), ..admin() };
        for peer in
            [plain, admin(), Identity::anonymous(), machine("dme/d"), machine("cloudlet/a/b")]
        {
            assert_eq!(judge(peer, READ), Err(Code::PermissionDenied));
        }
        let local = Identity::all_powerful("local", Kind::Local);
        assert_eq!(judge(local, CHANGE), Ok(None));
    }

    #[test]
    fn what_is_not_as_a_relay_writes_it_is_refused() {
        let access = Access::load().unwrap();
        let rule = access.rule(READ).unwrap();
        for wrong in ["", "!", "e30", "eyJuYW1lIjoiYSJ9"] {
            let mut headers = HeaderMap::new();
            headers.insert(CALLER, HeaderValue::from_static(wrong));
            let refused = on_behalf(&machine("controller"), &headers, rule).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{wrong}");
        }
        let mut twice = HeaderMap::new();
        twice.append(CALLER, caller_header(&admin()).unwrap());
        twice.append(CALLER, caller_header(&Identity::anonymous()).unwrap());
        assert!(on_behalf(&machine("controller"), &twice, rule).is_err());
    }
}
