#![allow(clippy::unwrap_used, clippy::disallowed_methods)]
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::channel::mpsc;
use jiff::Timestamp;
use selvage_kit::{
    assertion,
    clock::ManualClock,
    identity::{Authenticator, Credentials, PersonCertificate, ShownAssertion},
    pki::Ca,
};
use tempfile::TempDir;

use super::*;

/// A controller that signs with a real CA.
struct Fake {
    ca: Ca,
    /// The one that takes over, once it signs.
    next: Mutex<Option<Ca>>,
    away: Mutex<bool>,
    renewed: AtomicUsize,
    asked: AtomicUsize,
    /// Number of those in which somebody used a token.
    attended: AtomicUsize,
    report: Mutex<wire::ReportResponse>,
    /// Holds the answer to the next report back.
    gate: Mutex<Option<tokio::sync::oneshot::Receiver<()>>>,
    lists: Mutex<Option<mpsc::UnboundedReceiver<Vec<String>>>>,
}

impl Fake {
    fn sign(&self, csr: &str, machine: &str) -> Result<wire::CertificateResponse, Status> {
        if *self.away.lock() {
            return Err(Status::unavailable("away"));
        }
        let named = Machine::parse(machine).unwrap();
        let next = self.next.lock();
        let signed = next.as_ref().unwrap_or(&self.ca).sign_machine(csr, &named).unwrap();
        let next = next.as_ref().map(Ca::pem).unwrap_or_default();
        Ok(wire::CertificateResponse {
            certificate: signed.certificate_pem,
            ca: format!("{next}{}", self.ca.pem()),
            machine: machine.to_owned(),
            ..Default::default()
        })
    }
}

#[async_trait]
impl Controller for Fake {
    async fn join(&self, token: &Secret, csr: &str) -> Result<wire::CertificateResponse, Status> {
        match token.expose() {
            "good" => self.sign(csr, "node/a"),
            "cloudlet" => self.sign(csr, "cloudlet/t/c"),
            _ => Err(Status::unauthenticated("token: this join token was used already")),
        }
    }

    async fn renew(&self, csr: &str) -> Result<wire::CertificateResponse, Status> {
        let signed = self.sign(csr, "node/a")?;
        self.renewed.fetch_add(1, Ordering::Relaxed);
        Ok(signed)
    }

    async fn report(&self, _: wire::ReportRequest) -> Result<wire::ReportResponse, Status> {
        let answer = self.report.lock().clone();
        let gate = self.gate.lock().take();
        if let Some(gate) = gate {
            gate.await.unwrap();
        }
        Ok(answer)
    }

    async fn blocked_machines(&self) -> Result<BlockedLists, Status> {
        let lists = self.lists.lock().take().ok_or_else(|| Status::unavailable("away"))?;
        Ok(lists.map(Ok).boxed())
    }

    async fn who_is(&self, token: &Secret, attended: bool) -> Result<wire::WhoAmIResponse, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.attended.fetch_add(usize::from(attended), Ordering::Relaxed);
        match token.expose() {
            "ann" => Ok(wire::WhoAmIResponse {
                name: "ann".into(),
                kind: "user".into(),
                grants: vec![wire::Grant { role: "viewer".into(), organisation: String::new() }],
                ..Default::default()
            }),
            "ann+ci" => Ok(wire::WhoAmIResponse {
                name: "ann+ci".into(),
                kind: "token".into(),
                grants: vec![wire::Grant { role: "viewer".into(), organisation: String::new() }],
                methods: vec!["os.OSService/*".into()],
                ..Default::default()
            }),
            "machine" => Ok(wire::WhoAmIResponse {
                name: "node/a".into(),
                kind: "machine".into(),
                ..Default::default()
            }),
            "away" => Err(Status::deadline_exceeded("nobody there")),
            _ => Err(Status::unauthenticated("the session has ended: log in again")),
        }
    }

    async fn whose_certificate(&self, sha256: &str) -> Result<wire::WhoAmIResponse, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match sha256 {
            "ab" => Ok(wire::WhoAmIResponse {
                name: "ann+laptop".into(),
                kind: "certificate".into(),
                grants: vec![wire::Grant { role: "admin".into(), organisation: String::new() }],
                ..Default::default()
            }),
            _ => Err(Status::unauthenticated("this certificate is not known here")),
        }
    }

    async fn issue_assertions(
        &self,
        _: &Secret,
        _: wire::IssueAssertionsRequest,
    ) -> Result<wire::IssueAssertionsResponse, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn check_assertion(&self, _: &Secret) -> Result<wire::WhoAmIResponse, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let ended = *self.away.lock();
        match ended {
            true => Err(Status::unauthenticated("the session has ended: log in again")),
            false => self.who_is(&Secret::new("ann"), false).await,
        }
    }
}

