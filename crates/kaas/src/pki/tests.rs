#![allow(clippy::unwrap_used)]
use x509_parser::prelude::*;

use super::*;

const NOW: u64 = 1_790_000_000;

fn seal(byte: u8) -> Seal {
    Seal::new(&[byte; 32], "test").unwrap()
}

fn parse<T>(pem: &str, look: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    look(&pem.parse_x509().unwrap())
}

fn csr() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:masters");
    params.serialize_request(&key).unwrap().pem().unwrap()
}

#[test]
fn keys_come_out_as_they_went_in_and_only_with_their_seal() {
    let keys = ClusterPki::generate("demo", NOW).unwrap();
    let sealed = keys.seal(&seal(1), "uid").unwrap();
    let key = keys.current.kubernetes.key();
    let secret = key.lines().nth(1).unwrap();
    assert!(!String::from_utf8_lossy(&sealed).contains(secret));
    let opened = ClusterPki::open(&seal(1), "uid", &sealed).unwrap();
    assert_eq!(opened.current.kubernetes.certificate(), keys.current.kubernetes.certificate());
    assert_eq!(opened.current.etcd.key(), keys.current.etcd.key());
    assert!(ClusterPki::open(&seal(2), "uid", &sealed).is_err(), "another seal");
    assert!(ClusterPki::open(&seal(1), "other", &sealed).is_err(), "another cluster");
    assert!(ClusterPki::open(&seal(1), "uid", &sealed[..20]).is_err(), "cut off");
    assert!(!format!("{keys:?} {:?}", seal(1)).contains("PRIVATE"));
}

#[test]
fn a_certificate_says_what_its_profile_says_and_nothing_of_the_request() {
    let keys = ClusterPki::generate("demo", NOW).unwrap();
    let names = ["10.0.0.9".to_owned()];
    let member = Member {
        node: "pool-abc",
        address: "10.0.0.5",
        service_address: "10.96.0.1",
        api_names: &names,
    };
    let signed =
        keys.current.kubernetes.sign(&csr(), &leaf(Use::KubeletClient, &member), NOW).unwrap();
    parse(&signed, |certificate| {
        assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:pool-abc");
        assert!(certificate.subject_alternative_name().unwrap().is_none());
        assert!(!certificate.is_ca());
        let uses = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(uses.client_auth && !uses.server_auth);
    });
    let server = keys.current.kubernetes.sign(&csr(), &leaf(Use::ApiServer, &member), NOW).unwrap();
    parse(&server, |certificate| {
        let names = certificate.subject_alternative_name().unwrap().unwrap().value;
        let text = format!("{:?}", names.general_names);
        assert!(text.contains("kubernetes.default.svc") && !text.contains("evil"), "{text}");
    });
}

#[test]
fn a_request_that_proves_nothing_is_refused() {
    let keys = ClusterPki::generate("demo", NOW).unwrap();
    let member =
        Member { node: "n", address: "10.0.0.5", service_address: "10.96.0.1", api_names: &[] };
    for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"]
    {
        let refused = keys.current.kubernetes.sign(bad, &leaf(Use::Proxy, &member), NOW);
        assert!(matches!(refused, Err(Error::Request(_))), "{bad}");
    }
}

#[test]
fn a_kubeconfig_is_yaml_and_short_lived() {
    let keys = ClusterPki::generate("demo", NOW).unwrap();
    let leaf = Leaf {
        common_name: "selvage:ann".into(),
        organisation: Some(ADMINS.into()),
        client: true,
        server: false,
        names: Vec::new(),
        lifetime: Duration::from_secs(3600),
    };
    let issued = keys.current.kubernetes.issue(&leaf, NOW).unwrap();
    parse(&issued.certificate, |certificate| {
        assert_eq!(certificate.validity().not_after.timestamp(), NOW as i64 + 3600);
    });
    let authority = keys.current.kubernetes.certificate();
    let text = kubeconfig("demo", "10.0.0.5:6443", authority, "ann", &issued);
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["current-context"], "ann@demo");
    assert_eq!(read["clusters"][0]["cluster"]["server"], "https://10.0.0.5:6443");
}

#[test]
fn the_seal_is_made_once_and_refused_when_others_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pki/kaas.key");
    let sealed = Seal::load(&path).unwrap().seal("o", Zeroizing::new(b"secret".to_vec())).unwrap();
    let again = Seal::load(&path).unwrap().open_sealed("o", &sealed).unwrap();
    assert_eq!(again.as_slice(), b"secret");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Seal::load(&path), Err(Error::KeyFile { .. })));
}

#[test]
fn authorities_are_replaced_in_three_stages() {
    let mut keys = ClusterPki::generate("demo", NOW).unwrap();
    let kubernetes = |all: &Authorities| all.kubernetes.certificate().to_owned();
    let old = kubernetes(keys.signer(0).unwrap());
    assert!(keys.trusted(1, |all| &all.kubernetes).is_err(), "there is nobody to trust besides");
    keys.prepare("demo", NOW).unwrap();
    let new = kubernetes(keys.signer(2).unwrap());
    keys.prepare("demo", NOW).unwrap();
    assert_eq!(kubernetes(keys.signer(2).unwrap()), new, "made once");
    let sealed = keys.seal(&seal(1), "uid").unwrap();
    let mut keys = ClusterPki::open(&seal(1), "uid", &sealed).unwrap();
    let trusted = |keys: &ClusterPki, stage| keys.trusted(stage, |all| &all.kubernetes).unwrap();
    let signs = |keys: &ClusterPki, stage| kubernetes(keys.signer(stage).unwrap());
    assert_eq!(
        [0, 1, 2, 3].map(|stage| signs(&keys, stage)),
        [&old, &old, &new, &new].map(Clone::clone)
    );
    assert_eq!((trusted(&keys, 0), trusted(&keys, 3)), (old.clone(), new.clone()));
    for stage in [1, 2] {
        let bundle = trusted(&keys, stage);
        assert!(bundle.contains(&old) && bundle.contains(&new), "{bundle}");
    }
    let ids = [0, 2].map(|stage| keys.signer(stage).unwrap().kubernetes.key_id().unwrap());
    assert_ne!(ids[0], ids[1]);
    keys.advance(1);
    keys.advance(1);
    assert_eq!((keys.generation(), trusted(&keys, 3)), (1, new));
    assert!(keys.signer(0).is_err(), "the old one is gone");
}
