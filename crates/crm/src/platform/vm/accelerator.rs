//! Accelerator of virtual machines: the processor itself (KVM), or an
//! interpreter.
//!
//! `/dev/kvm` alone tells little: where this machine is a virtual one, it may
//! be there and take a second for what should take a millisecond. So a small
//! machine is started and must count to a hundred million in time.

use std::{path::Path, process::Stdio, time::Duration};

use super::{tools::Tools, user::User};

/// Way in which a machine is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    Interpreter,
}

/// A processor needs a tenth of a second.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// With what the small machine ends: `PROOF << 1 | 1`.
const DONE: i32 = 85;
/// Name of the small machine's disk.
const DISK: &str = "proof.img";
/// Boot sectors end with this.
const MARK: [u8; 2] = [0x55, 0xaa];

/// Switches to 64 bits with paging, as every kernel does, counts down from
/// 2^27, and writes 42 to the port that ends the machine.
///
/// ```text
///   cli; ds = es = 0
///   clear 0x1000..0x4000; [0x1000] = 0x2003; [0x2000] = 0x3003; [0x3000] = 0x83
///   lgdt; cr4 |= PAE; cr3 = 0x1000; EFER |= LME; cr0 |= PG | PE
///   ljmp 8:
///   ecx = 0x8000000; 1: dec ecx; jnz 1b
///   al = 42; out 0xf4, al; 2: hlt; jmp 2b
///   gdt: 0, a 64-bit code segment
/// ```
#[rustfmt::skip]
const PROOF: [u8; 150] = [
    0xfa, 0x66, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x66, 0xbf, 0x00, 0x10, 0x00, 0x00,
    0x66, 0xb9, 0x00, 0x0c, 0x00, 0x00, 0x67, 0x66, 0xf3, 0xab, 0x66, 0xc7, 0x06, 0x00,
    0x10, 0x03, 0x20, 0x00, 0x00, 0x66, 0xc7, 0x06, 0x00, 0x20, 0x03, 0x30, 0x00, 0x00,
    0x66, 0xc7, 0x06, 0x00, 0x30, 0x83, 0x00, 0x00, 0x00, 0x66, 0x0f, 0x01, 0x16, 0x90,
    0x7c, 0x0f, 0x20, 0xe0, 0x66, 0x83, 0xc8, 0x20, 0x0f, 0x22, 0xe0, 0x66, 0xb8, 0x00,
    0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8, 0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32,
    0x66, 0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30, 0x0f, 0x20, 0xc0, 0x66, 0x0d, 0x01,
    0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, 0x66, 0xea, 0x70, 0x7c, 0x00, 0x00, 0x08, 0x00,
    0xb9, 0x00, 0x00, 0x00, 0x08, 0xff, 0xc9, 0x75, 0xfc, 0xb0, 0x2a, 0xe6, 0xf4, 0xf4,
    0xeb, 0xfd, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x9a, 0x20, 0x00, 0x0f, 0x00, 0x80, 0x7c, 0x00, 0x00,
];

impl Accelerator {
    /// Finds out, with a folder in this directory, as a user like those that
    /// machines have.
    pub(super) async fn find(tools: &Tools, directory: &Path, user: User) -> Self {
        let there = rustix::fs::access("/dev/kvm", rustix::fs::Access::EXISTS).is_ok();
        let usable = there && Self::Kvm.works(tools, directory, user).await;
        if there && !usable {
            tracing::info!(
                "/dev/kvm does not work for users of machines: give it a group, as udev does"
            );
        }
        let found = if usable { Self::Kvm } else { Self::Interpreter };
        tracing::info!(accelerator = ?found, "how machines are run");
        found
    }

    pub(super) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Interpreter => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }

    async fn works(self, tools: &Tools, directory: &Path, user: User) -> bool {
        let mut sector = PROOF.to_vec();
        sector.resize(512 - MARK.len(), 0);
        sector.extend(MARK);
        let Ok(folder) = Proof::new(directory, &sector, user) else { return false };
        let description = serde_json::json!({
            "driver": "raw",
            "node-name": "disk",
            "file": {"driver": "file", "filename": DISK},
        });
        let run = tools
            .machine(user, &folder.0, None)
            .args(self.arguments())
            .args(["-m", "32", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(["-blockdev", &description.to_string()])
            .args(["-device", "ide-hd,drive=disk,bootindex=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status();
        let done = tokio::time::timeout(PROOF_TIMEOUT, run).await;
        matches!(done, Ok(Ok(status)) if status.code() == Some(DONE))
    }
}

/// Folder of the small machine, removed when dropped.
struct Proof(std::path::PathBuf);

impl Drop for Proof {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Proof {
    fn new(directory: &Path, content: &[u8], user: User) -> std::io::Result<Self> {
        let folder = Self(directory.join("proof"));
        std::fs::create_dir_all(&folder.0)?;
        std::fs::write(folder.0.join(DISK), content)?;
        user.own(&folder.0.join(DISK))?;
        user.own(&folder.0)?;
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn the_small_machine_counts_and_ends() {
        let Ok(tools) = Tools::find() else {
            return selvage_testkit::skip("qemu", "it is not installed: run ./dev test");
        };
        let directory = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() {
            return selvage_testkit::skip("qemu", "only root may become another user");
        }
        let user = User::of(std::net::Ipv4Addr::new(10, 101, 0, 0));
        assert!(Accelerator::Interpreter.works(&tools, directory.path(), user).await);
        let mut other = tools.clone();
        other.qemu = "/bin/false".into();
        assert!(!Accelerator::Interpreter.works(&other, directory.path(), user).await);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