struct Region {
    directory: TempDir,
    clock: ManualClock,
    controller: Arc<Fake>,
}

impl Region {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(Timestamp::now());
        let ca = Ca::open_or_create_with(&directory.path().join("pki"), Arc::new(clock.clone()));
        let controller = Arc::new(Fake {
            ca: ca.unwrap(),
            next: Mutex::default(),
            away: Mutex::default(),
            renewed: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            attended: AtomicUsize::new(0),
            report: Mutex::default(),
            gate: Mutex::default(),
            lists: Mutex::default(),
        });
        Self { directory, clock, controller }
    }

    fn directory(&self) -> PathBuf {
        self.directory.path().join("joined")
    }

    async fn join(&self, token: &str, anchor: Anchor) -> Result<Member, Error> {
        let token = Secret::new(token);
        let invitation =
            Invitation { kind: Kind::Node, controller: "edge.example:8443", token: &token, anchor };
        let clock = Arc::new(self.clock.clone());
        Member::join_at(&self.directory(), &invitation, self.controller.as_ref(), clock).await
    }

    fn anchor(&self) -> Anchor {
        Anchor::Digest(self.controller.ca.sha256())
    }

    async fn member(&self) -> Member {
        self.join("good", self.anchor()).await.unwrap()
    }

    fn open(&self) -> Result<Option<Member>, Error> {
        Member::open(&self.directory(), Kind::Node, Arc::new(self.clock.clone()))
    }
}

#[tokio::test]
async fn a_member_is_one_again_after_a_restart_without_the_token() {
    let region = Region::new();
    assert!(region.open().unwrap().is_none());
    let joined = region.member().await;
    assert_eq!((joined.name(), joined.controller().as_str()), ("a", "edge.example:8443"));
    let again = region.open().unwrap().unwrap();
    assert_eq!((again.name(), again.not_after()), ("a", joined.not_after()));
    assert_eq!(again.ca_pem(), region.controller.ca.pem());
    again.server_tls().unwrap();
    again.move_to("https://other.example:1/").unwrap();
    assert_eq!(region.open().unwrap().unwrap().controller(), "other.example:1");
    again.move_to("one.example, https://[::1]:7/,192.0.2.1").unwrap();
    let endpoints = ["one.example:8443", "[::1]:7", "192.0.2.1:8443"];
    assert_eq!(again.controllers(), endpoints);
    assert_eq!(region.open().unwrap().unwrap().controllers(), endpoints);
    assert!(again.move_to("one.example,").is_err());
    assert_eq!(again.controllers(), endpoints, "what is wrong changes nothing");
}

#[tokio::test]
async fn a_controller_that_is_away_has_refused_nobody() {
    let region = Region::new();
    *region.controller.away.lock() = true;
    let away = region.join("good", region.anchor()).await.unwrap_err();
    assert_eq!(away.to_string(), "no controller answers at edge.example:8443: away");
    assert_eq!(away.code(), Code::Unavailable);
    let used = region.join("used", region.anchor()).await.unwrap_err();
    assert!(used.to_string().contains("does not let this machine in"), "{used}");
}

#[tokio::test]
async fn what_is_wrong_with_an_invitation_leaves_nobody_joined() {
    let region = Region::new();
    let used = region.join("used", region.anchor()).await.unwrap_err();
    assert!(used.to_string().contains("used already"), "{used}");
    assert_eq!(used.code(), Code::Unauthenticated);
    let other = Anchor::Digest("ab".repeat(32));
    assert!(matches!(region.join("good", other).await, Err(Error::OtherCa)));
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Ca::open_or_create(&elsewhere.path().join("pki")).unwrap();
    let other = Anchor::Certificate(other.pem().to_owned());
    assert!(matches!(region.join("good", other).await, Err(Error::OtherCa)));
    let cloudlet = region.join("cloudlet", region.anchor()).await.unwrap_err();
    assert!(cloudlet.to_string().contains("cloudlet/t/c"), "{cloudlet}");
    assert!(region.open().unwrap().is_none());
    let own = Anchor::Certificate(region.controller.ca.pem().to_owned());
    region.join("good", own).await.unwrap();
}

