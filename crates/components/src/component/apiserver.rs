//! kube-apiserver: what everything else talks to.

use rcgen::KeyPair;
use selvage_api::selvage::kubernetes::Profile;

use super::{Component, Gate, etcd, flags};
use crate::{
    Result,
    member::{File, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "kube-apiserver";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    Ok(Component {
        name: NAME,
        version: member.version_of(NAME),
        program: member.kubernetes(NAME)?,
        arguments: command(member)?,
        files: files(member)?,
        mounts: Vec::new(),
        host: false,
        // It asks once what its etcd can do; one that is not there can nothing.
        gate: Some(Gate { name: "etcd", probe: Probe::Page(etcd::VOTES.into()) }),
        health: health(member),
    })
}

fn files(member: &Member<'_>) -> Result<Vec<File>> {
    let (authorities, plane) = (member.authorities(), member.control_plane()?);
    let mut files = vec![
        File::new("ca.crt", authorities.kubernetes),
        File::new("etcd-ca.crt", authorities.etcd),
        File::new("front-proxy-ca.crt", authorities.front_proxy),
        File::new("service-account.key", plane.service_account_key.as_bytes()),
        File::new("service-account.pub", public_key(&plane.service_account_key)),
    ];
    for (number, key) in plane.service_account_public_keys.iter().enumerate() {
        files.push(File::new(format!("service-account-{number}.pub"), key.as_bytes()));
    }
    for profile in [
        Profile::Apiserver,
        Profile::ApiserverKubeletClient,
        Profile::ApiserverEtcdClient,
        Profile::FrontProxyClient,
    ] {
        files.extend(member.pair(profile)?);
    }
    Ok(files)
}

/// Go takes a private key for its public one only in the older encodings.
fn public_key(private: &str) -> String {
    KeyPair::from_pem(private).map_or_else(|_| private.to_owned(), |key| key.public_key_pem())
}

fn command(member: &Member<'_>) -> Result<Vec<String>> {
    let (network, at) = (member.network(), |file: &str| member.path(NAME, file));
    let own = member.own_api();
    let port = own.rsplit_once(':').map_or("6443", |(_, port)| port).to_owned();
    let issuer = format!("https://kubernetes.default.svc.{}", network.dns_domain);
    let mut arguments = flags([
        ("advertise-address", member.spec.address.clone()),
        ("secure-port", port),
        ("etcd-servers", "https://127.0.0.1:2379".into()),
        ("etcd-cafile", at("etcd-ca.crt")),
        ("etcd-certfile", at("apiserver-etcd-client.crt")),
        ("etcd-keyfile", at("apiserver-etcd-client.key")),
        ("client-ca-file", at("ca.crt")),
        ("tls-cert-file", at("apiserver.crt")),
        ("tls-private-key-file", at("apiserver.key")),
        ("kubelet-certificate-authority", at("ca.crt")),
        ("kubelet-client-certificate", at("apiserver-kubelet-client.crt")),
        ("kubelet-client-key", at("apiserver-kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname".into()),
        ("service-account-key-file", at("service-account.pub")),
        ("service-account-signing-key-file", at("service-account.key")),
        ("service-account-issuer", issuer),
        ("service-cluster-ip-range", network.service_cidr),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("enable-bootstrap-token-auth", "true".into()),
        ("allow-privileged", "true".into()),
        ("requestheader-client-ca-file", at("front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("proxy-client-cert-file", at("front-proxy-client.crt")),
        ("proxy-client-key-file", at("front-proxy-client.key")),
        ("profiling", "false".into()),
    ]);
    for number in 0..member.control_plane()?.service_account_public_keys.len() {
        let path = at(&format!("service-account-{number}.pub"));
        arguments.push(format!("--service-account-key-file={path}"));
    }
    Ok(arguments)
}

fn health(member: &Member<'_>) -> Probe {
    Probe::Page(format!("https://{}/readyz", member.own_api()))
}
