//! Files of keys and certificates, and the errors for bad ones.

use super::*;

#[test]
fn bad_new_files_leave_the_old_certificate_in_place() {
    let fixture = Fixture::new();
    let first = fixture.ca.issue_server(&["localhost"]).unwrap();
    let (certificate, key) = fixture.files(&first);
    let identity = ServerIdentity::from_files(&certificate, &key).unwrap();
    let second = fixture.ca.issue_server(&["localhost"]).unwrap();

    put(&certificate, second.chain_pem.as_bytes(), 0o644);
    assert_eq!(
        text(&fixture, identity.refresh().unwrap_err()),
        "tls.key: the private key does not belong to the certificate in tls.crt"
    );
    assert_eq!(identity.certificate(), der(&first.chain_pem));
    assert!(!identity.refresh().unwrap(), "reported once");

    put(&certificate, b"garbage", 0o644);
    assert_eq!(
        text(&fixture, identity.refresh().unwrap_err()),
        "tls.crt: not a PEM certificate: no certificate in it"
    );
    fs::remove_file(&certificate).unwrap();
    assert_eq!(text(&fixture, identity.refresh().unwrap_err()), "tls.crt: cannot examine");
    assert_eq!(identity.certificate(), der(&first.chain_pem));

    fixture.files(&second);
    assert!(identity.refresh().unwrap());
    assert_eq!(identity.certificate(), der(&second.chain_pem));
}

#[test]
fn an_issued_certificate_renews_itself_when_a_third_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let clock = days_ago(0);
    let ca = Arc::new(Ca::open_or_create_with(&dir.path().join("ca"), clock.clone()).unwrap());
    let identity = ServerIdentity::issued(ca, names(&["localhost"])).unwrap();
    let first = identity.certificate();
    clock.advance(DAY * 59);
    assert!(!identity.refresh().unwrap());
    clock.advance(DAY * 2);
    assert!(identity.refresh().unwrap());
    assert_ne!(identity.certificate(), first);
    assert!(!identity.refresh().unwrap());
}

#[test]
fn the_ca_is_found_again_and_its_files_are_private() {
    let fixture = Fixture::new();
    let again = Ca::open_or_create(&fixture.path("ca")).unwrap();
    assert_eq!(again.pem(), fixture.ca.pem());
    assert_eq!(fs::read_to_string(fixture.ca.path()).unwrap(), fixture.ca.pem());
    assert_eq!(mode(&fixture.path("ca")), 0o700);
    assert_eq!(mode(&fixture.path("ca/ca.key")), 0o600);
    assert_eq!(fixture.ca.sha256().len(), 64);
    let left: Vec<_> = fs::read_dir(fixture.dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let (_, parsed) = x509_parser::parse_x509_certificate(fixture.ca.der()).unwrap();
    let years = (parsed.validity().not_after.timestamp()
        - parsed.validity().not_before.timestamp())
        / (365 * 24 * 60 * 60);
    assert_eq!(years, 10);
}

#[test]
fn many_that_start_at_once_agree_on_one_ca() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/ca");
    let barrier = std::sync::Barrier::new(16);
    let digests: std::collections::HashSet<String> = std::thread::scope(|scope| {
        let starters: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    Ca::open_or_create(&path).unwrap().sha256()
                })
            })
            .collect();
        starters.into_iter().map(|starter| starter.join().unwrap()).collect()
    });
    assert_eq!(digests.len(), 1, "{digests:?}");
    assert_eq!(fs::read_dir(dir.path().join("deep")).unwrap().count(), 1);
}