#[tokio::test]
async fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
    let region = Region::new();
    let member = region.member().await;
    let first = member.not_after();
    let day = Duration::from_secs(24 * 60 * 60);
    region.clock.advance(19 * day);
    assert!(!member.renew_if_due(region.controller.as_ref()).await.unwrap());
    region.clock.advance(2 * day);
    // A controller that is away for days costs nothing yet.
    *region.controller.away.lock() = true;
    member.renew_if_due(region.controller.as_ref()).await.unwrap_err();
    assert_eq!(member.not_after(), first);
    region.clock.advance(5 * day);
    *region.controller.away.lock() = false;
    assert!(member.renew_if_due(region.controller.as_ref()).await.unwrap());
    assert_eq!(member.not_after() - first, 26 * 24 * 60 * 60);
    assert!(!member.renew_if_due(region.controller.as_ref()).await.unwrap());
    assert_eq!(region.controller.renewed.load(Ordering::Relaxed), 1);
    // The new one is what a restart finds.
    assert_eq!(region.open().unwrap().unwrap().not_after(), member.not_after());
    region.clock.advance(31 * day);
    let late = region.open().unwrap_err();
    assert!(late.to_string().contains("expired"), "{late}");
}

#[tokio::test]
async fn neighbours_and_the_blocked_are_known_without_the_controller() {
    let region = Region::new();
    let member = region.member().await;
    let stolen = Machine::parse("node/stolen").unwrap();
    assert!(!member.is_blocked(&stolen));
    let machine = |name: &str, address: &str| wire::Machine {
        machine: name.into(),
        address: address.into(),
        ..Default::default()
    };
    *region.controller.report.lock() = wire::ReportResponse {
        machines: vec![machine("node/b", "192.0.2.2:1"), machine("node/a", "192.0.2.1:1")],
        blocked: vec!["node/stolen".into()],
        ..Default::default()
    };
    let report = report_of(1, "", &BTreeMap::new());
    member.report(region.controller.as_ref(), &report).await.unwrap();
    for member in [Arc::new(member), Arc::new(region.open().unwrap().unwrap())] {
        assert!(member.is_blocked(&stolen));
        assert_eq!(member.machine("node/b").unwrap().address, "192.0.2.2:1");
        assert!(member.machine("node/stolen").unwrap().blocked);
        assert_eq!(member.machine("node/c"), None);
        assert_eq!(member.machines().len(), 2);
        assert_eq!(member.controller(), "edge.example:8443");
    }
}

#[tokio::test]
async fn people_are_whom_the_controller_takes_them_for() {
    let region = Region::new();
    let member = Arc::new(region.member().await);
    let controller = Arc::clone(&region.controller) as Arc<dyn Controller>;
    let people = People::new(member, controller, Arc::new(region.clock.clone()));
    let bearer = |token: &str| Credentials::Bearer(Secret::new(token));
    for _ in 0..2 {
        let ann = people.authenticate(&bearer("ann")).await.unwrap();
        assert!(ann.name == "ann" && ann.has_role(selvage_kit::identity::Role::Viewer));
    }
    assert_eq!(region.controller.asked.load(Ordering::Relaxed), 1, "remembered");
    region.clock.advance(Duration::from_secs(11));
    people.authenticate(&bearer("ann")).await.unwrap();
    assert_eq!(region.controller.asked.load(Ordering::Relaxed), 2, "not for long");
    for (token, code) in [
        ("ended", Code::Unauthenticated),
        ("machine", Code::Unauthenticated),
        ("away", Code::Unavailable),
    ] {
        assert_eq!(people.authenticate(&bearer(token)).await.unwrap_err().code, code, "{token}");
    }
    let cookie = Credentials::Cookie(Secret::new("ann"));
    assert_eq!(people.authenticate(&cookie).await.unwrap_err().code, Code::Unauthenticated);
}

#[tokio::test]
async fn every_use_is_reported_to_the_controller_and_nothing_else() {
    let region = Region::new();
    let member = Arc::new(region.member().await);
    let controller = Arc::clone(&region.controller) as Arc<dyn Controller>;
    let people = People::new(member, controller, Arc::new(region.clock.clone()));
    let ann = Credentials::Bearer(Secret::new("ann"));
    let attended = || region.controller.attended.load(Ordering::Relaxed);
    for _ in 0..5 {
        people.recheck(&ann).await.unwrap();
        region.clock.advance(Duration::from_secs(11));
    }
    assert_eq!(attended(), 0, "a stream that is open is no use");
    people.recheck(&ann).await.unwrap();
    people.authenticate(&ann).await.unwrap();
    assert_eq!(attended(), 1, "what a stream's recheck found is not enough for a use");
    let asked = region.controller.asked.load(Ordering::Relaxed);
    people.recheck(&ann).await.unwrap();
    people.authenticate(&ann).await.unwrap();
    assert_eq!(region.controller.asked.load(Ordering::Relaxed), asked, "remembered");
}

