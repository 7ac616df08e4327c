//! The match engine: `distributed_match_engine`, by which a device finds the
//! instance of an app that is nearest to it, and checks where it is.
//!
//! Its knowledge comes by notify: apps, their instances and which cloudlets are
//! up. It is kept as one immutable [`Table`] that is replaced as a whole, so
//! that a lookup takes no lock and waits for nobody. While the controller is
//! away it goes on with what it was last told, after a start too where it has a
//! [`Mirror`].
//!
//! Devices have no accounts: they show a cookie that [`Engine`] gave them when
//! they registered. All engines of a region sign with the same keys, which are
//! kept in the controller's store ([`keys`]).
//!
//! Nothing here starts, places or watches an instance.

mod cephes;
mod cookie;
mod daemon;
mod developer;
mod engine;
mod error;
mod feed;
mod find;
pub mod keys;
mod list;
mod location;
mod mirror;
mod near;
mod options;
mod part;
mod position;
mod service;
mod stats;
mod table;
mod telemetry;
mod verified;

pub use cookie::{Cookies, Session};
pub use daemon::DmePart;
pub use engine::{Engine, LocationApi, Settings};
pub use error::{Error, Result};
pub use feed::Feed;
pub use mirror::Mirror;
pub use options::Options;
pub use part::{Dme, Upstream};
pub use position::{EARTH_RADIUS_KM, Position};
pub use stats::Stats;
pub use table::{AppName, CloudletName, Table};
