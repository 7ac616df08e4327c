//! Nodes that have joined, as the controller keeps them.

use async_trait::async_trait;
use selvage_api::selvage::identity::Machine;
use selvage_kit::{
    dial::Endpoint,
    labels::{Labels, Selector},
    pki,
};
use tonic::Status;

use super::{Directory, StaticDirectory, target::NODE};

/// Knows the machines that joined: the controller's store, or what an agent
/// was last told of it.
pub trait Machines: Send + Sync + 'static {
    /// All of them, sorted by name.
    fn all(&self) -> Vec<Machine>;

    /// Returns the machine of this name, such as `node/rack3-7`.
    fn get(&self, machine: &str) -> Option<Machine>;
}

/// A directory of what was written down and what has joined.
pub struct Inventory<M> {
    written: StaticDirectory,
    machines: M,
    /// The name of this process's own node.
    own: Option<String>,
}

impl<M: Machines> Inventory<M> {
    /// Directory in which configured names come first.
    pub fn new(written: StaticDirectory, machines: M, own: Option<String>) -> Self {
        Self { written, machines, own }
    }

    fn endpoint(&self, name: &str, machine: &Machine) -> Result<Endpoint, Status> {
        if machine.blocked {
            return Err(Status::failed_precondition(format!("machine {name:?} is blocked")));
        }
        // Port 0 is nobody's: reports always have one.
        let mut endpoint = Endpoint::parse(&machine.address, 0).ok_or_else(|| {
            Status::unavailable(format!("machine {name:?} has not told where it is"))
        })?;
        endpoint.machine = Some(machine.machine.clone());
        endpoint.here = self.own.as_deref() == Some(name);
        // Whoever answers there must be the machine that was meant.
        endpoint.certificate_name = pki::is_server_name(name).then(|| name.to_owned());
        Ok(endpoint)
    }
}

#[async_trait]
impl<M: Machines> Directory for Inventory<M> {
    async fn find(&self, name: &str) -> Result<Option<Endpoint>, Status> {
        if let Some(endpoint) = self.written.find(name).await? {
            return Ok(Some(endpoint));
        }
        let name = name.strip_prefix(NODE).unwrap_or(name);
        let known = self.machines.get(&format!("{NODE}{name}"));
        known.map(|machine| self.endpoint(name, &machine)).transpose()
    }

    async fn choose(&self, selector: Option<&Selector>) -> Result<Vec<String>, Status> {
        let mut names = self.written.choose(selector).await?;
        for machine in self.machines.all() {
            let Some(name) = machine.machine.strip_prefix(NODE) else { continue };
            let labels: Labels = machine.labels.into_iter().collect();
            let fits = selector.is_none_or(|selector| selector.matches(&labels));
            if fits && !machine.blocked && !machine.address.is_empty() {
                names.push(name.to_owned());
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    struct Listed(Vec<Machine>);

    impl Machines for Listed {
        fn all(&self) -> Vec<Machine> {
            self.0.clone()
        }

        fn get(&self, machine: &str) -> Option<Machine> {
            self.0.iter().find(|known| known.machine == machine).cloned()
        }
    }

    fn machine(name: &str, address: &str, rack: &str) -> Machine {
        Machine {
            machine: name.into(),
            address: address.into(),
            labels: [("rack".to_owned(), rack.to_owned())].into(),
            ..Machine::default()
        }
    }

    fn inventory() -> Inventory<Listed> {
        let written = BTreeMap::from([("lab".to_owned(), "lab.example:1".to_owned())]);
        let stolen = Machine { blocked: true, ..machine("node/stolen", "192.0.2.9:5", "3") };
        let machines = vec![
            machine("cloudlet/t/c", "192.0.2.8:5", "3"),
            machine("node/a", "192.0.2.1:5", "3"),
            machine("node/b", "[2001:db8::2]:5", "4"),
            machine("node/new", "", "3"),
            machine("node/two words", "192.0.2.3:5", "4"),
            stolen,
        ];
        let written = StaticDirectory::new(&written, 1).unwrap();
        Inventory::new(written, Listed(machines), Some("b".into()))
    }

    #[tokio::test]
    async fn machines_are_found_by_name_and_known_by_their_certificate() {
        let inventory = inventory();
        let a = inventory.find("a").await.unwrap().unwrap();
        assert_eq!((a.to_string().as_str(), a.server_name(), a.here), ("192.0.2.1:5", "a", false));
        assert_eq!(inventory.find("node/a").await.unwrap(), Some(a));
        assert!(inventory.find("b").await.unwrap().unwrap().here);
        let words = inventory.find("two words").await.unwrap().unwrap();
        assert_eq!(words.server_name(), "192.0.2.3");
        assert_eq!(inventory.find("lab").await.unwrap().unwrap().to_string(), "lab.example:1");
        assert_eq!(inventory.find("c").await.unwrap(), None);
        let b = inventory.at("2001:db8::2", 5).await.unwrap().unwrap();
        assert!(b.here, "by the address that it told");
        for (host, port) in [("192.0.2.1", 6), ("192.0.2.8", 5), ("192.0.2.9", 5)] {
            assert_eq!(inventory.at(host, port).await.unwrap(), None, "{host}:{port}");
        }
        let refused = inventory.find("stolen").await.unwrap_err();
        assert_eq!(refused.message(), "machine \"stolen\" is blocked");
        assert_eq!(inventory.find("new").await.unwrap_err().code(), tonic::Code::Unavailable);
    }

    #[tokio::test]
    async fn machines_are_chosen_by_label() {
        let inventory = inventory();
        assert_eq!(inventory.choose(None).await.unwrap(), ["a", "b", "lab", "two words"]);
        for (selector, expected) in
            [("rack=3", &["a"][..]), ("rack!=3", &["b", "two words"]), ("rack=9", &[])]
        {
            let selector = Selector::parse(selector).unwrap();
            assert_eq!(inventory.choose(Some(&selector)).await.unwrap(), expected);
        }
    }
}
