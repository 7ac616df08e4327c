//! etcd behind certificates and passwords.

use std::path::Path;

use etcd_client::{Certificate, Client, ConnectOptions, Identity};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use selvage_store::etcd::{Credentials, Etcd, EtcdOptions, TlsOptions};
use selvage_store::{Error, StoreExt};

use selvage_testkit::etcd::Cluster;

/// A new authority in `folder`, and a certificate by it that is good for both
/// ends.
pub(super) fn certificates(folder: &Path) -> TlsOptions {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let cert = params.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    TlsOptions {
        ca: save("ca.pem", ca_cert.pem()),
        cert: save("cert.pem", cert.pem()),
        key: save("key.pem", key.serialize_pem()),
    }
}

/// Lets nobody in any more without a password.
pub(super) async fn demand_passwords(options: &EtcdOptions) {
    let read = |path: Option<std::path::PathBuf>| std::fs::read(path.unwrap()).unwrap();
    let mut connect = ConnectOptions::new();
    if let Some(tls) = options.tls.clone() {
        let tls = etcd_client::TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read(tls.ca)))
            .identity(Identity::from_pem(read(tls.cert), read(tls.key)));
        connect = connect.with_tls(tls);
    }
    let mut client = Client::connect(&options.endpoints, Some(connect)).await.unwrap();
    client.user_add("root", "a good word", None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_with_certificates_and_passwords() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let Some(cluster) = Cluster::start_with(1, Some(tls.clone().into()), &[]).await else { return };
    cluster.store().await.put("k", "v").await.unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = TlsOptions { ca: tls.ca.clone(), ..certificates(elsewhere.path()) };
    for tls in [stranger, certificates(elsewhere.path())] {
        let request_timeout = std::time::Duration::from_millis(500);
        let options = EtcdOptions { tls: Some(tls), request_timeout, ..cluster.options() };
        let error = Etcd::connect(options).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }

    demand_passwords(&cluster.options()).await;
    let with = |password: &str| {
        let credentials = Credentials { user: "root".to_owned(), password: password.to_owned() };
        EtcdOptions { credentials: Some(credentials), ..cluster.options() }
    };
    let store = Etcd::connect(with("a good word")).await.unwrap();
    store.put("k", "v").await.unwrap();
    assert_eq!(store.get("k").await.unwrap().unwrap().value, "v");
    let error = Etcd::connect(with("a bad word")).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("a bad word"));
}
