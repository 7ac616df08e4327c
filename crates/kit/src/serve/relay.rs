//! Calls that are meant for other processes.
//!
//! A [`Relay`] sees a call after it was identified and authorised here, and
//! may take it to others. The others must know on whose behalf:
//!
//! * A controller says so in [`CALLER`] and is believed: it holds the keys to
//!   all anyway.
//! * A node is not believed: every machine has such a certificate. It passes an
//!   [assertion] on that a controller signed for this caller, this
//!   method and this machine, in [`assertion::HEADER`].
//! * Anybody else who sends either is refused, whatever the rights.
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
    assertion,
    identity::{Grant, Identity, Kind, Machine, Role, Secret, ShownAssertion},
};

/// Header in which a controller tells on whose behalf it calls.
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

/// The token that a caller showed, for a controller to see.
pub fn token(headers: &HeaderMap) -> Option<Secret> {
    super::credentials::bearer(headers)
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

/// Caller for whom a peer calls.
#[derive(Debug)]
pub(super) enum OnBehalf {
    /// The peer itself.
    Nobody,
    /// Whom a controller named.
    Named(Identity),
    /// Whom an assertion names, which has to be checked.
    Asserted(ShownAssertion),
}

/// Tells for whom the peer calls, if it calls for another and may.
pub(super) fn on_behalf(
    peer: &Identity,
    headers: &HeaderMap,
    rule: &Rule,
) -> Result<OnBehalf, Denied> {
    let named: Vec<_> = headers.get_all(CALLER).iter().collect();
    let asserted: Vec<_> = headers.get_all(assertion::HEADER).iter().collect();
    // They may do everything without being believed anything.
    let needs_nobody = matches!(peer.kind, Kind::Local | Kind::Insecure);
    if needs_nobody || (named.is_empty() && asserted.is_empty()) {
        return Ok(OnBehalf::Nobody);
    }
    let denied = |why: &str| {
        Err(Denied { code: Code::PermissionDenied, message: format!("not authorized: {why}") })
    };
    let Kind::Machine(by @ (Machine::Controller | Machine::Node { .. })) = &peer.kind else {
        return denied("only controllers and nodes may speak for others");
    };
    if rule.method.part != RELAYED_PART {
        return denied("only calls to nodes are made for others");
    }
    match (by, named.as_slice(), asserted.as_slice()) {
        (Machine::Controller, [value], []) => {
            let unreadable = || Denied {
                code: Code::InvalidArgument,
                message: format!("{CALLER} is not as a relay writes it"),
            };
            read(value).map(OnBehalf::Named).ok_or_else(unreadable)
        }
        (Machine::Node { .. }, [], [value]) => {
            let text = value.to_str().unwrap_or_default();
            Ok(OnBehalf::Asserted(ShownAssertion {
                text: Secret::new(text),
                by: by.clone(),
                method: rule.path.clone(),
                goes_on: false,
            }))
        }
        (Machine::Node { .. }, ..) => denied(
            "a node speaks for others only by what a controller signed for one caller: both must \
             be of this release",
        ),
        _ => denied("each call is made for one caller"),
    }
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

    fn judge_with(
        peer: &Identity,
        path: &str,
        headers: &[(&'static str, HeaderValue)],
    ) -> Result<OnBehalf, Code> {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.clone())).collect();
        let access = Access::load().unwrap();
        on_behalf(peer, &headers, access.rule(path).unwrap()).map_err(|denied| denied.code)
    }

    fn claimed() -> (&'static str, HeaderValue) {
        (CALLER, caller_header(&admin()).unwrap())
    }

    fn signed() -> (&'static str, HeaderValue) {
        (assertion::HEADER, HeaderValue::from_static("a.b.c"))
    }

    fn machine(name: &str) -> Identity {
        Identity::machine(Machine::parse(name).unwrap())
    }

    const READ: &str = "/os.OSService/Memory";
    const SECRET: &str = "/machine.MachineService/Read";
    const CHANGE: &str = "/machine.MachineService/Reboot";
    const ELSEWHERE: &str = "/selvage.identity.IdentityService/AddUser";

    #[test]
    fn a_controller_speaks_for_everybody_to_nodes_alone() {
        let controller = machine("controller");
        for path in [READ, SECRET, CHANGE] {
            let judged = judge_with(&controller, path, &[claimed()]).unwrap();
            assert!(matches!(judged, OnBehalf::Named(caller) if caller == admin()), "{path}");
        }
        let elsewhere = judge_with(&controller, ELSEWHERE, &[claimed()]).unwrap_err();
        assert_eq!(elsewhere, Code::PermissionDenied);
    }

    #[test]
    fn a_nodes_own_word_counts_nowhere() {
        let node = machine("node/n1");
        for path in [READ, SECRET, CHANGE, ELSEWHERE] {
            for headers in [&[claimed()][..], &[claimed(), signed()], &[signed(), signed()]] {
                let refused = judge_with(&node, path, headers).unwrap_err();
                assert_eq!(refused, Code::PermissionDenied, "{path}");
            }
        }
        for path in [READ, SECRET, CHANGE] {
            let OnBehalf::Asserted(shown) = judge_with(&node, path, &[signed()]).unwrap() else {
                unreachable!("{path}")
            };
            assert_eq!((shown.by.to_string().as_str(), shown.method.as_str()), ("node/n1", path));
        }
        assert_eq!(judge_with(&node, ELSEWHERE, &[signed()]).unwrap_err(), Code::PermissionDenied);
        assert!(matches!(judge_with(&node, READ, &[]).unwrap(), OnBehalf::Nobody));
    }

    #[test]
    fn nobody_else_speaks_for_others() {
        let plain = Identity { grants: Vec::new(), ..admin() };
        for peer in
            [plain, admin(), Identity::anonymous(), machine("dme/d"), machine("cloudlet/a/b")]
        {
            for header in [claimed(), signed()] {
                let refused = judge_with(&peer, READ, &[header]).unwrap_err();
                assert_eq!(refused, Code::PermissionDenied);
            }
        }
        let local = Identity::all_powerful("local", Kind::Local);
        assert!(matches!(judge_with(&local, CHANGE, &[claimed()]).unwrap(), OnBehalf::Nobody));
    }

    #[test]
    fn what_is_not_as_a_relay_writes_it_is_refused() {
        let controller = machine("controller");
        for wrong in ["", "!", "e30", "eyJuYW1lIjoiYSJ9"] {
            let header = (CALLER, HeaderValue::from_static(wrong));
            let refused = judge_with(&controller, READ, &[header]).unwrap_err();
            assert_eq!(refused, Code::InvalidArgument, "{wrong}");
        }
        for twice in [&[claimed(), claimed()][..], &[claimed(), signed()], &[signed()]] {
            assert!(judge_with(&controller, READ, twice).is_err());
        }
    }
}
