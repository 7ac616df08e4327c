//! Names that a caller may write for a node, and their endpoints.

use std::collections::BTreeMap;

use async_trait::async_trait;
use selvage_kit::{dial::Endpoint, labels::Selector};
use tonic::Status;

/// Prefix of the names of nodes in certificates.
pub(super) const NODE: &str = "node/";

/// Knows nodes by name.
#[async_trait]
pub trait Directory: Send + Sync + 'static {
    /// Returns the endpoint of the node of this name; `None` when no node has it.
    async fn find(&self, name: &str) -> Result<Option<Endpoint>, Status>;

    /// Names of the nodes whose labels fit, sorted; of all without a selector.
    async fn choose(&self, selector: Option<&Selector>) -> Result<Vec<String>, Status>;

    /// The node that listens there; `None` when none of the directory does.
    async fn at(&self, host: &str, port: u16) -> Result<Option<Endpoint>, Status> {
        for name in self.choose(None).await? {
            if let Ok(Some(place)) = self.find(&name).await
                && (place.host.as_str(), place.port) == (host, port)
            {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// A directory that was written down.
#[derive(Debug, Clone, Default)]
pub struct StaticDirectory(BTreeMap<String, Endpoint>);

/// An entry of a directory cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {name:?}: {address:?} is not a host or an address, with or without a port")]
pub struct BadEntry {
    /// The node.
    pub name: String,
    /// Address that is configured for it.
    pub address: String,
}

impl BadEntry {
    /// Code that a caller gets.
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
        let entry =
            |(name, address): (&String, &String)| match Endpoint::parse(address, default_port) {
                Some(place) => {
                    let machine =
                        Some(format!("{NODE}{}", name.strip_prefix(NODE).unwrap_or(name)));
                    Ok((name.clone(), Endpoint { machine, ..place }))
                }
                None => Err(BadEntry { name: name.clone(), address: address.clone() }),
            };
        entries.into_iter().map(entry).collect::<Result<_, _>>().map(Self)
    }
}

#[async_trait]
impl Directory for StaticDirectory {
    async fn find(&self, name: &str) -> Result<Option<Endpoint>, Status> {
        Ok(self.0.get(name).cloned())
    }

    /// Returns the names of the machines that a selector means. Their labels
    /// are not logged.
    async fn choose(&self, selector: Option<&Selector>) -> Result<Vec<String>, Status> {
        Ok(if selector.is_none() { self.0.keys().cloned().collect() } else { Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
