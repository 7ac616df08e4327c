//! Kubernetes clusters on machines: `cnct.kaas.api` and `selvage.clusters`.
//!
//! A call is checked as a whole and written in one transaction: [`record`]s of
//! clusters, pools and machines. A pure planner ([`plan()`]) says what to do
//! next about a cluster; [`Manager`] does it, step by step, and writes down
//! what came of it. Machines come from a [`provider`], Kubernetes is brought
//! up on them by a [`driver`]. The status of a cluster is a function of its
//! [`conditions`].
//!
//! A process may be killed at any instant: what is about to be done is written
//! first, every step may be taken again, and a provider keeps the operation
//! that a machine was asked for by.

mod caller;
pub mod catalogue;
pub mod conditions;
mod daemon;
pub mod driver;
mod endpoint;
mod error;
mod keyring;
pub mod manager;
mod members;
mod options;
mod part;
pub mod pki;
pub mod plan;
pub mod provider;
pub mod record;
mod service;
pub mod validate;
pub mod vault;

pub use caller::Caller;
pub use daemon::KaasPart;
pub use endpoint::ApiEndpoint;
pub use error::{Error, Result};
pub use keyring::Keyring;
pub use manager::{Dependencies, Manager, Origin, Settings};
pub use members::Members;
pub use options::{LocalOptions, Options, ProviderKind};
pub use part::{Compat, Kaas};
pub use plan::plan;
pub use service::{ClusterApi, Clusters};

/// Header of a call that names the organisation which owns what is made.
pub const ORGANISATION: &str = "x-selvage-organisation";
/// Header by which a request can be sent again.
pub const REQUEST_ID: &str = "x-request-id";
/// Header of an upgrade that goes on although something is missing.
pub const FORCE: &str = "x-selvage-force";
