//! Fill of thin pools, as the device mapper reports it.

use std::collections::BTreeMap;

use super::command::Runner;
use crate::{Result, model::thousandths};

/// Blocks that are used of a pool, and all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fill {
    data: (u64, u64),
    metadata: (u64, u64),
}

/// Those of all pools that are active, by the mapper's names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Fills(BTreeMap<String, Fill>);

impl Fill {
    /// Bytes that are used of a pool of so many.
    pub(super) fn used(&self, size: u64) -> u64 {
        let (used, of) = self.data;
        let bytes = u128::from(size) * u128::from(used) / u128::from(of.max(1));
        u64::try_from(bytes).unwrap_or(size).min(size)
    }

    /// Part of the metadata that is used, in thousandths.
    pub(super) fn metadata(&self) -> u32 {
        thousandths(self.metadata.0, self.metadata.1)
    }
}

impl Fills {
    /// Asks the device mapper, and no volume group: this takes no lock of LVM.
    pub(super) fn read(runner: &Runner) -> Result<Self> {
        let arguments = ["status", "--noflush", "--target", "thin-pool"];
        runner.look("dmsetup", &arguments).map(|status| Self::parse(&status))
    }

    /// Reads lines such as
    /// `vg-pool-tpool: 0 2097152 thin-pool 1 11/1024 16/16384 - rw …`. A pool that has
    /// failed tells no numbers.
    fn parse(status: &str) -> Self {
        let pool = |line: &str| {
            let (name, fields) = line.split_once(": ")?;
            let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
            let part = |field: &str| {
                let (used, of) = field.split_once('/')?;
                Some((used.parse().ok()?, of.parse().ok()?))
            };
            let (metadata, data) = (part(fields.get(4)?)?, part(fields.get(5)?)?);
            (fields.get(2) == Some(&"thin-pool"))
                .then(|| (name.to_owned(), Fill { data, metadata }))
        };
        Self(status.lines().filter_map(pool).collect())
    }

    /// Returns that of a pool. It has a layer of its own where it has volumes.
    pub(super) fn of(&self, group: &str, pool: &str) -> Option<Fill> {
        let name = super::thin::mapped_pool(group, pool);
        self.0.get(&format!("{name}-tpool")).or_else(|| self.0.get(&name)).copied()
    }

    /// Percentages, which do not differ at every write.
    pub(super) fn percentages(&self) -> Vec<(&str, u32, u32)> {
        let pools = self.0.iter();
        pools
            .map(|(name, fill)| {
                let data = thousandths(fill.data.0, fill.data.1);
                (name.as_str(), data / 10, fill.metadata() / 10)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_fill_of_pools_is_read() {
        let status = "a--b-pool-tpool: 0 2097152 thin-pool 3 11/1024 4096/16384 - rw discard_passdown queue_if_no_space - 1024\n\
            vg-idle: 0 2097152 thin-pool 0 10/1024 0/16384 - rw discard_passdown queue_if_no_space - 1024\n\
            vg-bad-tpool: 0 2097152 thin-pool Fail\n";
        let fills = Fills::parse(status);
        let fill = fills.of("a-b", "pool").unwrap();
        assert_eq!((fill.used(1 << 30), fill.metadata()), (256 << 20, 10));
        assert_eq!(fills.of("vg", "idle").unwrap().used(1 << 30), 0);
        assert_eq!((fills.of("vg", "bad"), fills.of("a", "b-pool")), (None, None));
        assert_eq!(fills.percentages(), [("a--b-pool-tpool", 25, 1), ("vg-idle", 0, 0)]);
        assert_eq!(Fills::parse("No devices found\n"), Fills::default());
    }
}
