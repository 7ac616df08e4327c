//! The machines that joined, as the fan-out wants to see them, and this one
//! among them.

use std::{net::SocketAddr, time::Duration};

use selvage_api::selvage::identity as wire;
use selvage_auth::{Auth, Report};
use selvage_kit::identity::Machine;
use selvage_node::fanout::Machines;
use tokio_util::sync::CancellationToken;

use crate::{assemble, config::Config};

/// How often this process says that its own machine is there.
const EVERY: Duration = Duration::from_secs(60);

/// What the store knows.
pub(crate) struct Joined(pub(crate) Auth);

impl Machines for Joined {
    fn all(&self) -> Vec<wire::Machine> {
        self.0.machines()
    }

    fn get(&self, machine: &str) -> Option<wire::Machine> {
        Machine::parse(machine).ok().and_then(|machine| self.0.machine(&machine))
    }
}

/// Keeps this process's own machine among those that are known.
pub(crate) async fn keep_own(auth: Auth, report: Report, stop: CancellationToken) {
    let own = Machine::Node { name: assemble::host_name() };
    loop {
        if let Err(error) = auth.report(&own, report.clone()).await {
            tracing::warn!(%error, "this machine is not listed among the others");
        }
        if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
            return;
        }
    }
}

/// What this process tells of its own machine.
pub(crate) fn own_report(config: &Config, address: SocketAddr) -> Report {
    let advertised = [&config.node.advertise, &config.controller.external_address];
    let told = advertised.into_iter().find(|address| !address.is_empty());
    let address = match told {
        Some(address) => address.clone(),
        None if address.ip().is_unspecified() => {
            format!("{}:{}", assemble::host_name(), address.port())
        }
        None => address.to_string(),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Report { address, labels: config.node.labels.clone(), version }
}
