//! A controller that can be killed, and machines that joined it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use selvage_tests::{
    Selvage,
    process::{Cli, wait_for},
    real::skip,
};
use tempfile::TempDir;

/// Machines tell where they are this often, so that tests need not wait.
const OFTEN: [&str; 2] = ["--set", "join.report_interval=100ms"];

pub(crate) struct Lab {
    // Dropped first: it shows its log, which lies in its place.
    controller: Option<Selvage>,
    flags: Vec<String>,
    pub(crate) admin: Cli,
    place: TempDir,
}

impl Lab {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("controller");
        fs::create_dir(&home).unwrap();
        let controller = Selvage::start("up", &home, flags);
        let admin = Cli::admin_of(&controller);
        let port = controller.address().rsplit_once(':').unwrap().1;
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend(["--port".to_owned(), port.to_owned()]);
        Self { controller: Some(controller), flags, admin, place }
    }

    pub(crate) fn controller(&self) -> &Selvage {
        self.controller.as_ref().unwrap()
    }

    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Ends the controller as a power cut would, and starts it where it was.
    pub(crate) fn restart_controller(&mut self) {
        self.controller.take().unwrap().kill();
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.controller = Some(Selvage::start("up", &self.place("controller"), &flags));
    }

    pub(crate) fn token(&self, machine: &str) -> String {
        let made = self.admin.json(&["join-token", "create", machine, "-o", "json"]);
        made["token"].as_str().unwrap().to_owned()
    }

    fn invited(&self, folder: &str, token: &str) -> (PathBuf, Vec<String>) {
        let directory = self.place(folder);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("token");
        fs::write(&file, token).unwrap();
        let address = self.controller().address().to_owned();
        let file = file.display().to_string();
        let flags = ["--controller", &address, "--join-file", &file, OFTEN[0], OFTEN[1]];
        (directory, flags.map(str::to_owned).to_vec())
    }

    /// A machine's agent that joins and is known.
    pub(crate) fn node(&self, name: &str) -> Selvage {
        let node = self.join_with(name, &self.token(&format!("node/{name}")));
        wait_for("the machine to be known", || {
            let listed = self.admin.ok(&["machine", "list", "-o", "json"]);
            listed.contains(node.address()).then_some(())
        });
        node
    }

    pub(crate) fn join_with(&self, name: &str, token: &str) -> Selvage {
        let (directory, flags) = self.invited(name, token);
        start("node", &directory, &flags)
    }

    /// One that joined before, without the token.
    pub(crate) fn again(&self, name: &str) -> Selvage {
        Selvage::start("node", &self.place(name), &OFTEN)
    }

    /// The agent of a cloudlet, where this machine can be one.
    pub(crate) fn crm(&self) -> Option<Selvage> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/usr/sbin/runc").exists() {
            skip("crm", "this needs root and runc");
            return None;
        }
        let (directory, mut flags) = self.invited("crm", &self.token("cloudlet/op/rotated"));
        let site = directory.join("site.yaml");
        fs::write(&site, "common: {network_scheme: 10.137.0.0/16}\n").unwrap();
        let site = format!("crm.site={}", site.display());
        flags.extend(["--set", &site, "--set", "crm.runtime=oci"].map(str::to_owned));
        let crm = start("crm", &directory, &flags);
        self.admin.ok(&["operator", "create", "--name", "op"]);
        let named = ["cloudlet", "create", "--operator", "op", "--name", "rotated"];
        let place = ["--latitude", "1", "--longitude", "1", "--numdynamicips", "9"];
        self.admin.ok(&[&named[..], &place].concat());
        self.wait_for_cloudlet();
        Some(crm)
    }

    pub(crate) fn wait_for_cloudlet(&self) {
        wait_for("the cloudlet", || {
            let shown = self.admin.ok(&["cloudletinfo", "show", "-o", "json"]);
            shown.contains("CLOUDLET_STATE_READY").then_some(())
        });
    }

    /// Waits until nobody uses the old authority any more.
    pub(crate) fn wait_until_all_is_signed_anew(&self) {
        wait_for("everything to be signed anew", || {
            let shown = self.admin.json(&["pki", "rotate", "status", "-o", "json"]);
            let waits = shown["waits_for"].as_array().is_some_and(|waits| !waits.is_empty());
            (stage(&shown) == 2 && !waits).then_some(())
        });
    }
}

/// Stage of the authorities, as JSON of the wire or of the command tells it.
pub(crate) fn stage(shown: &serde_json::Value) -> u64 {
    let stage = &shown["stage"];
    stage.as_u64().or_else(|| stage.as_str()?.parse().ok()).unwrap_or_default()
}

fn start(part: &str, directory: &Path, flags: &[String]) -> Selvage {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Selvage::start(part, directory, &flags)
}
