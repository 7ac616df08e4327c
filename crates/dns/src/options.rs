//! The section `[dns]` of the configuration.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail};
use hickory_proto::rr::Name;
use selvage_kit::config::Duration;
use selvage_part::Result;
use serde::{Deserialize, Serialize};

/// Port of name servers.
const DNS_PORT: u16 = 53;
/// Value of `dns.listen` that switches the server off.
const OFF: &str = "off";

/// Options of the name server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Address and port that name servers and devices ask, by UDP and TCP, such
    /// as `192.0.2.7:53`; `off` for none. Empty: none, and in `selvage up` a
    /// free port of loopback.
    pub listen: String,
    /// Zones that are answered for beside `controller.root_domain`, such as
    /// the `dns_zone` of a cloudlet.
    pub zones: Vec<String>,
    /// Names of the zones' name servers, this one first. Empty: `ns` in the
    /// zone itself.
    pub nameservers: Vec<String>,
    /// Addresses of `ns` in the zones. Empty: the one that it listens on.
    pub addresses: Vec<IpAddr>,
    /// Time for which others may remember an answer.
    pub ttl: Duration,
    /// Name servers that may have whole zones (`IP` or `IP:PORT`), and are told
    /// when one has changed.
    pub secondaries: Vec<String>,
    /// Answers by UDP in a second for one network, an IPv4 /24 or an IPv6 /56;
    /// 0: as many as it likes.
    pub rate: u32,
    /// Most TCP connections at a time.
    pub connections: usize,
    /// Time after which a TCP connection without a question is closed.
    pub idle_timeout: Duration,
    /// The controller's root domain, from `[controller]`.
    #[serde(skip)]
    pub root_domain: String,
}

impl Default for Options {
    fn default() -> Self {
        let seconds = |count| Duration(std::time::Duration::from_secs(count));
        Self {
            listen: String::new(),
            zones: Vec::new(),
            nameservers: Vec::new(),
            addresses: Vec::new(),
            ttl: seconds(10),
            secondaries: Vec::new(),
            rate: 200,
            connections: 256,
            idle_timeout: seconds(10),
            root_domain: String::new(),
        }
    }
}

impl Options {
    /// Takes a free port of loopback where nothing else was said, as a whole
    /// system in one process does.
    pub fn listen_by_default(&mut self) {
        if self.listen.is_empty() {
            self.listen = "127.0.0.1:0".into();
        }
    }

    /// Address to listen on; `None` for a server that is off.
    pub(crate) fn address(&self) -> Result<Option<SocketAddr>> {
        match self.listen.as_str() {
            "" | OFF => Ok(None),
            text => {
                let wanted = "is not ADDRESS:PORT, nor off";
                Ok(Some(text.parse().with_context(|| format!("dns.listen: {text:?} {wanted}"))?))
            }
        }
    }

    /// All zones of a region, each once.
    pub(crate) fn origins(&self) -> Result<Vec<Name>> {
        let root = Some(&self.root_domain).filter(|root| !root.is_empty());
        Self::unique(root.into_iter().chain(&self.zones))
    }

    /// Zones of a site: the region's root is not known there.
    pub(crate) fn site_origins(&self) -> Result<Vec<Name>> {
        Self::unique(self.zones.iter())
    }

