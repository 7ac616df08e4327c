//! An authoritative name server for what the match engine hands out: names of
//! instances, with the addresses of those that devices may be sent to now.
//!
//! * [`zone`](self) holds the records of one moment and finds answers in them.
//! * `directory` makes zones of what the controller tells by notify.
//! * `answer` turns a packet into its reply; it knows no sockets.
//! * `udp` and `tcp` are the listeners, `limit` keeps both from being of use to
//!   those who attack others.
//! * `transfer` hands whole zones to secondaries, `secondaries` tells them when
//!   to come.
//! * `publisher` keeps zones of another name server in step by the updates that
//!   `update` sends.
//!
//! It never asks anybody else: there is no recursion.

mod answer;
mod daemon;
mod directory;
#[doc(hidden)]
pub mod fuzz;
mod limit;
mod options;
mod publisher;
mod secondaries;
mod tcp;
mod telemetry;
mod transfer;
mod udp;
mod update;
mod zone;

pub use daemon::DnsPart;
pub use options::Options;
