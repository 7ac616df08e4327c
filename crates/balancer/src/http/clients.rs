//! Connections to one target that requests take turns on.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use super::body::Upload;
use crate::Limits;

/// Maximum number of idle connections.
const IDLE_LIMIT: usize = 32;

/// Time for which an idle connection is kept. Most servers close one later, so
/// that it is not used just when they do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Gone with its target, and with it every connection that is not in use.
pub(crate) struct Clients {
    pub(super) one: Client<HttpConnector, Upload>,
    /// HTTP/2 from the first byte on, for gRPC.
    pub(super) two: Client<HttpConnector, Upload>,
}

impl Clients {
    pub(crate) fn new(limits: &Limits) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_LIMIT)
            .set_host(false);
        let one = builder.build(connector.clone());
        let two = builder.http2_only(true).build(connector);
        Self { one, two }
    }
}
