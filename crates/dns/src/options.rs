//! The section `[dns]` of the configuration.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use hickory_proto::rr::{Name, rdata::tsig::TsigAlgorithm};
use selvage_kit::{
    clock::{Clock, SystemClock},
    config::{Duration, SecretFile},
};
use selvage_part::Result;
use serde::{Deserialize, Serialize};

use crate::update::Primary;

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
    /// Another name server that has the zones.
    pub update: Update,
    /// The controller's root domain, from `[controller]`.
    #[serde(skip)]
    pub root_domain: String,
}

/// Options of the updates (RFC 2136) by which the zones of another name server are
/// kept, for those whose DNS is elsewhere.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Update {
    /// Name server that takes updates of the zones, `HOST` or `HOST:PORT`. Empty:
    /// none is sent any.
    pub server: String,
    /// Name of the key that updates are signed with (TSIG), as the server has it.
    pub key_name: String,
    /// File with the key's secret in base64. Read again for each update.
    pub key_file: Option<SecretFile>,
    /// Algorithm of the key: `hmac-sha256`, `hmac-sha384` or `hmac-sha512`.
    pub algorithm: String,
}

impl Default for Update {
    fn default() -> Self {
        Self {
            server: String::new(),
            key_name: "selvage".into(),
            key_file: None,
            algorithm: "hmac-sha256".into(),
        }
    }
}

impl Update {
    /// The server with its port; `None` if there is none.
    fn server(&self) -> Result<Option<String>> {
        if self.server.is_empty() {
            return Ok(None);
        }
        if let Ok(ip) = self.server.parse::<IpAddr>() {
            return Ok(Some(SocketAddr::new(ip, DNS_PORT).to_string()));
        }
        let (host, port) = match self.server.rsplit_once(':') {
            None => (self.server.as_str(), DNS_PORT),
            Some((host, port)) => {
                let wrong = || format!("dns.update.server: {port:?} is not a port");
                (host, port.parse().with_context(wrong)?)
            }
        };
        let is_address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if is_address.is_none() {
            domain(host).context("dns.update.server")?;
        }
        Ok(Some(format!("{host}:{port}")))
    }

    /// The server with the key for it; `None` if there is none.
    pub(crate) fn primary(&self, clock: &Arc<dyn Clock>) -> Result<Option<Primary>> {
        let Some(server) = self.server()? else { return Ok(None) };
        let key_name = domain(&self.key_name).context("dns.update.key_name")?;
        let key_file = self.key_file.clone();
        let key_file = key_file.context("dns.update.key_file: updates have to be signed")?;
        let algorithm = match self.algorithm.to_ascii_lowercase().as_str() {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => bail!(
                "dns.update.algorithm: {other:?} is not hmac-sha256, hmac-sha384 or hmac-sha512"
            ),
        };
        let clock = Arc::clone(clock);
        Ok(Some(Primary { server, key_name, algorithm, key_file, clock }))
    }
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
            update: Update::default(),
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

    /// Addresses of the secondaries.
    pub(crate) fn secondaries(&self) -> Result<Vec<SocketAddr>> {
        self.secondaries.iter().map(|text| secondary(text)).collect()
    }

    /// Finds what no single key shows to be wrong.
    pub(crate) fn validate(&self) -> Result<()> {
        self.address()?;
        self.origins()?;
        self.nameservers()?;
        self.secondaries()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        self.update.primary(&clock)?;
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
    let mut name = parsed.ok().filter(|name| name.num_labels() > 0 && name.len() <= 200);
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
    fn zones_are_distinguished_by_name_alone() {
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
    fn updates_need_a_server_and_a_key() {
        let update = |server: &str| Update { server: server.into(), ..Update::default() };
        let with_key = |server: &str| {
            let key_file = Some(SecretFile("/etc/selvage/tsig".into()));
            Update { key_file, ..update(server) }
        };
        let refused = |update: Update| {
            let error = Options { update, ..Options::default() }.validate().unwrap_err();
            format!("{error:#}")
        };
        assert!(refused(update("192.0.2.1")).contains("dns.update.key_file"));
        assert!(refused(with_key("ns.example:dns")).contains("dns.update.server: \"dns\""));
        assert!(refused(with_key("a..b")).contains("dns.update.server"));
        let old = Update { algorithm: "hmac-md5".into(), ..with_key("192.0.2.1") };
        assert!(refused(old).contains("dns.update.algorithm: \"hmac-md5\""));
        let unnamed = Update { key_name: String::new(), ..with_key("192.0.2.1") };
        assert!(refused(unnamed).contains("dns.update.key_name"));
        let of = |text: &str| with_key(text).server().unwrap().unwrap();
        let found = ["192.0.2.1", "2001:db8::1", "[2001:db8::1]:53", "ns.example:5353"].map(of);
        let expected = ["192.0.2.1:53", "[2001:db8::1]:53", "[2001:db8::1]:53", "ns.example:5353"];
        assert_eq!(found, expected);
    }

    #[test]
    fn it_listens_only_on_configured_addresses() {
        let mut options = Options::default();
        assert_eq!(options.address().unwrap(), None);
        options.listen_by_default();
        assert_eq!(options.address().unwrap().unwrap().to_string(), "127.0.0.1:0");
        let mut off = Options { listen: OFF.into(), ..Options::default() };
        off.listen_by_default();
        assert_eq!(off.address().unwrap(), None);
    }
}
