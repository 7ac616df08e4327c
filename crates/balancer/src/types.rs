//! Services that are published, and their status.

use std::{fmt, net::SocketAddr};

use jiff::Timestamp;

/// Protocol by which a port is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    /// HTTP/1.1 and HTTP/2, routed by path prefix.
    Http,
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Http => "http",
        })
    }
}

/// A service that is published to clients outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Whatever the caller knows it by.
    pub id: String,
    pub ports: Vec<Port>,
}

/// One public port of a service and where it leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    pub protocol: Protocol,
    pub public: u16,
    /// [`Protocol::Http`] only. Slashes at both ends do not matter; empty
    /// takes every path that no other service has a prefix for.
    pub path_prefix: String,
    /// The client's side is encrypted, the target's is not.
    pub tls: bool,
    pub targets: Vec<SocketAddr>,
    /// [`Protocol::Http`] only: the path that a healthy target answers with
    /// success. Without it, a target is healthy that takes connections.
    pub health_path: Option<String>,
}

/// Health of something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Health {
    /// No check has succeeded or failed yet.
    #[default]
    Unknown,
    Healthy,
    Unhealthy {
        reason: String,
        since: Timestamp,
    },
}

impl Health {
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }

    pub fn is_unhealthy(&self) -> bool {
        matches!(self, Self::Unhealthy { .. })
    }

    /// Returns whether both say the same, whatever their reasons.
    pub(crate) fn like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Status of a service.
///
/// A service is unhealthy when one of its ports has no target left, and
/// healthy when each of its ports has one that is. Datagrams are not answered
/// by whoever merely listens, so a udp port is unknown until something came
/// back through it; that does not count against a service with other ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub health: Health,
    pub ports: Vec<PortStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortStatus {
    pub protocol: Protocol,
    pub public: u16,
    pub path_prefix: String,
    pub health: Health,
    /// Connections now: of tcp, sessions of udp, requests and upgraded
    /// connections of http.
    pub connections: usize,
    /// Connections ever.
    pub total: u64,
    /// Bytes from clients. Of http, those of bodies.
    pub bytes_in: u64,
    /// Bytes to clients. Of http, those of bodies.
    pub bytes_out: u64,
    /// Failures that clients met for our or the targets' reasons.
    pub errors: u64,
    pub targets: Vec<TargetStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStatus {
    pub address: SocketAddr,
    pub health: Health,
    pub connections: usize,
    pub total: u64,
}
