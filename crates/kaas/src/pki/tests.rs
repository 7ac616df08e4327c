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
    let key = keys.kubernetes.key();
    let secret = key.lines().nth(1).unwrap();
    assert!(!String::from_utf8_lossy(&sealed).contains(secret));
    let opened = ClusterPki::open(&seal(1), "uid", &sealed).unwrap();
    assert_eq!(opened.kubernetes.certificate(), keys.kubernetes.certificate());
    assert_eq!(opened.etcd.key(), keys.etcd.key());
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
    let signed = keys.kubernetes.sign(&csr(), &leaf(Use::KubeletClient, &member), NOW).unwrap();
    parse(&signed, |certificate| {
        assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:pool-abc");
        assert!(certificate.subject_alternative_name().unwrap().is_none());
        assert!(!certificate.is_ca());
        let uses = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(uses.client_auth && !uses.server_auth);
    });
    let server = keys.kubernetes.sign(&csr(), &leaf(Use::ApiServer, &member), NOW).unwrap();
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
        let refused = keys.kubernetes.sign(bad, &leaf(Use::Proxy, &member), NOW);
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
    let issued = keys.kubernetes.issue(&leaf, NOW).unwrap();
    parse(&issued.certificate, |certificate| {
        assert_eq!(certificate.validity().not_after.timestamp(), NOW as i64 + 3600);
    });
    let authority = keys.kubernetes.certificate();
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
