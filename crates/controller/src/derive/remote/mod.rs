//! What may be downloaded on behalf of users: manifests, configs and what
//! remote generators make.
//!
//! Whoever can make the controller fetch a URL can reach what the controller
//! can reach. So a URL is judged together with the addresses that its host
//! has at that moment, and [`fetch`] connects to these addresses only.

pub(crate) mod fetch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::settings::FetchPolicy;

/// One download that an App needs before it can be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    pub(crate) url: String,
    /// JSON to be sent; without it nothing is sent.
    pub(crate) body: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Config,
    ConfigFile,
    Manifest,
    Generator,
}

/// A download that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) request: Request,
    pub(crate) outcome: Result<String, Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Denied(String),
    #[error("bad response {0}")]
    Status(u16),
    #[error("{0}")]
    Unusable(String),
    #[error("{0}")]
    Unreachable(String),
}

/// Whether a value of an App is to be fetched rather than taken as it is.
pub(crate) fn is_address(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Reads a URL and judges what can be judged without its addresses.
pub(crate) fn parse(text: &str, policy: &FetchPolicy) -> Result<Url, Failure> {
    let denied = |reason: &str| Failure::Denied(reason.to_owned());
    let url = Url::parse(text).map_err(|error| Failure::Denied(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(denied("only http and https are possible"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(denied("a user or password in the address is not possible"));
    }
    let Some(host) = url.host_str() else {
        return Err(denied("the address names no host"));
    };
    let port = url.port_or_known_default().unwrap_or_default();
    if !policy.allowed_hosts.is_empty()
        && !policy.allowed_hosts.iter().any(|pattern| matches(pattern, host, port))
    {
        return Err(Failure::Denied(format!(
            "{host} is not among the hosts that may be fetched from"
        )));
    }
    Ok(url)
}

/// Judges the addresses that the host of a URL has. One that is not allowed
/// is enough to refuse: a host that leads to both is not to be trusted.
pub(crate) fn judge(url: &Url, addresses: &[IpAddr], policy: &FetchPolicy) -> Result<(), Failure> {
    let host = url.host_str().unwrap_or_default();
    if addresses.is_empty() {
        return Err(Failure::Unreachable(format!("{host} has no address")));
    }
    // A host that the operator lists is trusted to be anywhere, except where
    // nobody serves manifests but clouds serve credentials.
    let listed = !policy.allowed_hosts.is_empty();
    let allowed =
        |address: &IpAddr| if listed { !is_never_a_host(*address) } else { is_public(*address) };
    match addresses.iter().find(|address| !allowed(address)) {
        Some(_) => Err(Failure::Denied(format!("{host} has an address that is not public"))),
        None => Ok(()),
    }
}

/// The addresses that a URL names itself, without asking anybody.
pub(crate) fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

/// `name`, `name:port` or `*.name`; without a port the usual two are meant.
fn matches(pattern: &str, host: &str, port: u16) -> bool {
    let pattern = pattern.trim().to_ascii_lowercase();
    let (name, ports) = match pattern.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') || name.ends_with(']') => {
            (name, digits.parse().map(|port| [port; 2]).ok())
        }
        _ => (pattern.as_str(), Some([80, 443])),
    };
    let port_matches = ports.is_some_and(|ports: [u16; 2]| ports.contains(&port));
    let host = host.trim_end_matches('.');
    let name_matches = match name.strip_prefix("*.") {
        Some(parent) => host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
        None => name == host,
    };
    port_matches && name_matches
}

fn is_never_a_host(address: IpAddr) -> bool {
    match plain(address) {
        IpAddr::V4(v4) => {
            v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() || v4.is_link_local()
        }
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local(),
    }
}

fn is_public(address: IpAddr) -> bool {
    !is_never_a_host(address)
        && match plain(address) {
            IpAddr::V4(v4) => is_public_v4(v4),
            IpAddr::V6(v6) => is_public_v6(v6),
        }
}

/// Addresses of IPv4 in the clothes of IPv6 are judged as what they are.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let from_bits = |high: u16, low: u16| {
        IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
    };
    match v6.segments() {
        // Mapped, compatible, and translated by NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low] => from_bits(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => from_bits(high, low),
        // 6to4 carries the address of its router.
        [0x2002, high, low, ..] => from_bits(high, low),
        _ => address,
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        (0 | 240..=255, ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _)
    );
    !special && !address.is_private() && !address.is_loopback() && !address.is_documentation()
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Only 2000::/3 is given out, less Teredo, documentation and benchmarks.
    match address.segments() {
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn policy(hosts: &[&str]) -> FetchPolicy {
        FetchPolicy {
            allowed_hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            ..FetchPolicy::default()
        }
    }

    fn decide(url: &str, addresses: &[&str], policy: &FetchPolicy) -> Result<(), Failure> {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        judge(&parse(url, policy)?, &addresses, policy)
    }

    #[test]
    fn public_hosts_are_allowed_by_default() {
        let open = policy(&[]);
        for address in ["93.184.216.34", "2606:2800:220:1::1", "100.128.0.1", "172.32.0.1"] {
            decide("https://example.com/m.yaml", &[address], &open).unwrap();
        }
        decide("http://example.com:8080/", &["8.8.8.8"], &open).unwrap();
    }

    #[test]
    fn addresses_that_are_not_public_are_denied() {
        let inside = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "::127.0.0.1",
            "fec0::1",
            "64:ff9b::a9fe:a9fe",
        ];
        for address in inside {
            let denied = decide("https://example.com/", &[address], &policy(&[]));
            assert!(matches!(denied, Err(Failure::Denied(_))), "{address}");
            let mixed = decide("https://example.com/", &["8.8.8.8", address], &policy(&[]));
            assert!(matches!(mixed, Err(Failure::Denied(_))), "{address}");
        }
        assert!(matches!(
            decide("https://example.com/", &[], &policy(&[])),
            Err(Failure::Unreachable(_))
        ));
    }

    #[test]
    fn a_list_of_hosts_is_all_that_is_allowed() {
        let listed = policy(&["Files.example", "*.corp.example", "10.0.0.5:8443", "[::1]:81"]);
        for (url, address) in [
            ("https://files.example/x", "10.0.0.1"),
            ("http://files.example./x", "8.8.8.8"),
            ("http://a.b.corp.example/", "127.0.0.1"),
            ("https://10.0.0.5:8443/", "10.0.0.5"),
            ("http://[::1]:81/", "::1"),
        ] {
            decide(url, &[address], &listed).unwrap();
        }
        for url in [
            "https://example.com/",
            "https://corp.example/",
            "https://evilcorp.example/",
            "https://files.example:8443/",
            "https://10.0.0.5/",
            "https://files.example.evil.com/",
        ] {
            assert!(matches!(parse(url, &listed), Err(Failure::Denied(_))), "{url}");
        }
        let metadata = decide("http://files.example/", &["169.254.169.254"], &listed);
        assert!(matches!(metadata, Err(Failure::Denied(_))));
    }

    #[test]
    fn odd_urls_are_denied() {
        for url in
            ["file:///etc/passwd", "ftp://a.example/", "http://u:p@a.example/", "http://", "x"]
        {
            assert!(matches!(parse(url, &policy(&[])), Err(Failure::Denied(_))), "{url}");
        }
        for (url, address) in [
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://[::ffff:7f00:1]/", "::ffff:127.0.0.1"),
        ] {
            let url = parse(url, &policy(&[])).unwrap();
            assert_eq!(literal(&url), Some(address.parse().unwrap()));
        }
        assert!(is_address("https://x") && !is_address("apiVersion: http://x"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(url in ".*", pattern in ".{0,10}", bits: u128) {
            let policy = policy(&[&pattern]);
            if let Ok(url) = parse(&url, &policy) {
                let _ = judge(&url, &[IpAddr::V6(bits.into())], &policy);
            }
            let _ = matches(&pattern, &url, 80);
        }
    }
}
