//! The agent of one machine: what runs on it, what it uses, what its kernel
//! says, and the ways to steer it.
//!
//! It keeps no state: what it tells is read from the kernel and from the
//! container runtimes. Those are behind `selvage_runtime`.

#![allow(clippy::disallowed_methods, reason = "it tells the time of its machine")]

mod daemon;
pub mod fanout;
pub mod history;
pub mod host;
pub mod kmsg;
mod logs;
pub mod machine;
pub mod network;
mod node_service;
mod options;
mod os_service;
mod part;
pub mod proc;
pub mod prometheus;
mod rows;
pub mod sampler;
pub mod security;
pub mod time;
mod volumes;

pub use daemon::NodePart;
pub use options::Options;
pub use part::{Error, NodeAgent, Settings};
