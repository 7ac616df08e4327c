//! What a caller may write for a node, and where that is.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use async_trait::async_trait;
use selvage_kit::labels::Selector;
use tonic::Status;

/// Where a node's agent listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Name or address to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// The name that its certificate must have, if that is not the host.
    pub certificate_name: Option<String>,
    /// It is this very process.
    pub here: bool,
}

impl Place {
    /// A place whose certificate has the name by which it is reached.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, certificate_name: None, here: false }
    }

    pub(super) fn server_name(&self) -> &str {
        self.certificate_name.as_deref().unwrap_or(&self.host)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Knows nodes by name.
#[async_trait]
pub trait Directory: Send + Sync + 'static {
    /// Where the node of this name is; `None` when no node has it.
    async fn find(&self, name: &str) -> Result<Option<Place>, Status>;

    /// Names of the nodes whose labels fit, sorted; of all without a selector.
    async fn choose(&self, selector: Option<&Selector>) -> Result<Vec<String>, Status>;
}

/// A directory that was written down.
#[derive(Debug, Clone, Default)]
pub struct StaticDirectory(BTreeMap<String, Place>);

/// An entry of a directory cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {name:?}: {address:?} is not a host or an address, with or without a port")]
pub struct BadEntry {
    /// The node.
    pub name: String,
    /// What is written for it.
    pub address: String,
}

impl BadEntry {
    /// What this is to a caller.
    pub fn code(&self) -> selvage_api::Code {
        selvage_api::Code::InvalidArgument
    }
}

impl StaticDirectory {
    /// Nodes by name, each with `host`, `address` or either with a port.
    pub fn new<'a>(
        entries: impl IntoIterator<Item = (&'a String, &'a String)>,
        default_port: u16,
    ) -> Result<Self, BadEntry> {
        let entry = |(name, address): (&String, &String)| match parse(address, default_port) {
            Some(place) => Ok((name.clone(), place)),
            None => Err(BadEntry { name: name.clone(), address: address.clone() }),
        };
        entries.into_iter().map(entry).collect::<Result<_, _>>().map(Self)
    }
}

#[async_trait]
impl Directory for StaticDirectory {
    async fn find(&self, name: &str) -> Result<Option<Place>, Status> {
        Ok(self.0.get(name).cloned())
    }

    /// Nothing is written down of their labels.
    async fn choose(&self, selector: Option<&Selector>) -> Result<Vec<String>, Status> {
        Ok(if selector.is_none() { self.0.keys().cloned().collect() } else { Vec::new() })
    }
}

/// Reads `host`, `host:port`, an IPv4 or IPv6 address, `[ipv6]` or
/// `[ipv6]:port`.
pub(crate) fn parse(text: &str, default_port: u16) -> Option<Place> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Place::new(address.to_string(), default_port));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let address: std::net::Ipv6Addr = inside.parse().ok()?;
        let port = match after.strip_prefix(':') {
            Some(port) => parse_port(port)?,
            None if after.is_empty() => default_port,
            None => return None,
        };
        return Some(Place::new(address.to_string(), port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (text, default_port),
    };
    is_host(host).then(|| Place::new(host.to_ascii_lowercase(), port))
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_ways_to_write_a_node() {
        for (text, place) in [
            ("10.5.0.2", "10.5.0.2:50000"),
            ("10.5.0.2:7443", "10.5.0.2:7443"),
            ("::1", "[::1]:50000"),
            ("2001:DB8::7", "[2001:db8::7]:50000"),
            ("[::1]", "[::1]:50000"),
            ("[::1]:7443", "[::1]:7443"),
            ("Rack-3.example.org", "rack-3.example.org:50000"),
            ("node_1:1", "node_1:1"),
        ] {
            assert_eq!(parse(text, 50_000).unwrap().to_string(), place);
        }
        for wrong in [
            "",
            ":",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:b",
            "a b",
            "a/b",
            "a..b",
            "[::1",
            "[::1]x",
            "[a]",
            "::1:2:3:4:5:6:7:8:9",
            "user@host",
            "a:1:2",
            "\u{1f}",
        ] {
            assert_eq!(parse(wrong, 1), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_directory_finds_what_it_was_given() {
        let given = BTreeMap::from([("edge one".to_owned(), "[::1]:7".to_owned())]);
        let directory = StaticDirectory::new(&given, 1).unwrap();
        let found = directory.find("edge one").await.unwrap().unwrap();
        assert_eq!(found.to_string(), "[::1]:7");
        assert_eq!(directory.find("edge").await.unwrap(), None);
        assert_eq!(directory.choose(None).await.unwrap(), ["edge one"]);
        let selector = Selector::parse("a=b").unwrap();
        assert!(directory.choose(Some(&selector)).await.unwrap().is_empty());
        let wrong = BTreeMap::from([("n".to_owned(), "a b".to_owned())]);
        let refused = StaticDirectory::new(&wrong, 1).unwrap_err();
        assert!(refused.to_string().contains("\"n\""), "{refused}");
    }
}