    fn unique<'a>(zones: impl Iterator<Item = &'a String>) -> Result<Vec<Name>> {
        let mut origins = Vec::new();
        for text in zones {
            let origin = domain(text).context("dns.zones")?;
            if !origins.contains(&origin) {
                origins.push(origin);
            }
        }
        Ok(origins)
    }

    /// Names of the name servers, where they are not in the zones.
    pub(crate) fn nameservers(&self) -> Result<Vec<Name>> {
        self.nameservers.iter().map(|text| domain(text).context("dns.nameservers")).collect()
    }

    /// Where the secondaries are.
    pub(crate) fn secondaries(&self) -> Result<Vec<SocketAddr>> {
        self.secondaries.iter().map(|text| secondary(text)).collect()
    }

    /// Finds what no single key shows to be wrong.
    pub(crate) fn validate(&self) -> Result<()> {
        self.address()?;
        self.origins()?;
        self.nameservers()?;
        self.secondaries()?;
        if self.connections == 0 {
            bail!("dns.connections: without any, long answers could not be had");
        }
        if self.ttl.0.as_secs() == 0 || self.ttl.0.as_secs() > MAX_TTL {
            bail!("dns.ttl: between 1s and {MAX_TTL}s, not {:?}", self.ttl.0);
        }
        if self.idle_timeout.0.is_zero() {
            bail!("dns.idle_timeout: 0 would close every connection");
        }
        Ok(())
    }
}

/// Longest time that answers may be remembered for: they are about what runs
/// now.
const MAX_TTL: u64 = 3600;

/// The name of a domain; case does not matter, a dot at the end neither.
pub(crate) fn domain(text: &str) -> Result<Name> {
    let parsed = Name::from_ascii(text.to_ascii_lowercase());
    let mut name = parsed.ok().filter(|name| !name.is_root() && name.len() <= 200);
    if let Some(name) = &mut name {
        name.set_fqdn(true);
    }
    name.with_context(|| format!("{text:?} is not the name of a domain"))
}

fn secondary(text: &str) -> Result<SocketAddr> {
    let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT));
    let parsed = alone.or_else(|_| text.parse());
    parsed.with_context(|| format!("dns.secondaries: {text:?} is not IP or IP:PORT"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn zones_are_told_apart_by_name_alone() {
        let zones = ["Edge.Example.", "selvage.internal", "edge.example"].map(str::to_owned);
        let root_domain = "selvage.internal".to_owned();
        let options = Options { zones: zones.to_vec(), root_domain, ..Options::default() };
        let origins: Vec<_> = options.origins().unwrap().iter().map(Name::to_ascii).collect();
        assert_eq!(origins, ["selvage.internal.", "edge.example."]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |options: Options| options.validate().unwrap_err().to_string();
        let wrong = |text: &str| vec![text.to_owned()];
        let listen = refused(Options { listen: "53".into(), ..Options::default() });
        assert!(listen.starts_with("dns.listen: \"53\""), "{listen}");
        assert_eq!(refused(Options { zones: wrong("a..b"), ..Options::default() }), "dns.zones");
        let secondary = refused(Options { secondaries: wrong("ns1"), ..Options::default() });
        assert!(secondary.contains("dns.secondaries"), "{secondary}");
        let none = refused(Options { connections: 0, ..Options::default() });
        assert!(none.contains("dns.connections"), "{none}");
        let days = Duration(std::time::Duration::from_secs(86_400));
        assert!(refused(Options { ttl: days, ..Options::default() }).contains("dns.ttl"));
        Options::default().validate().unwrap();
    }

    #[test]
    fn a_secondary_without_a_port_is_asked_where_name_servers_are() {
        let text = ["192.0.2.1", "192.0.2.1:5353", "2001:db8::1", "[2001:db8::1]:5353"];
        let options =
            Options { secondaries: text.map(str::to_owned).to_vec(), ..Options::default() };
        let found: Vec<_> =
            options.secondaries().unwrap().iter().map(ToString::to_string).collect();
        let expected = ["192.0.2.1:53", "192.0.2.1:5353", "[2001:db8::1]:53", "[2001:db8::1]:5353"];
        assert_eq!(found, expected);
    }

    #[test]
    fn it_listens_only_where_it_was_told_to() {
        let mut options = Options::default();
        assert_eq!(options.address().unwrap(), None);
        options.listen_by_default();
        assert_eq!(options.address().unwrap().unwrap().to_string(), "127.0.0.1:0");
        let mut off = Options { listen: OFF.into(), ..Options::default() };
        off.listen_by_default();
        assert_eq!(off.address().unwrap(), None);
    }
}
