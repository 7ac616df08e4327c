//! Handshakes: which certificates are believed.

use std::io;

use rustls_pki_types::ServerName;
use selvage_kit::pki::{certificate_sha256, machine_of, person_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_util::sync::CancellationToken;

use super::*;

type Server = server::TlsStream<DuplexStream>;
type Client = client::TlsStream<DuplexStream>;

/// A handshake, and a byte each way: with TLS 1.3 a client learns only then
/// that the server did not like its certificate.
pub(super) async fn connect(
    server: Arc<ServerConfig>,
    client: ClientConfig,
    name: &'static str,
) -> (io::Result<Server>, io::Result<Client>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = async {
        let mut stream = TlsAcceptor::from(server).accept(near).await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok(stream)
    };
    let calling = async {
        let name = ServerName::try_from(name).unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, far).await?;
        assert_eq!(stream.read_u8().await?, b'!');
        Ok(stream)
    };
    tokio::join!(serving, calling)
}

async fn connected(server: Arc<ServerConfig>, client: ClientConfig) -> (Server, Client) {
    let (server, client) = connect(server, client, "localhost").await;
    (server.unwrap(), client.unwrap())
}

fn shown(client: &Client) -> CertificateDer<'static> {
    client.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[tokio::test]
async fn a_server_is_believed_with_and_without_a_client_certificate() {
    let fixture = Fixture::new();
    let (server, client) = connected(fixture.server(), fixture.client(None)).await;
    assert!(server.get_ref().1.peer_certificates().is_none());
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));

    let machine = Machine::Cloudlet { operator: "tm us".into(), name: "wölk%2f-1".into() };
    let identity = fixture.machine("machine.pem", &machine);
    let (server, _client) = connected(fixture.server(), fixture.client(Some(&identity))).await;
    let certificate = &server.get_ref().1.peer_certificates().unwrap()[0];
    assert_eq!(machine_of(certificate).unwrap(), Some(machine.clone()));
    assert_eq!(identity.machine(), machine);
}

#[tokio::test]
async fn both_versions_of_tls_and_both_kinds_of_name_work() {
    let fixture = Fixture::new();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(fixture.ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (_server, client) = connect(fixture.server(), client, "127.0.0.1").await;
        assert_eq!(client.unwrap().get_ref().1.protocol_version(), Some(version.version));
    }
    let (_, client) = connect(fixture.server(), fixture.client(None), "example.org").await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn a_foreign_ca_is_refused_both_ways() {
    let (ours, theirs) = (Fixture::new(), Fixture::new());
    let (_, client) = connect(theirs.server(), ours.client(None), "localhost").await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");

    let foreign = theirs.machine("machine.pem", &node("a"));
    let (server, client) = connect(ours.server(), ours.client(Some(&foreign)), "localhost").await;
    let error = server.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert!(client.is_err());
}

/// A certificate of a person opens connections and serves none, and nobody takes
/// it for one of a machine.
#[tokio::test]
async fn a_person_is_a_client_and_nothing_else() {
    let fixture = Fixture::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let signed = fixture.ca.sign_person(&csr, "ann+localhost", DAY).unwrap();
    let der = CertificateDer::from_pem_slice(signed.certificate_pem.as_bytes()).unwrap();
    let sha256 = certificate_sha256(&signed.certificate_pem).unwrap();
    assert_eq!(person_of(&der).unwrap().map(|person| person.sha256), Some(sha256));
    assert!(machine_of(&der).is_err());

    let mut roots = rustls::RootCertStore::empty();
    roots.add(fixture.ca.der().clone()).unwrap();
    let private = || rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![der.clone()], private())
        .unwrap();
    let (server, _client) = connected(fixture.server(), client).await;
    assert_eq!(server.get_ref().1.peer_certificates().unwrap()[0], der);

    let server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![der], private())
        .unwrap();
    let server = Arc::new(server);
    for client in [fixture.client(None), controller_config(fixture.ca.pem(), None).unwrap()] {
        let (_, client) = connect(Arc::clone(&server), client, "localhost").await;
        assert!(client.is_err());
    }
    for name in ["", "a/b", "node/a", "a b", "ä"] {
        assert!(fixture.ca.sign_person(&csr, name, DAY).is_err(), "{name}");
    }
    // Whoever has a machine's certificate is no person.
    let machine = fixture.machine("machine.pem", &node("a"));
    let (server, _client) = connected(fixture.server(), fixture.client(Some(&machine))).await;
    let certificate = &server.get_ref().1.peer_certificates().unwrap()[0];
    assert_eq!(person_of(certificate).unwrap(), None);
}

