//! A provider behind a private certificate authority.

use std::sync::Arc;

use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use selvage_auth::OidcProvider;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    harness::Harness,
    oidc::{Browser, PUBLIC},
};

/// Gives the authority's certificate, and the settings of the server.
fn certificates() -> (String, ServerConfig) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = params.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    (ca_pem, config)
}

/// Answers everything with a discovery document.
async fn serve(listener: TcpListener, config: ServerConfig) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let issuer = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let body = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
    })
    .to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close", body.len());
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") && stream.read_buf(&mut seen).await.unwrap() > 0 {}
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        stream.shutdown().await.ok();
    }
}

async fn harness(port: u16, ca_file: Option<&std::path::Path>) -> Harness {
    let mut settings = OidcProvider::new("corp", format!("https://localhost:{port}"), "selvage");
    settings.ca_file = ca_file.map(Into::into);
    Harness::with(|options| {
        options.oidc.push(settings);
        options.public_url = Some(PUBLIC.parse().unwrap());
    })
    .await
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named_and_only_there() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let (ca_pem, config) = certificates();
    std::fs::write(&file, ca_pem).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(listener, config));

    let trusting = harness(port, Some(&file)).await;
    let url = Browser::new(&trusting).begin("/auth/oidc/corp/login").await;
    assert_eq!(url.path(), "/authorize");
    let plain = harness(port, None).await;
    let outcome = Browser::new(&plain).finish("/auth/oidc/corp/login", &[]).await;
    assert_eq!(outcome.unwrap_err(), "provider_failed");
}