#[test]
fn a_ca_that_cannot_be_trusted_is_refused_in_exact_words() {
    let fixture = Fixture::new();
    let (key, certificate) = (fixture.path("ca/ca.key"), fixture.path("ca/ca.crt"));
    let (good_key, good_certificate) = (fs::read(&key).unwrap(), fs::read(&certificate).unwrap());
    let refused = || text(&fixture, Ca::open_or_create(&fixture.path("ca")).unwrap_err());

    chmod(&key, 0o640);
    assert_eq!(
        refused(),
        "ca/ca.key: private key open to others (mode 0640); run: chmod 600 ca/ca.key"
    );
    chmod(&key, 0o600);
    chmod(&fixture.path("ca"), 0o770);
    assert_eq!(
        refused(),
        "ca: directory of a private key writable by others (mode 0770); run: chmod 700 ca"
    );
    chmod(&fixture.path("ca"), 0o700);

    put(&key, b"garbage", 0o600);
    assert_eq!(refused(), "ca/ca.key: not a PEM private key that can be used");
    put(&key, Fixture::new().ca.pem().as_bytes(), 0o600);
    assert_eq!(refused(), "ca/ca.key: not a PEM private key that can be used");
    let other = Fixture::new();
    put(&key, &fs::read(other.path("ca/ca.key")).unwrap(), 0o600);
    assert_eq!(
        refused(),
        "ca/ca.key: the private key does not belong to the certificate in ca/ca.crt"
    );
    put(&key, &good_key, 0o600);

    put(&certificate, b"garbage", 0o644);
    assert_eq!(refused(), "ca/ca.crt: not a PEM certificate: no certificate in it");
    let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    put(&certificate, cut.as_bytes(), 0o644);
    assert!(refused().starts_with("ca/ca.crt: not a PEM certificate: "));
    fs::remove_file(&certificate).unwrap();
    assert_eq!(refused(), "ca/ca.crt: missing, while ca/ca.key is there; restore it from a backup");
    put(&certificate, &good_certificate, 0o644);
    fs::remove_file(&key).unwrap();
    assert_eq!(refused(), "ca/ca.key: missing, while ca/ca.crt is there; restore it from a backup");
    put(&key, &good_key, 0o600);
    assert_eq!(Ca::open_or_create(&fixture.path("ca")).unwrap().sha256(), fixture.ca.sha256());
}

#[test]
fn a_ca_out_of_its_time_or_no_ca_at_all_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture =
        Fixture { ca: Arc::new(Ca::open_or_create(&dir.path().join("ca")).unwrap()), dir };
    let opened = |clock: Arc<ManualClock>| {
        text(&fixture, Ca::open_or_create_with(&fixture.path("ca"), clock).unwrap_err())
    };
    let later = days_ago(0);
    later.advance(DAY * 3651);
    assert!(opened(later).starts_with("ca/ca.crt: the certificate expired at "));
    let earlier = opened(days_ago(1));
    assert!(earlier.starts_with("ca/ca.crt: the certificate is not valid before "), "{earlier}");

    let leaf = fixture.ca.issue_server(&["localhost"]).unwrap();
    put(&fixture.path("ca/ca.crt"), leaf.chain_pem.as_bytes(), 0o644);
    put(&fixture.path("ca/ca.key"), leaf.key_pem.as_bytes(), 0o600);
    let error = text(&fixture, Ca::open_or_create(&fixture.path("ca")).unwrap_err());
    assert_eq!(error, "ca/ca.crt: the certificate is not that of a CA");

    fs::create_dir(fixture.path("taken")).unwrap();
    fs::write(fixture.path("taken/file"), "x").unwrap();
    let error = text(&fixture, Ca::open_or_create(&fixture.path("taken")).unwrap_err());
    assert_eq!(error, "taken: holds no CA and is not empty; no CA is made there");
    fs::create_dir(fixture.path("empty")).unwrap();
    Ca::open_or_create(&fixture.path("empty")).unwrap();
}

#[test]
fn operators_keys_open_to_everybody_are_refused() {
    let fixture = Fixture::new();
    let (certificate, key) = fixture.files(&fixture.ca.issue_server(&["localhost"]).unwrap());
    chmod(&key, 0o644);
    assert_eq!(
        text(&fixture, ServerIdentity::from_files(&certificate, &key).unwrap_err()),
        "tls.key: private key open to others (mode 0644); run: chmod 600 tls.key"
    );
    chmod(&key, 0o640);
    ServerIdentity::from_files(&certificate, &key).unwrap();
}
