//! The range of a cloudlet's networks.

use std::net::Ipv4Addr;

use crate::{Error, Result};

/// Addresses of a cluster.
pub(super) const CLUSTER_PREFIX: u8 = 24;

/// The range that clusters have their networks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub(super) base: Ipv4Addr,
    pub(super) prefix: u8,
}

impl Default for Range {
    fn default() -> Self {
        Self { base: Ipv4Addr::new(10, 101, 0, 0), prefix: 16 }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl Range {
    /// Reads `10.101.0.0/16`, as `network_scheme` has it.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid("network_scheme", format!("{text:?} is not like 10.101.0.0/16"));
        let (base, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let base: Ipv4Addr = base.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if !(8..=CLUSTER_PREFIX).contains(&prefix) || !base.is_private() {
            return Err(Error::invalid(
                "network_scheme",
                "must be a private range with a prefix from 8 to 24",
            ));
        }
        let mask = u32::MAX << (32 - prefix);
        Ok(Self { base: Ipv4Addr::from(u32::from(base) & mask), prefix })
    }

    /// Number of networks.
    pub(in crate::platform) fn size(self) -> u32 {
        1 << (CLUSTER_PREFIX - self.prefix)
    }

    /// Returns whether a network has addresses of this range.
    pub(in crate::platform) fn meets(self, base: Ipv4Addr, prefix: u8) -> bool {
        let shorter = u32::from(self.prefix.min(prefix));
        let mask = u32::MAX.checked_shl(32 - shorter).unwrap_or(0);
        u32::from(self.base) & mask == u32::from(base) & mask
    }

    /// Returns whether two ranges have addresses in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.meets(other.base, other.prefix)
    }

    /// Number of the network that an address is in; none outside of the range.
    pub(in crate::platform) fn network_of(self, address: Ipv4Addr) -> Option<u32> {
        let offset = || u32::from(address) - u32::from(self.base);
        self.meets(address, 32).then(|| offset() >> (32 - CLUSTER_PREFIX))
    }

    /// The address `host` of a network.
    pub(in crate::platform) fn address(self, network: u32, host: u8) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) | (network << (32 - CLUSTER_PREFIX)) | u32::from(host))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn ranges_meet_what_is_in_them_and_what_they_are_in() {
        let range = Range::parse("10.7.0.0/16").unwrap();
        let meets = |base: &str, prefix| range.meets(base.parse().unwrap(), prefix);
        assert!(meets("10.7.9.1", 32) && meets("10.7.200.0", 24) && meets("10.0.0.0", 8));
        assert!(meets("10.7.0.0", 16) && meets("10.6.0.0", 15) && meets("0.0.0.0", 0));
        assert!(!meets("10.8.0.0", 16) && !meets("10.6.255.255", 32) && !meets("192.168.0.0", 16));
    }

    #[test]
    fn ranges_are_read_and_bad_ones_refused() {
        let range = Range::parse("10.7.9.1/16").unwrap();
        assert_eq!(range.size(), 256);
        assert_eq!(range.address(3, 2), Ipv4Addr::new(10, 7, 3, 2));
        assert_eq!(range.network_of(range.address(3, 2)), Some(3));
        assert_eq!(range.network_of(Ipv4Addr::LOCALHOST), None);
        assert_eq!(range.network_of(Ipv4Addr::new(10, 6, 3, 2)), None);
        assert_eq!(
            Range::parse("192.168.5.0/24").unwrap().address(0, 1).to_string(),
            "192.168.5.1"
        );
        for bad in ["", "10.0.0.0", "8.8.0.0/16", "10.0.0.0/25", "10.0.0.0/7", "x/16", "10.0.0.0/x"]
        {
            let error = Range::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("network_scheme: "), "{error}");
        }
    }
}
