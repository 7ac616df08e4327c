//! Contents of each certificate of a member.

use super::{Leaf, MEMBER_LIFETIME};

/// Group of those who serve claims for volumes, one on each machine.
pub const VOLUMES: &str = "selvage:volumes";

/// The member that certificates are for.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub node: &'a str,
    pub address: &'a str,
    /// First address of services, by which pods reach the API.
    pub service_address: &'a str,
    /// Further names and addresses of the API.
    pub api_names: &'a [String],
}

/// Uses of a certificate; those of `selvage.kubernetes.Profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Use {
    ApiServer,
    ApiServerKubeletClient,
    ApiServerEtcdClient,
    FrontProxyClient,
    EtcdServer,
    EtcdPeer,
    EtcdHealthcheckClient,
    ControllerManager,
    Scheduler,
    KubeletClient,
    KubeletServer,
    Proxy,
    CoreDns,
    Volumes,
}

/// Returns what the certificate for that use says.
pub fn leaf(profile: Use, member: &Member<'_>) -> Leaf {
    let client = |name: &str| Leaf {
        common_name: name.to_owned(),
        organisation: None,
        client: true,
        server: false,
        names: Vec::new(),
        lifetime: MEMBER_LIFETIME,
    };
    let node_names = || vec![member.node.to_owned(), member.address.to_owned()];
    let local = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let etcd =
        |name: &str| Leaf { server: true, names: [node_names(), local()].concat(), ..client(name) };
    let node = || Leaf {
        organisation: Some("system:nodes".to_owned()),
        ..client(&format!("system:node:{}", member.node))
    };
    match profile {
        Use::ApiServer => Leaf {
            client: false,
            server: true,
            names: [node_names(), local(), api_names(member)].concat(),
            ..client("kube-apiserver")
        },
        Use::ApiServerKubeletClient => Leaf {
            organisation: Some("system:masters".to_owned()),
            ..client("kube-apiserver-kubelet-client")
        },
        Use::ApiServerEtcdClient => client("kube-apiserver-etcd-client"),
        Use::FrontProxyClient => client("front-proxy-client"),
        Use::EtcdServer => etcd("kube-etcd"),
        Use::EtcdPeer => etcd("kube-etcd-peer"),
        Use::EtcdHealthcheckClient => client("kube-etcd-healthcheck-client"),
        Use::ControllerManager => client("system:kube-controller-manager"),
        Use::Scheduler => client("system:kube-scheduler"),
        Use::KubeletClient => node(),
        Use::KubeletServer => Leaf { client: false, server: true, names: node_names(), ..node() },
        Use::Proxy => client("system:kube-proxy"),
        Use::CoreDns => client("system:coredns"),
        Use::Volumes => Leaf {
            organisation: Some(VOLUMES.to_owned()),
            ..client(&format!("{VOLUMES}:{}", member.node))
        },
    }
}

fn api_names(member: &Member<'_>) -> Vec<String> {
    let service = ["", ".default", ".default.svc", ".default.svc.cluster.local"];
    let mut names: Vec<String> =
        service.iter().map(|suffix| format!("kubernetes{suffix}")).collect();
    names.push(member.service_address.to_owned());
    for name in member.api_names {
        if !names.contains(name) && name != member.address {
            names.push(name.clone());
        }
    }
    names
}
