//! One certificate authority takes over from another.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use selvage_api::selvage::{
    identity::{
        BlockMachineRequest, CertificateResponse, CreateJoinTokenRequest, JoinRequest,
        ListMachinesRequest, RemoveMachineRequest, RenewRequest, ReportRequest, ReportResponse,
        identity_service_client::IdentityServiceClient,
        identity_service_server::IdentityServiceServer,
    },
    pki::{
        FinishRotationRequest, Pki, ShowRequest, StartRotationRequest,
        pki_service_client::PkiServiceClient,
    },
};
use selvage_auth::{Auth, CertificateAuthority, IdentityApi, SignError, Signed};
use selvage_kit::{
    clock::ManualClock,
    identity::{Authenticator, Connection, Machine},
    pki::{self, Authorities, shown_certificate},
};
use selvage_store::SharedStore;
use tempfile::TempDir;
use tonic::{Code, Request, Status};

use crate::harness::{HERE, anonymous, as_machine, as_root, csr, memory, options};

/// Authorities in files, as a daemon has them.
pub(crate) struct Signer(pub(crate) Authorities);

impl CertificateAuthority for Signer {
    fn sign(&self, csr: &str, machine: &Machine, names: &[String]) -> Result<Signed, SignError> {
        let signed = self.0.sign_machine_for(csr, machine, names, pki::MACHINE_LIFETIME).unwrap();
        let not_after = jiff::Timestamp::from_second(signed.not_after).unwrap();
        Ok(Signed { certificate_pem: signed.certificate_pem, not_after })
    }

    fn sign_person(&self, _: &str, _: &str, _: Duration) -> Result<Signed, SignError> {
        Err(SignError::BadRequest("no people here".into()))
    }

    fn ca_pem(&self) -> String {
        self.0.pem()
    }

    fn ca_sha256(&self) -> String {
        self.0.signer().sha256()
    }

    fn chain_pem(&self) -> String {
        self.0.chain_pem()
    }

    fn authorities(&self) -> Option<Authorities> {
        Some(self.0.clone())
    }
}

/// Controllers on one store.
struct Region {
    place: TempDir,
    store: SharedStore,
    clock: ManualClock,
}

/// A controller that runs.
struct Controller {
    auth: Auth,
    authorities: Authorities,
}