#[tokio::test]
async fn tokens_and_certificates_keep_their_limits() {
    let region = Region::new();
    let member = Arc::new(region.member().await);
    let controller = Arc::clone(&region.controller) as Arc<dyn Controller>;
    let people = People::new(member, controller, Arc::new(region.clock.clone()));
    let bearer = |token: &str| Credentials::Bearer(Secret::new(token));
    let token = people.authenticate(&bearer("ann+ci")).await.unwrap();
    let selvage_kit::identity::Kind::Delegate(limits) = &token.kind else {
        unreachable!("{:?}", token.kind)
    };
    assert!(
        limits.opens("/os.OSService/Memory") && !limits.opens("/network.NetworkService/Routes")
    );

    let certificate =
        |sha256: &str| Credentials::Certificate(PersonCertificate { sha256: sha256.to_owned() });
    let ann = people.authenticate(&certificate("ab")).await.unwrap();
    assert_eq!(ann.name, "ann+laptop");
    let refused = people.authenticate(&certificate("cd")).await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    // What is remembered of a certificate is not found by those who know its
    // digest, which is no secret.
    for token in ["ab", "certificate:ab"] {
        let refused = people.authenticate(&bearer(token)).await.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated, "{token}");
    }
}

/// A call for another begins by what a controller signed, wherever that is now;
/// the right to one that lasts is asked for.
#[tokio::test]
async fn calls_for_others_begin_without_the_controller() {
    let region = Region::new();
    let member = Arc::new(region.member().await);
    let controller = Arc::clone(&region.controller) as Arc<dyn Controller>;
    let people = People::new(member, controller, Arc::new(region.clock.clone()));
    let request = KeyRequest::new().unwrap();
    let signed = region.controller.ca.sign_machine(request.csr_pem(), &Machine::Controller);
    let signer = assertion::Signer::new(&request, &signed.unwrap().certificate_pem).unwrap();
    let ann = people.authenticate(&Credentials::Bearer(Secret::new("ann"))).await.unwrap();
    let asked = || region.controller.asked.load(Ordering::Relaxed);
    let before = asked();
    let machine = |name: &str| Machine::parse(name).unwrap();
    let (by, method) = (machine("node/b"), "/os.OSService/Memory");
    let shown = |to: &str, goes_on| {
        let call = assertion::Call { by: &by, to: &machine(to), method };
        let text = signer.sign(&ann, &call, region.clock.now()).unwrap();
        let text = Secret::new(text);
        Credentials::Assertion(ShownAssertion {
            text,
            by: by.clone(),
            method: method.into(),
            goes_on,
        })
    };
    let mine = shown("node/a", false);
    assert_eq!(people.authenticate(&mine).await.unwrap(), ann);
    let refused = people.authenticate(&shown("node/c", false)).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert_eq!(asked(), before, "nobody was asked");

    let lasting = shown("node/a", true);
    region.clock.advance(Duration::from_secs(600));
    assert_eq!(people.authenticate(&mine).await.unwrap_err().code, Code::Unauthenticated);
    people.authenticate(&lasting).await.unwrap();
    assert_eq!(asked(), before + 2, "the controller, which asked itself");
    *region.controller.away.lock() = true;
    region.clock.advance(Duration::from_secs(11));
    assert_eq!(people.authenticate(&lasting).await.unwrap_err().code, Code::Unauthenticated);
    let refused = people.authenticate(&shown("node/c", true)).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "not even asked about");
}

