//! Names in certificates.

use selvage_kit::pki::machine_of;

use super::*;

#[test]
fn a_request_gets_the_names_of_its_token_and_no_others() {
    let fixture = Fixture::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(names(&["evil.example", "10.0.0.1"])).unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI("selvage:controller".try_into().unwrap()));
    params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
    let request = params.serialize_request(&key).unwrap().pem().unwrap();

    let signed = fixture.ca.sign_machine(&request, &node("rack 3")).unwrap();
    let certificate = der(&signed.certificate_pem);
    assert_eq!(machine_of(&certificate).unwrap(), Some(node("rack 3")));
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    let names = &parsed.subject_alternative_name().unwrap().unwrap().value.general_names;
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(format!("{names:?}").contains("selvage:node/rack%203"), "{names:?}");
    assert!(!parsed.is_ca());
    let usage = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth && !usage.code_signing);
    assert_eq!(parsed.subject().to_string(), "CN=node/rack 3");
    assert_eq!(parsed.validity().not_after.timestamp(), signed.not_after);
    let life = signed.not_after - parsed.validity().not_before.timestamp();
    assert_eq!(life, 30 * 24 * 60 * 60 + 5 * 60);
}

#[test]
fn serial_numbers_differ_and_servers_get_their_names() {
    let fixture = Fixture::new();
    let first = fixture.ca.issue_server(&["a.example", "*.b.example", "::1"]).unwrap();
    let second = fixture.ca.issue_server(&["a.example"]).unwrap();
    let serial = |pem: &str| {
        let der = der(pem);
        x509_parser::parse_x509_certificate(&der).unwrap().1.raw_serial_as_string()
    };
    assert_ne!(serial(&first.chain_pem), serial(&second.chain_pem));
    let certificate = der(&first.chain_pem);
    assert_eq!(machine_of(&certificate).unwrap(), None);
    for name in ["", "a b", "http://a", "*.127.0.0.1", "a/b"] {
        let error = fixture.ca.issue_server(&[name]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("server name {name:?} is neither a DNS name nor an IP address")
        );
    }
}

#[test]
fn bad_requests_and_bad_names_are_refused() {
    let fixture = Fixture::new();
    let good = KeyRequest::new().unwrap();
    let refused = |csr: &str| fixture.ca.sign_machine(csr, &node("a")).unwrap_err().to_string();
    let not_pem = "certificate request: not PEM with a CERTIFICATE REQUEST in it";
    assert_eq!(refused(""), not_pem);
    assert_eq!(refused(fixture.ca.pem()), not_pem);
    assert_eq!(refused(&"x".repeat(70_000)), "certificate request: longer than 64 KiB");
    let garbage = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
    assert!(refused(garbage).starts_with("certificate request: "));

    // The same request with a bit of its signature changed.
    let forged = {
        let der = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(
            good.csr_pem().as_bytes(),
        )
        .unwrap();
        let mut bytes = der.as_ref().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        use base64::{Engine, prelude::BASE64_STANDARD};
        let body = BASE64_STANDARD.encode(bytes);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
    };
    assert_eq!(refused(&forged), "certificate request: its signature was not made by its key");

    for machine in [node("a/b"), node(""), Machine::Dme { name: "x".repeat(300) }] {
        let error = fixture.ca.sign_machine(good.csr_pem(), &machine).unwrap_err();
        assert!(matches!(error, Error::MachineName(_)), "{error}");
    }
}

#[test]
fn a_certificate_names_one_machine_in_one_spelling() {
    let with = |uris: &[&str]| {
        let mut params = rcgen::CertificateParams::default();
        for uri in uris {
            params.subject_alt_names.push(rcgen::SanType::URI((*uri).try_into().unwrap()));
        }
        let key = rcgen::KeyPair::generate().unwrap();
        machine_of(params.self_signed(&key).unwrap().der())
    };
    assert_eq!(with(&[]).unwrap(), None);
    assert_eq!(with(&["https://a"]).unwrap(), None);
    assert_eq!(with(&["selvage:controller", "https://a"]).unwrap(), Some(Machine::Controller));
    for (uris, reason) in [
        (&["selvage:controller", "selvage:node/a"][..], "more than one machine"),
        (&["selvage:emperor"], "is not one of"),
        (&["selvage:node/%FF"], "not valid UTF-8"),
        (&["selvage:node%2Fa"], "not spelled as we spell it"),
        (&["selvage:node/%61"], "not spelled as we spell it"),
    ] {
        let error = with(uris).unwrap_err().to_string();
        assert!(error.contains(reason), "{uris:?}: {error}");
    }
    assert!(machine_of(b"garbage").is_err());
}

#[test]
fn debug_shows_no_key() {
    let fixture = Fixture::new();
    let issued = fixture.ca.issue_server(&["localhost"]).unwrap();
    let request = KeyRequest::new().unwrap();
    let machine = fixture.machine("machine.pem", &node("a"));
    let (certificate, key) = fixture.files(&issued);
    let server = ServerIdentity::from_files(&certificate, &key).unwrap();
    let text = format!(
        "{:?} {issued:?} {request:?} {machine:?} {server:?} {:?} {:?}",
        fixture.ca,
        fixture.server(),
        fixture.client(Some(&machine)),
    );
    assert!(!text.contains("PRIVATE KEY"), "{text}");
    for pem in [
        issued.key_pem.to_string(),
        fs::read_to_string(fixture.path("ca/ca.key")).unwrap(),
        fs::read_to_string(fixture.path("machine.pem")).unwrap(),
    ] {
        let line = pem.lines().nth(1).unwrap();
        assert!(!text.contains(line) && !text.contains(&line[20..40]), "{text}");
    }
}
