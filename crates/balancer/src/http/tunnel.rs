//! Connections that go on with another protocol than HTTP.

use std::{io, sync::atomic::AtomicU64};

use futures::future::try_join;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::InFlight;
use crate::tcp::{Metered, bounded, join};

/// Joins both sides once they are free; counted like a request until then.
pub(super) fn start(client: OnUpgrade, target: OnUpgrade, in_flight: InFlight) {
    tokio::spawn(async move {
        if let Err(error) = run(client, target, &in_flight).await {
            let target = in_flight.lease.0.address;
            tracing::debug!(%target, %error, "upgraded connection cut");
        }
        drop(in_flight);
    });
}

async fn run(client: OnUpgrade, target: OnUpgrade, in_flight: &InFlight) -> io::Result<()> {
    let activity = AtomicU64::new(0);
    let counters = &in_flight.frontend.counters;
    let work = async {
        let (client, target) = try_join(client, target).await.map_err(io::Error::other)?;
        let mut client = Metered::new(TokioIo::new(client), counters, &activity);
        join(&mut client, &mut TokioIo::new(target)).await
    };
    let idle = in_flight.frontend.context.limits.tcp_idle;
    bounded(work, &activity, idle, &in_flight.lease.0.cut).await
}
