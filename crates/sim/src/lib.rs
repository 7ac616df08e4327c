//! A simulated edge: crms and match engines that speak real notify over real
//! sockets, with nothing behind them.
//!
//! [`SimCrm`] answers a controller as the crm of a cloudlet with the fake
//! platform does, at once, after a while, or step by step as a test says
//! ([`Mode`]), and fails in every way that is asked of it ([`Fault`]). What it
//! would have made is in its [`Infrastructure`], so that a test can see what
//! was left behind. [`SimFleet`] is many of them, [`SimDme`] a match engine
//! that only listens.
//!
//! Nothing here runs a workload, and whatever shows up elsewhere because of
//! it has `sim-` in its name.

mod crm;
mod dme;
mod faults;
mod fleet;
mod infra;
mod options;
mod reconcile;
mod shell;
mod steps;
mod worker;

pub use crm::{SimCrm, SimStatus};
pub use dme::SimDme;
pub use faults::{Fault, FaultRule};
pub use fleet::SimFleet;
pub use infra::{Counters, Infrastructure};
pub use options::{ClusterUpdate, Exec, Limits, Mode, Resync, SimOptions};
pub use selvage_edge::{ObjectKind, Verb};
pub use selvage_notify::Error;
pub use steps::{Stage, Step};
