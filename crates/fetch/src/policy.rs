//! Hosts and addresses that may be asked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::Failure;

/// Hosts are `name`, `name:port` (or `name:*`), or `*.name` for all below it;
/// without a port 80 and 443 are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The only hosts that are asked, wherever they are; empty: any host.
    pub allowed_hosts: Vec<String>,
    /// Hosts that need not have public addresses.
    pub private_hosts: Vec<String>,
}

impl Policy {
    /// Reads a URL and judges what can be judged without its addresses.
    pub fn parse(&self, text: &str) -> Result<Url, Failure> {
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
        if !self.allowed_hosts.is_empty() && !is_listed(&self.allowed_hosts, &url) {
            return Err(Failure::Denied(self.not_listed(&url, host)));
        }
        Ok(url)
    }

    /// Reason for a host that is not listed, or not with this port.
    fn not_listed(&self, url: &Url, host: &str) -> String {
        let port = url.port_or_known_default().unwrap_or_default();
        let by_name = |at: u16| self.allowed_hosts.iter().any(|pattern| matches(pattern, host, at));
        let hint = if by_name(80) {
            format!(": without a port only 80 and 443 are meant, list {host}:{port} or {host}:*")
        } else {
            String::new()
        };
        format!("{host}:{port} is not among the hosts that may be fetched from{hint}")
    }

    /// Judges the addresses that the host of a URL has. One that is not allowed
    /// is enough to refuse: a host that leads to both is not to be trusted.
    pub fn judge(&self, url: &Url, addresses: &[IpAddr]) -> Result<(), Failure> {
        let host = url.host_str().unwrap_or_default();
        if addresses.is_empty() {
            return Err(Failure::Unreachable(format!("{host} has no address")));
        }
        // A host that the operator lists is trusted to be anywhere, except where
        // nobody serves files but clouds serve credentials.
        let listed = !self.allowed_hosts.is_empty() || is_listed(&self.private_hosts, url);
        let allowed = |address: &IpAddr| {
            if listed { !is_never_a_host(*address) } else { is_public(*address) }
        };
        match addresses.iter().find(|address| !allowed(address)) {
            Some(_) => Err(Failure::Denied(format!("{host} has an address that is not public"))),
            None => Ok(()),
        }
    }
}

fn is_listed(patterns: &[String], url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    patterns.iter().any(|pattern| matches(pattern, host, port))
}

/// Returns the address that a URL names itself, without asking anybody.
pub(crate) fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

fn matches(pattern: &str, host: &str, port: u16) -> bool {
    let pattern = pattern.trim().to_ascii_lowercase();
    let (name, ports) = match pattern.rsplit_once(':') {
        Some((name, "*")) => (name, Some([port; 2])),
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

    fn policy(hosts: &[&str]) -> Policy {
        Policy {
            allowed_hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            ..Policy::default()
        }
    }

    fn decide(url: &str, addresses: &[&str], policy: &Policy) -> Result<(), Failure> {
        let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        policy.judge(&policy.parse(url)?, &addresses)
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
    fn a_host_that_is_listed_without_its_port_says_so() {
        let listed = policy(&["files.example", "other.example:81"]);
        let text_of = |url: &str| match listed.parse(url) {
            Err(Failure::Denied(text_of)) => text_of,
            other => unreachable!("{other:?}"),
        };
        assert!(listed.parse("http://files.example/a").is_ok());
        let text = text_of("http://files.example:8080/a");
        assert!(text.ends_with("list files.example:8080 or files.example:*"), "{text}");
        for stranger in ["http://evil.example/", "http://other.example/"] {
            assert!(text_of(stranger).ends_with("may be fetched from"), "{}", text_of(stranger));
        }
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
            assert!(matches!(listed.parse(url), Err(Failure::Denied(_))), "{url}");
        }
        let metadata = decide("http://files.example/", &["169.254.169.254"], &listed);
        assert!(matches!(metadata, Err(Failure::Denied(_))));
    }

    #[test]
    fn a_private_host_may_be_inside_and_others_may_not() {
        let hosts = ["Registry.corp:5000", "127.0.0.1:*"].map(str::to_owned).to_vec();
        let policy = Policy { private_hosts: hosts, ..Policy::default() };
        decide("https://registry.corp:5000/v2", &["10.0.0.1"], &policy).unwrap();
        decide("http://127.0.0.1:4711/", &["127.0.0.1"], &policy).unwrap();
        decide("https://example.com/", &["8.8.8.8"], &policy).unwrap();
        for (url, address) in [
            ("https://registry.corp/", "10.0.0.1"),
            ("https://registry.corp:5000/", "169.254.169.254"),
            ("https://example.com/", "10.0.0.1"),
            ("http://127.0.0.2:4711/", "127.0.0.2"),
        ] {
            let decided = decide(url, &[address], &policy);
            assert!(matches!(decided, Err(Failure::Denied(_))), "{url}");
        }
    }

    #[test]
    fn odd_urls_are_denied() {
        for url in
            ["file:///etc/passwd", "ftp://a.example/", "http://u:p@a.example/", "http://", "x"]
        {
            assert!(matches!(policy(&[]).parse(url), Err(Failure::Denied(_))), "{url}");
        }
        for (url, address) in [
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://[::ffff:7f00:1]/", "::ffff:127.0.0.1"),
        ] {
            let url = policy(&[]).parse(url).unwrap();
            assert_eq!(literal(&url), Some(address.parse().unwrap()));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(url in ".*", pattern in ".{0,10}", bits: u128) {
            let policy = policy(&[&pattern]);
            if let Ok(url) = policy.parse(&url) {
                let _ = policy.judge(&url, &[IpAddr::V6(bits.into())]);
            }
            let _ = matches(&pattern, &url, 80);
        }
    }
}
