//! Connections to one target that requests take turns on.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use super::body::Upload;
use crate::Limits;

/// Connections that are kept without a use.
const KEPT: usize = 32;

/// Most servers close a silent connection later than this: it is not taken
/// just when they do.
const KEPT_FOR: Duration = Duration::from_secs(4);

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
            .pool_idle_timeout(KEPT_FOR)
            .pool_max_idle_per_host(KEPT)
            .set_host(false);
        let one = builder.build(connector.clone());
        let two = builder.http2_only(true).build(connector);
        Self { one, two }
    }
}
