//! Agents of machines that joined the controller: where they are, and how they
//! are called.

use std::{net::IpAddr, sync::Arc};

use selvage_api::selvage::identity::Machine as Joined;
use selvage_kit::{dial, dial::Endpoint, pki};
use tonic::transport::Channel;

use super::{Error, State};

/// Begins the names of machines' agents.
pub(super) const NODE: &str = "node/";

/// Knows the machines that joined.
pub trait Inventory: Send + Sync + 'static {
    fn machines(&self) -> Vec<Joined>;
}

impl<F: Fn() -> Vec<Joined> + Send + Sync + 'static> Inventory for F {
    fn machines(&self) -> Vec<Joined> {
        self()
    }
}

/// Machines that joined, and what it takes to call them.
pub(super) struct Fleet {
    inventory: Box<dyn Inventory>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Fleet {
    pub(super) fn new(inventory: impl Inventory, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { inventory: Box::new(inventory), tls }
    }

    pub(super) fn machines(&self) -> Vec<Joined> {
        self.inventory.machines()
    }

    /// Address of the agent of that name, without `node/`; `None` if no such
    /// machine joined, or it has not reported yet.
    pub(super) fn endpoint(&self, name: &str) -> Result<Option<Endpoint>, Error> {
        let full = format!("{NODE}{name}");
        let machine = self.inventory.machines().into_iter().find(|m| m.machine == full);
        let Some(machine) = machine else { return Ok(None) };
        if machine.blocked {
            return Err(Error::Unavailable(format!("machine {name:?} is blocked")));
        }
        let Some(mut endpoint) = Endpoint::parse(&machine.address, 0) else { return Ok(None) };
        endpoint.certificate_name = pki::is_server_name(name).then(|| name.to_owned());
        Ok(Some(endpoint))
    }

    /// State of a machine whose agent is there.
    pub(super) async fn up(&self, endpoint: &Endpoint) -> Result<State, Error> {
        let address = match endpoint.host.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => {
                let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
                let found = found.map_err(|error| Error::Unavailable(error.to_string()))?;
                let none = || Error::Unavailable(format!("{} has no address", endpoint.host));
                found.map(|address| address.ip()).next().ok_or_else(none)?
            }
        };
        Ok(State::Up { address: address.to_string(), agent: endpoint.to_string() })
    }

    pub(super) fn channel(&self, endpoint: Endpoint) -> Result<Channel, Error> {
        dial::channel(self.tls.clone(), &[endpoint])
            .map_err(|status| Error::Unavailable(status.message().to_owned()))
    }
}
