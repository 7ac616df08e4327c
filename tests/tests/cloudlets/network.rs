//! Machines that are network namespaces, around a bridge on which the
//! controller is.

use std::process::Command;

pub(crate) fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
}

#[derive(Clone, Copy)]
pub(crate) struct Network {
    /// No other test has the same.
    pub(crate) name: &'static str,
    /// Of 192.168.
    pub(crate) subnet: u8,
    pub(crate) machines: &'static [&'static str],
}

/// Removes it when dropped.
pub(crate) struct Built(Network);

impl Network {
    pub(crate) fn build(self) -> Built {
        self.remove();
        let built = Built(self);
        let bridge = self.bridge();
        ip(&format!("link add {bridge} type bridge"));
        ip(&format!("addr add {}/24 dev {bridge}", self.controller()));
        ip(&format!("link set {bridge} up"));
        for machine in self.machines {
            let (name, port) = (self.namespace(machine), self.port(machine));
            ip(&format!("netns add {name}"));
            ip(&format!("link add {port} type veth peer name eth0 netns {name}"));
            ip(&format!("link set {port} master {bridge} up"));
            ip(&format!("-n {name} addr add {}/24 dev eth0", self.address(machine)));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        built
    }

    fn bridge(&self) -> String {
        format!("slv{}", self.name)
    }

    pub(crate) fn controller(&self) -> String {
        format!("192.168.{}.1", self.subnet)
    }

    pub(crate) fn address(&self, machine: &str) -> String {
        let number = self.machines.iter().position(|other| *other == machine).unwrap();
        format!("192.168.{}.{}", self.subnet, number + 2)
    }

    pub(crate) fn namespace(&self, machine: &str) -> String {
        format!("{}-{machine}", self.name)
    }

    fn port(&self, machine: &str) -> String {
        format!("slv{}-{machine}", self.name)
    }

    pub(crate) fn cut(&self, machine: &str) {
        ip(&format!("link set {} down", self.port(machine)));
    }

    pub(crate) fn heal(&self, machine: &str) {
        ip(&format!("link set {} up", self.port(machine)));
    }

    fn remove(&self) {
        for machine in self.machines {
            let _ = Command::new("ip").args(["link", "del", &self.port(machine)]).output();
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(machine)]).output();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge()]).output();
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        self.0.remove();
    }
}
