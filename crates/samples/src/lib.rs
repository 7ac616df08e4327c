//! Samples: measurements of instances, clusters and cloudlets over time.
//!
//! [`Archive`] keeps them in memory, bounded in number, size and time, and in a
//! folder, so that a restart does not lose them. [`Scope`] says whose samples a
//! caller may see. [`Sink`] hands them on to a database that takes InfluxDB's
//! line protocol.

mod archive;
mod influx;
mod keeper;
mod line;
mod ring;
mod scope;

use selvage_api::{Code, edgeproto as wire};

pub use self::{
    archive::Archive,
    influx::{Influx, InfluxLogin, Sink},
    ring::{Counts, Limits, Samples, merged},
    scope::Scope,
};

/// Tag of a sample of an application.
pub const APP_TAG: &str = "app";
/// Tag of a sample of a cluster.
pub const CLUSTER_TAG: &str = "cluster";
/// The only one of these tags on a sample of a cloudlet.
pub const CLOUDLET_TAG: &str = "cloudlet";
/// Tag with the developer of an app.
pub const DEVELOPER_TAG: &str = "dev";
/// Tags with the operator of a cloudlet: as crms call it, and as match engines
/// do.
pub const OPERATOR_TAGS: [&str; 2] = ["operator", "oper"];

/// Returns the values of the tags of one of these names.
pub fn tagged<'a>(sample: &'a wire::Metric, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let named = sample.tags.iter().filter(move |tag| names.contains(&tag.name.as_str()));
    named.map(|tag| tag.val.as_str())
}

/// Error of a query for samples, or of their export.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the database cannot be used.
    #[error("influx url: {0}")]
    Url(String),
    /// Metadata by which a controller asks on behalf of a caller.
    #[error("{0} cannot be read")]
    Scope(&'static str),
}

impl Error {
    /// Code of this error for callers.
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}
