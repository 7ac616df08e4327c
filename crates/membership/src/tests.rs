#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use selvage_kit::{
    clock::ManualClock,
    identity::{Authenticator, Credentials},
    pki::Ca,
};
use tempfile::TempDir;

use super::*;

/// A controller that signs with a real CA.
struct Fake {
    ca: Ca,
    away: Mutex<bool>,
    renewed: AtomicUsize,
    asked: AtomicUsize,
    report: Mutex<wire::ReportResponse>,
}

impl Fake {
    fn sign(&self, csr: &str, machine: &str) -> Result<wire::CertificateResponse, Status> {
        if *self.away.lock() {
            return Err(Status::unavailable("away"));
        }
        let named = Machine::parse(machine).unwrap();
        let signed = self.ca.sign_machine(csr, &named).unwrap();
        Ok(wire::CertificateResponse {
            certificate: signed.certificate_pem,
            ca: self.ca.pem().to_owned(),
            machine: machine.to_owned(),
            not_after: None,
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
        Ok(self.report.lock().clone())
    }

    async fn who_is(&self, token: &Secret) -> Result<wire::WhoAmIResponse, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match token.expose() {
            "ann" => Ok(wire::WhoAmIResponse {
                name: "ann".into(),
                kind: "user".into(),
                grants: vec![wire::Grant { role: "viewer".into(), organisation: String::new() }],
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
            away: Mutex::default(),
            renewed: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            report: Mutex::default(),
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
