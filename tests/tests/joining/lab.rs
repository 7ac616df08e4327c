//! A controller, and machines that join it.

use std::{fs, path::PathBuf};

use selvage_tests::{
    Selvage,
    process::{Cli, command, wait_for},
};
use tempfile::TempDir;

/// Machines tell where they are this often, so that tests need not wait.
const OFTEN: [&str; 2] = ["--set", "node.report=100ms"];

/// A controller and the machines that join it.
pub(crate) struct Lab {
    pub(crate) controller: Selvage,
    pub(crate) admin: Cli,
    pub(crate) place: TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::of(Selvage::up(&[]))
    }

    /// With a controller that is no machine itself.
    pub(crate) fn of_controller_alone() -> Self {
        Self::of(Selvage::part("controller", &[]))
    }

    fn of(controller: Selvage) -> Self {
        let admin = Cli::admin_of(&controller);
        Self { controller, admin, place: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn token(&self, name: &str, more: &[&str]) -> String {
        let machine = format!("node/{name}");
        let line = [&["join-token", "create", &machine, "-o", "json"], more].concat();
        self.admin.json(&line)["token"].as_str().unwrap().to_owned()
    }

    /// A place for one machine, with a token in a file.
    pub(crate) fn machine(&self, name: &str, token: &str) -> (PathBuf, String) {
        let directory = self.place.path().join(name);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("token");
        fs::write(&file, token).unwrap();
        (directory, file.display().to_string())
    }

    pub(crate) fn join(&self, name: &str, flags: &[&str]) -> Selvage {
        let (directory, file) = self.machine(name, &self.token(name, &[]));
        let join = ["--controller", self.controller.address(), "--join-file", &file];
        Selvage::start("node", &directory, &[&join[..], &OFTEN, flags].concat())
    }

    /// Starts it again, as a machine does that has joined before.
    pub(crate) fn again(&self, name: &str) -> Selvage {
        self.again_with(name, &[])
    }

    pub(crate) fn again_with(&self, name: &str, flags: &[&str]) -> Selvage {
        Selvage::start("node", &self.place.path().join(name), &[&OFTEN, flags].concat())
    }

    /// Error text of an agent that does not start.
    pub(crate) fn refused(&self, name: &str, token: &str, flags: &[&str]) -> String {
        let (directory, file) = self.machine(name, token);
        let output = command()
            .args(["node", "--port", "0", "--data"])
            .arg(directory.join("data"))
            .args(["--controller", self.controller.address(), "--join-file", &file])
            .args(flags)
            .output()
            .unwrap();
        assert!(!output.status.success(), "it started");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Waits until the controller knows where these are.
    pub(crate) fn known(&self, names: &[&str]) {
        wait_for("machines to be known", || {
            let listed = self.admin.json(&["machine", "list", "-o", "json"]);
            let machines = listed["machines"].as_array().unwrap().clone();
            let is_there = |name: &&str| {
                machines.iter().any(|machine| {
                    machine["machine"] == format!("node/{name}")
                        && machine["address"].as_str().is_some_and(|text| !text.is_empty())
                })
            };
            names.iter().all(is_there).then_some(())
        });
    }
}
