//! Options of a balancer, for all of its services alike.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use rustls::ServerConfig;

/// Tells the time of day.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Settings of a [`Balancer`](crate::Balancer).
#[derive(Clone)]
pub struct Options {
    /// Addresses to listen on. `0.0.0.0` and `::` can be used together; a
    /// family that this machine does not have is left out.
    pub addresses: Vec<IpAddr>,
    /// TLS configuration of ports with encryption. Its list of protocols (ALPN)
    /// is replaced by that of the port.
    pub tls: Option<Arc<ServerConfig>>,
    pub health: HealthOptions,
    pub limits: Limits,
    /// Clock for the time since which a target is unhealthy.
    pub now: Now,
}

impl Default for Options {
    #[allow(clippy::disallowed_methods, reason = "tests bring another clock")]
    fn default() -> Self {
        Self {
            addresses: vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            tls: None,
            health: HealthOptions::default(),
            limits: Limits::default(),
            now: Arc::new(Timestamp::now),
        }
    }
}

/// Rules by which a target becomes unhealthy, and healthy again.
#[derive(Debug, Clone)]
pub struct HealthOptions {
    /// Interval of checks of a target.
    pub every: Duration,
    /// Time a check may take.
    pub timeout: Duration,
    /// Number of failures in a row that make a target unhealthy. Client
    /// connections that the target refused count as well.
    pub failures: u32,
    /// Number of successes in a row that make a target healthy.
    pub successes: u32,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            failures: 3,
            successes: 1,
        }
    }
}

/// Limits of amounts and times.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections, requests and sessions of one service at a time. Those
    /// above are turned away; of udp, the one that was silent for longest
    /// makes place.
    pub connections: usize,
    /// Time a target may take to take a connection.
    pub connect: Duration,
    /// Time a client may take to agree on encryption.
    pub handshake: Duration,
    /// Time a client may take to say what it wants (http).
    pub header: Duration,
    /// Time a target may think about a request once it has all of it.
    pub response: Duration,
    /// Time for which a tcp connection, an upgraded connection or a body may
    /// stand still.
    pub tcp_idle: Duration,
    /// Time for which an http client may keep a connection that it does not
    /// use.
    pub http_idle: Duration,
    /// Time for which a udp session is remembered.
    pub udp_idle: Duration,
    /// Time for which connections may go on whose service or target was
    /// withdrawn.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(15),
            response: Duration::from_secs(60),
            tcp_idle: Duration::from_secs(3600),
            http_idle: Duration::from_secs(75),
            udp_idle: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}
