//! Authorities and the processes that have them, in the store. Times are
//! milliseconds since 1970.

use std::fmt;

use selvage_store::Record;

use super::stage::Stage;

/// Key of the one record of authorities.
pub(crate) const REGION: &str = "region";

/// An authority of the region.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct Generation {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(string, tag = "2")]
    pub(crate) certificate_pem: String,
    /// Its key, sealed with that of the generation before. Empty for one that
    /// everybody has.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) sealed_key: Vec<u8>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Authorities of the region, once they have been replaced or are being so.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Region {
    #[prost(uint64, tag = "1")]
    pub(crate) stage: u64,
    /// Those of the stage.
    #[prost(message, repeated, tag = "2")]
    pub(crate) generations: Vec<Generation>,
    #[prost(int64, tag = "3")]
    pub(crate) started_at: i64,
    #[prost(string, tag = "4")]
    pub(crate) started_by: String,
}

impl Record for Region {
    const KIND: &'static str = "pki-region";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        REGION.to_owned()
    }
}

impl Region {
    pub(crate) fn stage(&self) -> Stage {
        Stage(self.stage)
    }

    /// Authorities of the stage, the one that signs first.
    pub(crate) fn authorities(&self) -> Vec<&Generation> {
        let numbers = self.stage().generations();
        let find = |number: &u64| self.generations.iter().find(|one| one.number == *number);
        numbers.iter().filter_map(find).collect()
    }
}

/// A process that has the authorities. It ends with the process's lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Process {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint64, tag = "3")]
    pub(crate) stage: u64,
}

impl Record for Process {
    const KIND: &'static str = "pki-process";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.id.clone()
    }
}
