//! Machines of a provider that were given up before they became ready.

use selvage_store::{Record, clock::Millis};

/// Failures of one machine of a provider, since it last became ready.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MachineFailures {
    /// Name of the machine at the provider.
    #[prost(string, tag = "1")]
    pub provider_id: String,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(uint32, tag = "3")]
    pub count: u32,
    /// Why it was given up the last time, and when.
    #[prost(string, tag = "4")]
    pub reason: String,
    #[prost(uint64, tag = "5")]
    pub failed_at: Millis,
    /// Cluster that wanted it.
    #[prost(string, tag = "6")]
    pub cluster: String,
    #[prost(string, tag = "7")]
    pub provider: String,
    /// No cluster gets it.
    #[prost(bool, tag = "8")]
    pub quarantined: bool,
}

impl Record for MachineFailures {
    const KIND: &'static str = "kaas-machine-failures";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        failures_key(&self.provider, &self.provider_id)
    }
}

/// Key of the failures of a machine.
pub fn failures_key(provider: &str, id: &str) -> String {
    format!("{provider}/{id}")
}
