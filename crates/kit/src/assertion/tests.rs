#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "certificates are made by the time of the machine")]

use tempfile::TempDir;

use super::*;
use crate::pki::Ca;

const METHOD: &str = "/os.OSService/Restart";

struct Lab {
    ca: Ca,
    trust: Trust,
    _place: TempDir,
}

fn machine(name: &str) -> Machine {
    Machine::parse(name).unwrap()
}

impl Lab {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let ca = Ca::open_or_create(&place.path().join("pki")).unwrap();
        let trust = Trust::of(ca.pem()).unwrap();
        Self { ca, trust, _place: place }
    }

    fn signer(&self, name: &str) -> Signer {
        let request = KeyRequest::new().unwrap();
        let signed = self.ca.sign_machine(request.csr_pem(), &machine(name)).unwrap();
        Signer::new(&request, &format!("{}{}", signed.certificate_pem, self.ca.pem())).unwrap()
    }
}

fn operator() -> Identity {
    Identity {
        name: "änn".into(),
        kind: Kind::User { session: "s1".into(), expires: 77 },
        grants: vec![Grant { role: Role::Operator, organisation: "Tele".into() }],
    }
}

fn token() -> Identity {
    let limits = Delegation {
        form: Form::Token,
        id: "t1".into(),
        expires: 99,
        methods: vec!["os.OSService/*".into()],
    };
    Identity { name: "ann+ci".into(), kind: Kind::Delegate(Arc::new(limits)), ..operator() }
}

#[test]
fn what_a_controller_signed_is_believed_by_its_authority_alone() {
    let (lab, elsewhere) = (Lab::new(), Lab::new());
    let (by, to) = (machine("node/a"), machine("node/b"));
    let call = Call { by: &by, to: &to, method: METHOD };
    let now = Timestamp::now();
    let signer = lab.signer("controller");
    for caller in [operator(), token()] {
        let text = signer.sign(&caller, &call, now).unwrap();
        let believed = verify(&text, &lab.trust, &call, now).unwrap().caller().unwrap();
        assert_eq!((&believed.name, &believed.grants), (&caller.name, &caller.grants));
        assert_eq!(verify(&text, &elsewhere.trust, &call, now), Err(Error::Signer));
        if let Kind::Delegate(limits) = &believed.kind {
            assert_eq!((limits.id.as_str(), limits.expires), ("t1", 99));
            assert!(limits.opens(METHOD) && !limits.opens("/os.OSService/Memory"));
        } else {
            assert_eq!(believed.kind, caller.kind);
        }
    }
}

/// Every kind of machine has a certificate of the same authority.
#[test]
fn nobody_but_a_controller_signs() {
    let lab = Lab::new();
    let (by, to) = (machine("node/a"), machine("node/b"));
    let call = Call { by: &by, to: &to, method: METHOD };
    let now = Timestamp::now();
    for name in ["node/a", "node/b", "cloudlet/t/c", "dme/d"] {
        let text = lab.signer(name).sign(&operator(), &call, now).unwrap();
        assert_eq!(verify(&text, &lab.trust, &call, now), Err(Error::Signer), "{name}");
    }
}

