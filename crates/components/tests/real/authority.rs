//! Authorities of a cluster, as a controller has them.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose::{self, ClientAuth, ServerAuth},
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use selvage_api::selvage::kubernetes::{
    Authorities as AuthoritiesMessage, Certificate, CertificateRequest, Profile,
};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }
}

pub(crate) struct Authorities {
    kubernetes: Authority,
    etcd: Authority,
    front_proxy: Authority,
    pub(crate) service_account_key: String,
}

struct Subject<'a> {
    name: String,
    group: &'a str,
    uses: &'a [ExtendedKeyUsagePurpose],
}

impl Authorities {
    pub(crate) fn new() -> Self {
        Self {
            kubernetes: Authority::new("kubernetes"),
            etcd: Authority::new("etcd"),
            front_proxy: Authority::new("front-proxy"),
            service_account_key: KeyPair::generate().unwrap().serialize_pem(),
        }
    }

    pub(crate) fn message(&self) -> AuthoritiesMessage {
        AuthoritiesMessage {
            kubernetes: self.kubernetes.pem.clone(),
            etcd: self.etcd.pem.clone(),
            front_proxy: self.front_proxy.pem.clone(),
        }
    }

    /// Signs what a machine asks for.
    pub(crate) fn sign(&self, request: &CertificateRequest, node: &str, ip: &str) -> Certificate {
        let (authority, subject) = self.subject(request.profile(), node);
        let mut csr = CertificateSigningRequestParams::from_pem(&request.csr).unwrap();
        describe(&mut csr.params, &subject, node, ip);
        let pem = csr.signed_by(&authority.issuer).unwrap().pem();
        Certificate { profile: request.profile, pem }
    }

    fn subject(&self, profile: Profile, node: &str) -> (&Authority, Subject<'static>) {
        let (both, client): (&[_], &[_]) = (&[ServerAuth, ClientAuth], &[ClientAuth]);
        let of = |name: &str, group, uses| Subject { name: name.to_owned(), group, uses };
        let kubernetes = &self.kubernetes;
        match profile {
            Profile::Apiserver => (kubernetes, of("kube-apiserver", "", &[ServerAuth])),
            Profile::ApiserverKubeletClient => {
                (kubernetes, of("kube-apiserver-kubelet-client", "system:masters", client))
            }
            Profile::ApiserverEtcdClient => (&self.etcd, of("kube-apiserver", "", client)),
            Profile::FrontProxyClient => (&self.front_proxy, of("front-proxy-client", "", client)),
            Profile::EtcdServer | Profile::EtcdPeer => (&self.etcd, of("etcd", "", both)),
            Profile::EtcdHealthcheckClient => (&self.etcd, of("healthcheck", "", client)),
            Profile::ControllerManager => {
                (kubernetes, of("system:kube-controller-manager", "", client))
            }
            Profile::Scheduler => (kubernetes, of("system:kube-scheduler", "", client)),
            Profile::KubeletClient => {
                (kubernetes, of(&format!("system:node:{node}"), "system:nodes", client))
            }
            Profile::KubeletServer => (kubernetes, of(node, "", &[ServerAuth])),
            Profile::Proxy => (kubernetes, of("system:kube-proxy", "", client)),
            Profile::Coredns => (kubernetes, of("system:coredns", "", client)),
            Profile::Volumes => (kubernetes, of(&format!("selvage:volumes:{node}"), "", client)),
            Profile::Unspecified => panic!("no profile"),
        }
    }

    /// A kubeconfig that may do everything.
    pub(crate) fn admin(&self, server: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let subject =
            Subject { name: "admin".into(), group: "system:masters", uses: &[ClientAuth] };
        describe(&mut params, &subject, "", "127.0.0.1");
        let certificate = params.signed_by(&key, &self.kubernetes.issuer).unwrap().pem();
        let encoded = |pem: &str| base64(pem.as_bytes());
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Config\",\"clusters\":[{{\"name\":\"c\",\
             \"cluster\":{{\"server\":\"https://{server}\",\"certificate-authority-data\":\"{}\"}}}}],\
             \"users\":[{{\"name\":\"u\",\"user\":{{\"client-certificate-data\":\"{}\",\
             \"client-key-data\":\"{}\"}}}}],\"contexts\":[{{\"name\":\"x\",\"context\":\
             {{\"cluster\":\"c\",\"user\":\"u\"}}}}],\"current-context\":\"x\"}}",
            encoded(&self.kubernetes.pem),
            encoded(&certificate),
            encoded(&key.serialize_pem()),
        )
    }
}

fn describe(params: &mut CertificateParams, subject: &Subject<'_>, node: &str, ip: &str) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject.name.as_str());
    if !subject.group.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, subject.group);
    }
    params.extended_key_usages = subject.uses.to_vec();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let address = |ip: &str| SanType::IpAddress(ip.parse().unwrap());
    let name = |name: &str| SanType::DnsName(name.try_into().unwrap());
    params.subject_alt_names = vec![address("127.0.0.1"), address("10.96.0.1"), address(ip)];
    params
        .subject_alt_names
        .extend(["localhost", "kubernetes", "kubernetes.default.svc"].map(name));
    if !node.is_empty() {
        params.subject_alt_names.push(name(node));
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
