use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use selvage_balancer::{Options, Port, Protocol};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::common::*;

pub(crate) struct Tls {
    pub(crate) server: Arc<ServerConfig>,
    client: ClientConfig,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["shop.example".into()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { server: Arc::new(server), client }
    }

    pub(crate) async fn connect(&self, stream: TcpStream, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut config = self.client.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("shop.example").unwrap();
        soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap()
    }

    pub(crate) fn bed(&self) -> Bed {
        Bed::with(Options { tls: Some(self.server.clone()), ..options() })
    }
}

fn encrypted(port: Port) -> Port {
    Port { tls: true, ..port }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bare_connections_are_encrypted_in_front() {
    let tls = Tls::new();
    let bed = tls.bed();
    let target = echo().await;
    bed.publish("it", vec![encrypted(port(Protocol::Tcp, 1000, &[target.address]))]).await;
    // Whatever protocol a client speaks inside is its own affair.
    let stream = tls.connect(bed.connect(1000).await, &[b"mqtt"]).await;
    let sent = noise(3, 1_000_000);
    let (mut read, mut write) = tokio::io::split(stream);
    let send = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut came = Vec::new();
    let (_, received) = soon(futures::future::join(send, read.read_to_end(&mut came))).await;
    // Half of it ended first, and the other half ended properly.
    received.unwrap();
    assert!(came == sent);
    drop((read, write));
    bed.until_empty("it").await;
    let seen = bed.seen("it");
    assert_eq!((seen.bytes_in, seen.bytes_out), (1_000_000, 1_000_000));
}

#[tokio::test]
async fn who_does_not_encrypt_is_not_let_through() {
    let tls = Tls::new();
    let bed = tls.bed();
    let target = named("secret").await;
    bed.publish("it", vec![encrypted(port(Protocol::Tcp, 1000, &[target.address]))]).await;
    let mut plain = bed.connect(1000).await;
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let heard = read_all(&mut plain).await.unwrap_or_default();
    assert!(!heard.windows(6).any(|part| part == b"secret"));
    until("it is counted", || bed.seen("it").errors == 1).await;
    assert_eq!(bed.seen("it").targets[0].total, 0, "the target never saw it");
}

#[tokio::test]
async fn encryption_of_a_port_can_change() {
    let tls = Tls::new();
    let bed = tls.bed();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    bed.publish("it", vec![encrypted(port(Protocol::Tcp, 1000, &[target.address]))]).await;
    let mut stream = tls.connect(bed.connect(1000).await, &[]).await;
    stream.write_all(b"x").await.unwrap();
    soon(stream.read_exact(&mut [0])).await.unwrap();
}

#[tokio::test]
async fn services_of_one_http_port_agree_on_encryption() {
    let tls = Tls::new();
    let bed = tls.bed();
    let target = echo().await;
    bed.publish("one", vec![encrypted(prefixed(443, "a", &[target.address]))]).await;
    let ports = vec![prefixed(443, "b", &[target.address])];
    let service = selvage_balancer::Service { id: "two".into(), ports };
    let error = bed.balancer.publish(service).await.unwrap_err().to_string();
    assert!(error.contains("\"one\" has port 443 with tls true"), "{error}");
}
