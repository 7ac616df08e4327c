//! An agent that really reboots, turns off and resets the machine it runs on:
//! one that is made for it, a kernel in user mode.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use selvage_tests::{process::binary, real::skip};

struct Machine {
    folder: tempfile::TempDir,
    /// Exit code and output of the machine.
    ended: (i32, String),
}

impl Machine {
    /// None, with a loud word, where no machine can be had.
    fn that_is_asked_to(wish: &str) -> Option<Self> {
        if !Path::new("/usr/bin/linux.uml").exists() {
            skip("user-mode-linux", "not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "x").unwrap();
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("uml");
        let output = Command::new(scripts.join("run"))
            .args(["-t", "600", "--"])
            .arg(scripts.join("power.sh"))
            .args([binary(), folder.path().to_owned()])
            .arg(wish)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let machine = Self { folder, ended: (output.status.code().unwrap_or(-1), said) };
        let log = std::fs::read_to_string(machine.folder.path().join("log")).unwrap_or_default();
        assert!(machine.has("asked"), "it never got so far: {:?}\n{log}", machine.ended);
        assert!(!machine.has("survived"), "it went on: {:?}\n{log}", machine.ended);
        Some(machine)
    }

    fn has(&self, mark: &str) -> bool {
        self.folder.path().join(mark).exists()
    }
}

#[test]
fn a_machine_is_rebooted() {
    let Some(machine) = Machine::that_is_asked_to("reboot") else { return };
    assert!(machine.has("came-back"), "{:?}", machine.ended);
    assert_eq!(machine.ended.0, 0, "{:?}", machine.ended);
    assert!(machine.has("precious"));
}

#[test]
fn a_machine_is_turned_off() {
    let Some(machine) = Machine::that_is_asked_to("shutdown") else { return };
    // The kernel ended by itself, and what ran on it did not.
    assert_eq!(machine.ended.0, 125, "{:?}", machine.ended);
    assert!(machine.ended.1.contains("reboot: System halted"), "{:?}", machine.ended);
    assert!(!machine.has("came-back"));
}

#[test]
fn a_machine_is_reset() {
    let Some(machine) = Machine::that_is_asked_to("reset") else { return };
    assert!(machine.has("came-back"), "{:?}", machine.ended);
    assert!(!machine.has("precious"), "what makes it ours is gone");
}
