//! The edge controller: every object of `edgeproto`, its rules, and the
//! operations that take instances to READY and back.
//!
//! [`EdgeController`] is what a process opens, mounts and runs.
//! [`ControllerState`] is the core of it: the store, the tables in memory, the
//! settings; [`Controller`] adds what drives it. `objects` has the rules of the plain objects, `instances`
//! the life of ClusterInsts and AppInsts, `derive` what is computed from
//! objects without touching anything, `services` the gRPC face of it all,
//! `agents` the way to and from agents, `relay` where callers and agents
//! meet, `registry` how several
//! controllers know of each other, `version` how data of older models is
//! brought up to date.
//!
//! It does not talk to platforms: that is the work of the agents at the other
//! end of notify. It opens no socket and reads no file: whoever runs it mounts
//! its services and gives it a store.

mod agents;
pub mod controller;
mod daemon;
mod derive;
mod error;
mod exec;
pub mod guard;
pub mod import;
pub mod instances;
pub mod keys;
mod memory;
mod metrics;
pub mod objects;
mod options;
mod part;
pub mod registry;
mod relay;
pub mod row;
pub mod services;
pub mod settings;
mod state;
pub mod tables;
mod telemetry;
mod version;

pub use controller::{Controller, Dependencies, Foundation, Mode, Progress};
pub use daemon::ControllerPart;
pub use error::{Error, Result};
pub use options::{InfluxOptions, Options};
pub use part::EdgeController;
pub use services::WEB_SOCKET;
pub use settings::{Compat, FetchPolicy, Settings, Timeouts};
pub use state::ControllerState;
pub use tables::Tables;