impl Region {
    #[allow(
        clippy::disallowed_methods,
        reason = "certificates are made by the time of the machine"
    )]
    async fn new() -> Self {
        let clock = ManualClock::new(jiff::Timestamp::now());
        Self { place: tempfile::tempdir().unwrap(), store: memory().await, clock }
    }

    /// Starts the controller of that name, with the keys of another the first
    /// time.
    async fn start(&self, name: &str, keys_of: &str) -> Result<Controller, selvage_auth::Error> {
        let folder = |name: &str| self.place.path().join(name);
        if name != keys_of && !folder(name).exists() {
            copy(&folder(keys_of), &folder(name));
        }
        let clock = Arc::new(self.clock.clone());
        let authorities = Authorities::open_or_create_with(&folder(name), clock).unwrap();
        let signer = Arc::new(Signer(authorities.clone())) as Arc<dyn CertificateAuthority>;
        let auth = Auth::open(Arc::clone(&self.store), options(&self.clock), Some(signer)).await?;
        auth.name_process(name);
        auth.follow_authorities().await?;
        Ok(Controller { auth, authorities })
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

impl Controller {
    fn has(&self) -> Vec<String> {
        self.authorities.all().iter().map(|ca| ca.sha256()).collect()
    }

    async fn follow(&self) {
        self.auth.follow_authorities().await.unwrap();
    }

    async fn begin(&self) -> Pki {
        let mut client = PkiServiceClient::new(self.auth.pki_service());
        client.start_rotation(as_root(StartRotationRequest {})).await.unwrap().into_inner()
    }

    async fn show(&self) -> Pki {
        let mut client = PkiServiceClient::new(self.auth.pki_service());
        client.show(as_root(ShowRequest {})).await.unwrap().into_inner()
    }

    async fn finish(&self, force: bool) -> Result<Pki, Status> {
        let mut client = PkiServiceClient::new(self.auth.pki_service());
        let finished = client.finish_rotation(as_root(FinishRotationRequest { force })).await;
        finished.map(tonic::Response::into_inner)
    }

    fn identities(&self) -> IdentityServiceClient<IdentityServiceServer<IdentityApi>> {
        IdentityServiceClient::new(self.auth.identity_service())
    }

    async fn join(&self, machine: &str) -> CertificateResponse {
        let ask = CreateJoinTokenRequest { machine: machine.into(), ..Default::default() };
        let made = self.identities().create_join_token(as_root(ask)).await.unwrap().into_inner();
        let request = JoinRequest { token: made.token, csr: csr() };
        self.identities().join(anonymous(HERE, request)).await.unwrap().into_inner()
    }

    /// The machine tells of itself, believing what it was given last.
    async fn report(&self, shows: &CertificateResponse) -> ReportResponse {
        let authorities = certificates(&shows.ca).iter().map(|der| pki::fingerprint(der)).collect();
        let report = ReportRequest { port: 1, authorities, ..Default::default() };
        self.identities().report(showing(shows, report)).await.unwrap().into_inner()
    }

    async fn renew(&self, shows: &CertificateResponse) -> CertificateResponse {
        let request = showing(shows, RenewRequest { csr: csr() });
        self.identities().renew(request).await.unwrap().into_inner()
    }

    async fn suspects(&self) -> bool {
        let mut identities = self.identities();
        let machines = identities.list_machines(as_root(ListMachinesRequest::default()));
        machines.await.unwrap().into_inner().machines[0].copy_suspected_at.is_some()
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

fn shown(certificate: &CertificateResponse) -> selvage_kit::identity::ShownCertificate {
    shown_certificate(&certificates(&certificate.certificate)[0]).unwrap()
}

/// A call with this certificate.
fn showing<T>(certificate: &CertificateResponse, message: T) -> Request<T> {
    let mut request = as_machine(&certificate.machine, message);
    let connection = request.extensions_mut().get_mut::<Connection>().unwrap();
    connection.certificate = Some(Arc::new(shown(certificate)));
    request
}

#[tokio::test]
async fn controllers_on_one_store_go_from_stage_to_stage_together() {
    let region = Region::new().await;
    let a = region.start("a", "a").await.unwrap();
    let b = region.start("b", "a").await.unwrap();
    copy(&region.place.path().join("a"), &region.place.path().join("late"));
    let old = a.has();

    assert_eq!(a.begin().await.stage, 1);
    let both = a.has();
    assert_eq!((both.len(), &both[..1]), (2, &old[..]), "the old one signs");
    a.follow().await;
    let waiting = a.show().await;
    assert_eq!(waiting.stage, 1, "b does not believe the new one yet");
    assert_eq!(waiting.waits_for[0], "the controller at b");
    assert_eq!(a.begin().await.stage, 1, "one rotation at a time");
    let refused = a.finish(true).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    b.follow().await;
    assert_eq!(b.authorities.pem(), a.authorities.pem(), "b got the key through the store");
    assert_eq!(b.show().await.stage, 2, "the last one counts up");
    b.follow().await;
    let new = vec![both[1].clone()];
    let refused = b.finish(true).await.unwrap_err();
    assert!(refused.message().contains("the controller at a"), "{}", refused.message());
    a.follow().await;
    assert_eq!((a.has(), b.has()), ([&new[..], &old].concat(), [&new[..], &old].concat()));

    // One that was down all the time is told, as long as its key opens the next.
    let late = region.start("late", "a").await.unwrap();
    assert_eq!(late.has(), a.has());
    copy(&region.place.path().join("b"), &region.place.path().join("spare"));

    assert_eq!(a.finish(false).await.unwrap().stage, 3);
    b.follow().await;
    late.follow().await;
    assert_eq!((a.has(), b.has(), late.has()), (new.clone(), new.clone(), new.clone()));
    let ended = a.show().await;
    assert!(ended.started_at.is_none() && ended.waits_for.is_empty());
    assert_eq!(a.finish(false).await.unwrap_err().code(), Code::FailedPrecondition);
    let spare = region.start("spare", "a").await.unwrap();
    assert_eq!(spare.has(), new, "it had both, and drops the old one");
}

#[tokio::test]
async fn a_controller_that_missed_the_end_is_asked_to_fetch_the_keys() {
    let region = Region::new().await;
    let a = region.start("a", "a").await.unwrap();
    copy(&region.place.path().join("a"), &region.place.path().join("late"));
    a.begin().await;
    a.follow().await;
    a.finish(false).await.unwrap();
    let refused = region.start("late", "a").await.err().unwrap().to_string();
    assert!(refused.contains("copy pki/ from another controller"), "{refused}");
    let stored = selvage_store::StoreExt::list(&*region.store, "").await.unwrap();
    let next_key_is_there = stored.items.iter().any(|item| {
        item.key.windows(10).any(|part| part == b"pki-region") && item.value.len() > 2000
    });
    assert!(!next_key_is_there, "the key that the old one opens is gone from the store");
}

#[tokio::test]
async fn a_controller_that_is_killed_at_any_stage_goes_on_from_there() {
    let region = Region::new().await;
    let mut stages = Vec::new();
    let mut last = Vec::new();
    for step in 0..5 {
        // Nothing is kept in memory from one step to the next.
        let a = region.start("a", "a").await.unwrap();
        match step {
            0 => drop(a.begin().await),
            3 => drop(a.finish(false).await),
            _ => a.follow().await,
        }
        stages.push(a.show().await.stage);
        last = a.has();
        // Its lease ends, as that of a process that was killed does.
        for lease in region.store.lease_list().await.unwrap() {
            region.store.lease_revoke(lease).await.unwrap();
        }
    }
    assert_eq!(stages.last(), Some(&3), "{stages:?}");
    assert_eq!(last.len(), 1);
    let files = Authorities::open_or_create(&region.place.path().join("a")).unwrap();
    assert_eq!(files.all().len(), 1);
}

#[tokio::test]
async fn the_old_one_stays_while_a_machine_uses_it() {
    let region = Region::new().await;
    let a = region.start("a", "a").await.unwrap();
    let first = a.join("node/first").await;
    let second = a.join("node/second").await;
    for machine in [&first, &second] {
        a.report(machine).await;
    }
    let begun = a.begin().await;
    let machines = begun.waits_for.iter().filter(|one| one.starts_with("node/")).count();
    assert_eq!((begun.stage, machines), (2, 2), "before it has come there itself");
    a.follow().await;
    a.follow().await;
    let answer = a.report(&first).await;
    assert_eq!(answer.signing_authority, a.has()[0]);
    assert_eq!(certificates(&answer.ca).len(), 2);
    let renewed = a.renew(&first).await;
    let waits = |pki: &Pki| -> Vec<(String, String)> {
        let each = pki.certificates.iter().map(|one| (one.machine.clone(), one.waits.clone()));
        each.filter(|(_, waits)| !waits.is_empty()).collect()
    };
    assert_eq!(waits(&a.show().await).len(), 2, "having is not using");
    a.report(&renewed).await;
    assert_eq!(waits(&a.show().await)[0].0, "node/second");
    let refused = a.finish(false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("node/second"), "{}", refused.message());
    assert!(!refused.message().contains("node/first"), "{}", refused.message());

    let finished = a.finish(true).await.unwrap();
    assert_eq!((finished.stage, a.has().len()), (3, 1));
    assert!(a.auth.certificate_is_current(&shown(&renewed)));
    assert!(!a.auth.certificate_is_current(&shown(&second)), "its connections are closed");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(a.auth.certificate_allowed(&shown(&renewed)));
    assert!(!a.auth.certificate_allowed(&shown(&second)));
}

#[tokio::test]
async fn machines_that_cannot_come_back_hold_nothing_up() {
    for how in ["blocked", "removed", "expired"] {
        let region = Region::new().await;
        let a = region.start("a", "a").await.unwrap();
        let gone = a.join("node/gone").await;
        a.report(&gone).await;
        a.begin().await;
        a.follow().await;
        a.follow().await;
        assert!(a.finish(false).await.is_err(), "{how}");
        let machine = gone.machine.clone();
        match how {
            "blocked" => {
                let request = as_root(BlockMachineRequest { machine });
                drop(a.identities().block_machine(request).await.unwrap());
            }
            "removed" => {
                let request = as_root(RemoveMachineRequest { machine });
                drop(a.identities().remove_machine(request).await.unwrap());
            }
            _ => region.clock.advance(pki::MACHINE_LIFETIME * 2),
        }
        a.finish(false).await.unwrap_or_else(|error| panic!("{how}: {error}"));
    }
}

#[tokio::test]
async fn only_administrators_replace_authorities() {
    let region = Region::new().await;
    let a = region.start("a", "a").await.unwrap();
    let mut client = PkiServiceClient::new(a.auth.pki_service());
    let started = client.start_rotation(as_machine("node/n", StartRotationRequest {})).await;
    assert_eq!(started.unwrap_err().code(), Code::PermissionDenied);
    let finished =
        client.finish_rotation(anonymous(HERE, FinishRotationRequest { force: true })).await;
    assert_eq!(finished.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(a.show().await.stage, 0);
}

#[tokio::test]
async fn a_certificate_that_was_replaced_and_renews_is_a_copy() {
    let region = Region::new().await;
    let a = region.start("a", "a").await.unwrap();
    let first = a.join("node/n").await;
    a.report(&first).await;
    let second = a.renew(&first).await;
    // The answer was lost: the machine has the first one still.
    let third = a.renew(&first).await;
    assert!(!a.suspects().await);
    a.report(&third).await;
    a.renew(&third).await;
    assert!(!a.suspects().await, "the newest one may renew");

    let fourth = a.renew(&third).await;
    a.report(&fourth).await;
    a.renew(&second).await;
    assert!(a.suspects().await);
    let shown = a.show().await;
    assert!(shown.certificates[0].copy_suspected_at.is_some());
}
