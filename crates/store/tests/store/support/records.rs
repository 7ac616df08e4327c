//! Record types for the tests.

use prost::Message;
use selvage_store::{Error, Record, Result};

/// The current form of a record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct App {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) owner: String,
    #[prost(uint64, tag = "3")]
    pub(crate) count: u64,
}

impl App {
    pub(crate) fn new(name: &str, owner: &str) -> Self {
        Self { name: name.to_owned(), owner: owner.to_owned(), count: 0 }
    }
}

impl Record for App {
    const KIND: &'static str = "app";
    const VERSION: u32 = 2;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("owner", self.owner.clone())]
    }

    fn migrate(from_version: u32, bytes: &[u8]) -> Result<Self> {
        let old = AppV1::decode(bytes).map_err(|error| Error::Corrupt {
            what: format!("app of version {from_version}"),
            detail: error.to_string(),
        })?;
        Ok(Self { name: old.name, owner: "nobody".to_owned(), count: old.uses.into() })
    }
}

/// The same kind as an older program wrote it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppV1 {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) uses: u32,
}

impl Record for AppV1 {
    const KIND: &'static str = "app";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// The same kind as a newer program may write it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppV3 {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

impl Record for AppV3 {
    const KIND: &'static str = "app";
    const VERSION: u32 = 3;

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// Counts, for tests that change two types at once.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Total {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint64, tag = "2")]
    pub(crate) sum: u64,
}

impl Record for Total {
    const KIND: &'static str = "total";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.name.clone()
    }
}