/// A node serves under its own names, which may be those of a controller.
#[tokio::test]
async fn a_machine_is_not_taken_for_a_controller() {
    let fixture = Fixture::new();
    let strict = || controller_config(fixture.ca.pem(), None).unwrap();
    for (machine, taken) in [(node("a"), false), (Machine::Controller, true)] {
        let request = KeyRequest::new().unwrap();
        let own = names(&["localhost"]);
        let signed = fixture.ca.sign_machine_for(request.csr_pem(), &machine, &own, DAY).unwrap();
        let path = fixture.path("served.pem");
        let identity = RotatingIdentity::create(&path, &request, &signed.certificate_pem).unwrap();
        let server = || machine_server_config(&identity, fixture.ca.pem()).unwrap();
        let (_server, client) = connect(server(), fixture.client(None), "localhost").await;
        client.unwrap();
        let (_server, client) = connect(server(), strict(), "localhost").await;
        match taken {
            true => drop(client.unwrap()),
            false => {
                let error = client.unwrap_err().to_string();
                assert!(error.contains("node/a and not a controller"), "{error}");
            }
        }
    }
    let (_server, client) = connect(fixture.server(), strict(), "localhost").await;
    client.unwrap();
    let (_server, client) = connect(Fixture::new().server(), strict(), "localhost").await;
    assert!(client.is_err(), "another CA");
    let (_server, client) = connect(fixture.server(), strict(), "example.org").await;
    assert!(client.is_err(), "another name");
}

#[tokio::test]
async fn expired_certificates_are_refused_on_the_wire_and_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("ca");
    let past = Ca::open_or_create_with(&directory, days_ago(100)).unwrap();
    let fixture = Fixture { ca: Arc::new(Ca::open_or_create(&directory).unwrap()), dir };
    assert_eq!(past.sha256(), fixture.ca.sha256());

    let request = KeyRequest::new().unwrap();
    let signed = past.sign_machine(request.csr_pem(), &node("a")).unwrap();
    let path = fixture.path("machine.pem");
    let old =
        RotatingIdentity::create_with(&path, &request, &signed.certificate_pem, days_ago(100))
            .unwrap();
    assert!(!old.needs_renewal());
    let (server, _client) =
        connect(fixture.server(), fixture.client(Some(&old)), "localhost").await;
    let error = server.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    let error = text(&fixture, RotatingIdentity::open(&path).unwrap_err());
    assert!(error.starts_with("machine.pem: the certificate expired at "), "{error}");

    let identity = ServerIdentity::issued(Arc::new(past), names(&["localhost"])).unwrap();
    let stale = server_config(&identity, &fixture.ca).unwrap();
    let (_, client) = connect(stale, fixture.client(None), "localhost").await;
    let error = client.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
}

#[tokio::test]
async fn new_files_are_shown_to_new_connections_while_old_ones_live() {
    let fixture = Fixture::new();
    let first = fixture.ca.issue_server(&["localhost"]).unwrap();
    let (certificate, key) = fixture.files(&first);
    let identity = ServerIdentity::from_files(&certificate, &key).unwrap();
    let config = server_config(&identity, &fixture.ca).unwrap();
    let (mut server, mut client) = connected(Arc::clone(&config), fixture.client(None)).await;
    assert_eq!(shown(&client), der(&first.chain_pem));
    assert!(!identity.refresh().unwrap());

    let second = fixture.ca.issue_server(&["localhost"]).unwrap();
    fixture.files(&second);
    assert!(identity.refresh().unwrap());
    let (_server, fresh) = connected(config, fixture.client(None)).await;
    assert_eq!(shown(&fresh), der(&second.chain_pem));

    client.write_all(b"still here").await.unwrap();
    client.flush().await.unwrap();
    let mut heard = [0; 10];
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"still here");
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_noticed_without_a_signal() {
    let fixture = Fixture::new();
    let (certificate, key) = fixture.files(&fixture.ca.issue_server(&["localhost"]).unwrap());
    let identity = Arc::new(ServerIdentity::from_files(&certificate, &key).unwrap());
    let cancel = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&identity).run(cancel.clone()));
    let second = fixture.ca.issue_server(&["localhost"]).unwrap();
    put(&key, b"garbage", 0o600);
    fixture.files(&second);
    let noticed = async {
        while identity.certificate() != der(&second.chain_pem) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), noticed).await.unwrap();
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_machine_renews_its_certificate_without_a_new_client() {
    let fixture = Fixture::new();
    let identity = fixture.machine("machine.pem", &node("a"));
    assert_eq!(mode(&fixture.path("machine.pem")), 0o600);
    let client = fixture.client(Some(&identity));
    let config = fixture.server();
    let peer = |server: &Server| server.get_ref().1.peer_certificates().unwrap()[0].clone();
    let (server, _client) = connected(Arc::clone(&config), client.clone()).await;
    let before = peer(&server);

    let request = KeyRequest::new().unwrap();
    let other = fixture.ca.sign_machine(request.csr_pem(), &node("b")).unwrap();
    let error = identity.renew(&request, &other.certificate_pem).unwrap_err();
    assert_eq!(
        error.to_string(),
        "machine certificate: it names node/b where node/a was asked for"
    );
    let unrelated = KeyRequest::new().unwrap();
    let signed = fixture.ca.sign_machine(request.csr_pem(), &node("a")).unwrap();
    assert!(matches!(
        identity.renew(&unrelated, &signed.certificate_pem),
        Err(Error::Mismatch { .. })
    ));
    identity.renew(&request, &signed.certificate_pem).unwrap();

    let (server, _client) = connected(config, client).await;
    assert_ne!(peer(&server), before);
    assert_eq!(peer(&server), der(&signed.certificate_pem));
    let reopened = RotatingIdentity::open(&fixture.path("machine.pem")).unwrap();
    assert_eq!(reopened.not_after(), signed.not_after);
    assert!(reopened.renew_at() < signed.not_after && !reopened.needs_renewal());
}
