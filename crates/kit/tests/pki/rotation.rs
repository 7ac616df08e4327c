//! One authority takes over from another.

use selvage_kit::pki::{Authorities, Trust, shown_certificate};

use super::{handshake::connect, *};

/// Returns whether both ends believe each other.
async fn meet(server: &Arc<ServerConfig>, client: ClientConfig) -> bool {
    let (server, client) = connect(Arc::clone(server), client, "localhost").await;
    server.is_ok() && client.is_ok()
}

struct Rotation {
    dir: TempDir,
    authorities: Authorities,
    old: Arc<Ca>,
    new: Arc<Ca>,
}

impl Rotation {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authorities = Authorities::open_or_create(&dir.path().join("pki")).unwrap();
        let old = authorities.signer();
        let new = Arc::new(old.next().unwrap());
        Self { dir, authorities, old, new }
    }

    fn has(&self, all: &[&Arc<Ca>]) {
        self.authorities.replace(all.iter().map(|ca| Arc::clone(ca)).collect()).unwrap();
    }

    /// A machine that gets a certificate now.
    fn machine(&self, name: &str) -> RotatingIdentity {
        let request = KeyRequest::new().unwrap();
        let signer = self.authorities.signer();
        let signed =
            signer.sign_machine_for(request.csr_pem(), &node(name), &names(&["localhost"]), DAY);
        let chain = format!("{}{}", signed.unwrap().certificate_pem, self.authorities.chain_pem());
        RotatingIdentity::create(&self.dir.path().join(name), &request, &chain).unwrap()
    }

    fn reopened(&self) -> Vec<String> {
        let again = Authorities::open_or_create(&self.dir.path().join("pki")).unwrap();
        again.all().iter().map(|ca| ca.sha256()).collect()
    }
}

#[tokio::test]
async fn whoever_believes_the_old_or_the_new_one_is_served_until_the_old_one_is_dropped() {
    let r = Rotation::new();
    let identity = ServerIdentity::issued(r.authorities.clone(), names(&["localhost"])).unwrap();
    let server =
        selvage_kit::pki::trusting_server_config(&identity, r.authorities.trust()).unwrap();
    let (old, new) = (Arc::clone(&r.old), Arc::clone(&r.new));
    let believes =
        |ca: &Ca, shown: Option<&RotatingIdentity>| client_config(ca.pem(), shown).unwrap();
    let before = r.machine("before");
    for (stage, all) in [[&old].as_slice(), &[&old, &new], &[&new, &old]].into_iter().enumerate() {
        r.has(all);
        identity.refresh().unwrap();
        let now = r.machine(&format!("stage-{stage}"));
        for shown in [None, Some(&before), Some(&now)] {
            let client = believes(&old, shown);
            assert!(meet(&server, client).await, "stage {stage}");
        }
        // A machine that believes the old one only is a server too.
        let machine = machine_server_config(&before, old.pem()).unwrap();
        assert!(meet(&machine, believes(&old, Some(&now))).await);
    }
    let now = r.machine("now");
    assert!(meet(&server, believes(&new, Some(&now))).await);

    r.has(&[&new]);
    identity.refresh().unwrap();
    assert!(meet(&server, believes(&new, Some(&now))).await);
    assert!(!meet(&server, believes(&new, Some(&before))).await);
    assert!(!meet(&server, believes(&old, None)).await);
}

#[tokio::test(start_paused = true)]
async fn connections_by_the_old_and_the_new_authority_are_distinguished() {
    let r = Rotation::new();
    let shown = |ca: &Ca| {
        let signed = ca.sign_machine(KeyRequest::new().unwrap().csr_pem(), &node("a")).unwrap();
        shown_certificate(&der(&signed.certificate_pem)).unwrap()
    };
    let (of_old, of_new) = (shown(&r.old), shown(&r.new));
    let trust = r.authorities.trust().clone();
    assert!(trust.believes(&of_old) && !trust.believes(&of_new));
    r.has(&[&r.new, &r.old]);
    assert!(trust.believes(&of_old) && trust.believes(&of_new));
    assert!(!trust.is_current(&of_old) && trust.is_current(&of_new));
    r.has(&[&r.new]);
    assert!(trust.believes(&of_old), "connections come to their end first");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(!trust.believes(&of_old) && trust.believes(&of_new));
}

#[test]
fn the_files_hold_every_authority_with_its_key_at_every_moment() {
    let r = Rotation::new();
    let (old, new) = (&r.old.sha256(), &r.new.sha256());
    let pki = r.dir.path().join("pki");
    let files = || (fs::read(pki.join("ca.key")).unwrap(), fs::read(pki.join("ca.crt")).unwrap());
    let alone = files();
    r.has(&[&r.old, &r.new]);
    assert_eq!(r.reopened(), [old.as_str(), new]);
    let both = files();
    // Killed after the keys were written, before the certificates.
    put(&pki.join("ca.crt"), &alone.1, 0o644);
    assert_eq!(r.reopened(), [old.as_str()]);
    put(&pki.join("ca.crt"), &both.1, 0o644);

    r.has(&[&r.new, &r.old]);
    assert_eq!(r.reopened(), [new.as_str(), old]);
    let signing = files();
    r.has(&[&r.new]);
    assert_eq!(r.reopened(), [new.as_str()]);
    let key = fs::read_to_string(pki.join("ca.key")).unwrap();
    assert_eq!(key.matches("BEGIN PRIVATE KEY").count(), 1, "the old key is gone");
    // Killed after the certificates were written, before the keys.
    put(&pki.join("ca.key"), &signing.0, 0o600);
    assert_eq!(r.reopened(), [new.as_str()]);
    assert_eq!(mode(&pki.join("ca.key")), 0o600);
}

#[test]
fn the_next_ones_key_opens_with_the_old_ones_alone() {
    let r = Rotation::new();
    let sealed = r.old.seal_key_of(&r.new).unwrap();
    let opened = r.old.open_next(r.new.pem(), &sealed).unwrap();
    assert_eq!(opened.sha256(), r.new.sha256());
    // It signs: the key is the right one.
    let signed = opened.sign_machine(KeyRequest::new().unwrap().csr_pem(), &node("a")).unwrap();
    assert!(r.new.is_named(&shown_certificate(&der(&signed.certificate_pem)).unwrap().issuer));

    let stranger = Rotation::new();
    let refused = stranger.old.open_next(r.new.pem(), &sealed).unwrap_err();
    assert!(refused.to_string().contains("copy pki/ from one of them"), "{refused}");
    let refused = r.old.open_next(stranger.new.pem(), &sealed).unwrap_err();
    assert!(matches!(refused, Error::SealedForAnother { .. }), "{refused}");
}

#[test]
fn trust_that_cannot_be_used_changes_nothing() {
    let r = Rotation::new();
    let trust = Trust::of(r.old.pem()).unwrap();
    assert!(trust.replace("garbage").is_err());
    assert_eq!(trust.fingerprints(), [r.old.sha256()]);
}
