//! Names by which people reach the APIs of clusters.

use std::{fmt, str::FromStr};

/// Place of the cluster's name.
const CLUSTER: &str = "{cluster}";
/// Port of API servers, where no other is named.
const PORT: u16 = 6443;
/// Longest name of a cluster, which is a part of the name of its API.
const LONGEST_CLUSTER: usize = 63;
/// Longest name that DNS has.
const LONGEST_NAME: usize = 253;

/// Name of the API of every cluster, such as `{cluster}.k8s.example:6443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiEndpoint {
    host: String,
    port: u16,
}

impl ApiEndpoint {
    /// Name of a cluster's API, which its certificate has.
    pub fn host(&self, cluster: &str) -> String {
        self.host.replace(CLUSTER, cluster)
    }

    /// Name and port that a kubeconfig has.
    pub fn address(&self, cluster: &str) -> String {
        format!("{}:{}", self.host(cluster), self.port)
    }
}

impl fmt::Display for ApiEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for ApiEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = match text.split_once(':') {
            None => (text, PORT),
            Some((host, port)) => match port.parse::<u16>().ok().filter(|port| *port > 0) {
                Some(port) => (host, port),
                None => return Err(format!("{text:?}: {port:?} is no port")),
            },
        };
        if host.matches(CLUSTER).count() != 1 {
            return Err(format!(
                "{text:?}: has to have {CLUSTER} in it once, as in {CLUSTER}.k8s.example"
            ));
        }
        let label = |label: &str| {
            let label = label.replace(CLUSTER, "c");
            let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(known)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let longest = host.len() - CLUSTER.len() + LONGEST_CLUSTER;
        // In a label with other letters a long name of a cluster would not fit.
        let alone = host.split('.').any(|label| label == CLUSTER);
        if !host.split('.').all(label) || longest > LONGEST_NAME || !alone {
            return Err(format!(
                "{text:?}: has to be a DNS name in small letters, as {CLUSTER}.k8s.example is"
            ));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_endpoint_has_a_name_for_each_cluster() {
        let endpoint: ApiEndpoint = "{cluster}.k8s.example".parse().unwrap();
        assert_eq!(endpoint.host("demo"), "demo.k8s.example");
        assert_eq!(endpoint.address("demo"), "demo.k8s.example:6443");
        let endpoint: ApiEndpoint = "api.{cluster}.example:443".parse().unwrap();
        assert_eq!(endpoint.address("demo"), "api.demo.example:443");
        for bad in [
            "",
            "k8s.example",
            "{cluster}.{cluster}",
            "{cluster}.K8s.example",
            "{cluster}..example",
            "x{cluster}.example",
            "https://{cluster}.example",
            "{cluster}.example:0",
            "{cluster}.example:https",
            "{cluster}.-a",
        ] {
            let refused = bad.parse::<ApiEndpoint>().unwrap_err();
            assert!(refused.starts_with(&format!("{bad:?}: ")), "{refused}");
        }
    }
}