#[test]
fn an_assertion_is_for_one_call_of_one_machine_by_one_other() {
    let lab = Lab::new();
    let (a, b, c) = (machine("node/a"), machine("node/b"), machine("node/c"));
    let now = Timestamp::now();
    let call = Call { by: &a, to: &b, method: METHOD };
    let text = lab.signer("controller").sign(&operator(), &call, now).unwrap();
    for (other, what) in [
        (Call { by: &c, ..call }, "relay"),
        (Call { to: &c, ..call }, "machine"),
        (Call { method: "/machine.MachineService/Reboot", ..call }, "method"),
    ] {
        assert_eq!(verify(&text, &lab.trust, &other, now), Err(Error::Other(what)));
        assert_eq!(verify_ongoing(&text, &lab.trust, &other, now), Err(Error::Other(what)));
    }
    let after = |seconds| Timestamp::from_second(now.as_second() + seconds).unwrap();
    for seconds in [-60, 0, 60, 119] {
        verify(&text, &lab.trust, &call, after(seconds)).unwrap();
    }
    for seconds in [-61, 120, 86_400] {
        let late = verify(&text, &lab.trust, &call, after(seconds));
        assert_eq!(late, Err(Error::Expired), "{seconds}");
        verify_ongoing(&text, &lab.trust, &call, after(seconds)).unwrap();
    }
    // The certificate of the controller ends, too.
    assert_eq!(verify_ongoing(&text, &lab.trust, &call, after(31 * 86_400)), Err(Error::Signer));
}

/// Any byte that is not as it was signed makes it worthless.
#[test]
fn a_changed_assertion_is_none() {
    let lab = Lab::new();
    let (by, to) = (machine("node/a"), machine("node/b"));
    let call = Call { by: &by, to: &to, method: METHOD };
    let now = Timestamp::now();
    let text = lab.signer("controller").sign(&operator(), &call, now).unwrap();
    let step = text.len() / 97;
    for place in (0..text.len()).step_by(step.max(1)) {
        let mut changed = text.clone().into_bytes();
        changed[place] = if changed[place] == b'A' { b'Q' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let read = verify(&changed, &lab.trust, &call, now);
        assert!(read.is_err(), "{place}: {changed}");
    }
    let parts: Vec<&str> = text.split('.').collect();
    let other = lab.signer("controller").sign(&token(), &call, now).unwrap();
    let others: Vec<&str> = other.split('.').collect();
    for mixed in [
        format!("{}.{}.{}", parts[0], others[1], parts[2]),
        format!("{}.{}.{}", others[0], parts[1], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        String::new(),
        "a.b.c".to_owned(),
    ] {
        assert!(verify(&mixed, &lab.trust, &call, now).is_err(), "{mixed}");
    }
}

/// A token of another kind with the same key is no assertion, whatever it says.
#[test]
fn other_tokens_are_not_taken_for_one() {
    let lab = Lab::new();
    let (by, to) = (machine("node/a"), machine("node/b"));
    let call = Call { by: &by, to: &to, method: METHOD };
    let now = Timestamp::now();
    let mut signer = lab.signer("controller");
    for change in [
        (|header: &mut Header| header.typ = Some("JWT".into())) as fn(&mut Header),
        |header| header.typ = None,
        |header| header.x5c = None,
        |header| header.x5c = Some(Vec::new()),
        |header| header.crit = Some(vec!["b64".into()]),
        |header| {
            let chain = header.x5c.clone().unwrap_or_default();
            header.x5c = Some(chain.iter().cycle().take(9).cloned().collect());
        },
    ] {
        let right = signer.header.clone();
        change(&mut signer.header);
        let text = signer.sign(&operator(), &call, now).unwrap();
        assert_eq!(verify(&text, &lab.trust, &call, now), Err(Error::Malformed));
        signer.header = right;
    }
}

#[test]
fn callers_whom_the_controller_did_not_recognise_are_not_vouched_for() {
    let lab = Lab::new();
    let (by, to) = (machine("node/a"), machine("node/b"));
    let call = Call { by: &by, to: &to, method: METHOD };
    let signer = lab.signer("controller");
    let certificate =
        Delegation { form: Form::Certificate, id: "c1".into(), expires: 99, methods: Vec::new() };
    for kind in [
        Kind::Anonymous,
        Kind::Insecure,
        Kind::Machine(machine("node/a")),
        Kind::Machine(machine("controller")),
        Kind::Delegate(Arc::new(certificate)),
    ] {
        let caller = Identity { kind, ..operator() };
        assert_eq!(signer.sign(&caller, &call, Timestamp::now()), Err(Error::Caller));
    }
}
