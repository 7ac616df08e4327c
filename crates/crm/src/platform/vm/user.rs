//! The user that a machine's process runs as: a number of its own that no
//! account has, so that a guest that breaks out of QEMU reaches the files of
//! its own machine and nothing else.

use std::{
    net::Ipv4Addr,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// First of the numbers. systemd, shadow and the runtimes of containers leave
/// those from here to 2^31 alone.
const FIRST: u32 = 0x7000_0000;
/// Bits of an address that tell the networks of all machines apart.
const HOST_BITS: u32 = 8;
const KVM: &str = "/dev/kvm";

/// User and group of a machine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User(u32);

impl User {
    /// The user of whoever has this address. Ranges of cloudlets on one machine
    /// do not overlap, so neither do their users.
    pub(super) fn of(address: Ipv4Addr) -> Self {
        Self(FIRST | (u32::from(address) >> HOST_BITS))
    }

    /// The user that a number is of, if it can be one of a machine.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        (number >> (u32::BITS - HOST_BITS) == FIRST >> (u32::BITS - HOST_BITS))
            .then_some(Self(number))
    }

    /// The user of this process, which ran machines in earlier releases.
    pub(super) fn of_this_process() -> Self {
        Self(rustix::process::geteuid().as_raw())
    }

    /// Number of the user, and of its group.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// Makes a file or folder its own.
    pub(super) fn own(self, path: &Path) -> std::io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.0), Some(self.0))
    }

    /// Opens a folder of ours to its group.
    pub(super) fn admit(self, path: &Path) -> std::io::Result<()> {
        std::os::unix::fs::lchown(path, Some(0), Some(self.0))?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o710))
    }

    /// Arguments of `setpriv` for a process of this user without any right.
    pub(super) fn arguments(self) -> Vec<String> {
        let groups = match group_of_kvm() {
            Some(group) => format!("--groups={group}"),
            None => "--clear-groups".to_owned(),
        };
        vec![
            format!("--reuid={}", self.0),
            format!("--regid={}", self.0),
            groups,
            "--bounding-set=-all".to_owned(),
            "--inh-caps=-all".to_owned(),
            "--no-new-privs".to_owned(),
        ]
    }
}

/// Group whose members may use the processor's virtualization.
fn group_of_kvm() -> Option<u32> {
    let device = std::fs::metadata(KVM).ok()?;
    (device.gid() != 0 && device.mode() & 0o060 == 0o060).then(|| device.gid())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn users_follow_from_networks_and_are_nobody_elses() {
        let user = User::of(Ipv4Addr::new(10, 101, 7, 2));
        assert_eq!(user, User::of(Ipv4Addr::new(10, 101, 7, 254)), "one network, one user");
        assert_ne!(user, User::of(Ipv4Addr::new(10, 101, 8, 2)));
        assert_ne!(user, User::of(Ipv4Addr::new(192, 168, 7, 2)));
        assert_eq!(User::from_number(user.number()), Some(user));
        for number in [0, 1000, 65534, 100_000, 524_288, 1 << 31, u32::MAX] {
            assert_eq!(User::from_number(number), None);
        }
    }
}