#[test]
fn controllers_as_people_write_them() {
    for (text, endpoint) in [
        ("edge.example", "edge.example:8443"),
        ("https://edge.example:1", "edge.example:1"),
        ("https://[::1]:7/", "[::1]:7"),
        ("192.0.2.1", "192.0.2.1:8443"),
    ] {
        assert_eq!(endpoint_of(text).unwrap().to_string(), endpoint);
    }
    for wrong in ["", "http://a:1", "a b", "https://a/b", "a:port"] {
        assert!(endpoint_of(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_member_follows_the_authorities_of_its_region() {
    let region = Region::new();
    let member = region.member().await;
    let controller = region.controller.as_ref();
    let (old, next) = (&controller.ca, controller.ca.next().unwrap());
    let (old_pem, new_pem, new_der) =
        (old.pem().to_owned(), next.pem().to_owned(), next.der().clone());
    let announced = |ca: String, signer: &str| {
        let signing_authority = signer.to_owned();
        *controller.report.lock() =
            wire::ReportResponse { ca, signing_authority, ..Default::default() };
    };
    let report = report_of(1, "", &BTreeMap::new());
    let name = member.region();

    announced(format!("{old_pem}{new_pem}"), &old.sha256());
    member.report(controller, &report).await.unwrap();
    assert_eq!(member.trust().fingerprints(), [old.sha256(), next.sha256()]);
    assert_eq!(controller.renewed.load(Ordering::Relaxed), 0, "the old one signs still");
    let again = region.open().unwrap().unwrap();
    assert_eq!(again.trust().fingerprints().len(), 2, "on disk too");

    let sha256 = next.sha256();
    *controller.next.lock() = Some(next);
    announced(format!("{new_pem}{old_pem}"), &sha256);
    member.report(controller, &report).await.unwrap();
    member.report(controller, &report).await.unwrap();
    assert_eq!(controller.renewed.load(Ordering::Relaxed), 1, "once");
    assert!(member.identity.is_signed_by(&new_der));

    announced("garbage".to_owned(), &sha256);
    assert!(member.report(controller, &report).await.is_err());
    assert_eq!(member.trust().fingerprints().len(), 2, "nothing was lost");

    announced(new_pem.clone(), &sha256);
    member.report(controller, &report).await.unwrap();
    assert_eq!(member.trust().fingerprints(), [sha256]);
    let again = region.open().unwrap().unwrap();
    assert_eq!((again.ca_pem(), again.region()), (new_pem, name));
}

/// Lets the other futures of this task run.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_machine_is_refused_as_soon_as_it_is_blocked() {
    let region = Region::new();
    let member = region.member().await;
    let thief = Machine::parse("node/b").unwrap();
    let is_blocked = || member.is_blocked(&thief);
    let (controller, report) = (region.controller.as_ref(), report_of(1, "", &BTreeMap::new()));
    member.report(controller, &report).await.unwrap();
    assert!(!is_blocked());

    let (sender, lists) = mpsc::unbounded();
    *region.controller.lists.lock() = Some(lists);
    let blocking = async {
        sender.unbounded_send(vec!["node/b".into()]).unwrap();
        until(is_blocked).await;
        assert!(region.open().unwrap().unwrap().is_blocked(&thief), "after a restart too");
        // The answer of another controller may be older.
        member.report(controller, &report).await.unwrap();
        assert!(is_blocked());
        sender.unbounded_send(Vec::new()).unwrap();
        until(|| !is_blocked()).await;
        sender.unbounded_send(vec!["node/b".into()]).unwrap();
        until(is_blocked).await;
        sender.close_channel();
    };
    let (followed, ()) = tokio::join!(member.follow_blocked(controller), blocking);
    followed.unwrap();
    assert!(is_blocked(), "until a report says otherwise");
    member.report(controller, &report).await.unwrap();
    assert!(!is_blocked(), "without a connection reports decide");
    assert!(member.follow_blocked(controller).await.is_err());
}

#[tokio::test]
async fn a_report_from_before_a_block_does_not_lift_it() {
    let region = Region::new();
    let member = region.member().await;
    let thief = Machine::parse("node/b").unwrap();
    let (controller, report) = (region.controller.as_ref(), report_of(1, "", &BTreeMap::new()));
    let (open, gate) = tokio::sync::oneshot::channel();
    let (sender, lists) = mpsc::unbounded();
    *region.controller.gate.lock() = Some(gate);
    *region.controller.lists.lock() = Some(lists);
    sender.unbounded_send(vec!["node/b".into()]).unwrap();
    sender.close_channel();
    let blocking = async {
        until(|| region.controller.gate.lock().is_none()).await;
        member.follow_blocked(controller).await.unwrap();
        open.send(()).unwrap();
    };
    let (reported, ()) = tokio::join!(member.report(controller, &report), blocking);
    reported.unwrap();
    assert!(member.is_blocked(&thief));
}
