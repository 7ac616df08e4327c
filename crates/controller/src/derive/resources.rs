//! Resources that instances take of a cloudlet, and the check that there is
//! enough.

use selvage_api::edgeproto::{CloudletInfo, CloudletRefs, ClusterInst, Flavor};
use selvage_api::selvage::flavors::FlavorSize;

use super::{Error, Result};

/// StoredObject free on every cloudlet for the platform itself: the root load
/// balancer and the agent.
const OVERHEAD: Amount = Amount { ram: 200, vcores: 2, disk: 200 };

/// Memory in MB, processors, disk in GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    pub(crate) ram: u64,
    pub(crate) vcores: u64,
    pub(crate) disk: u64,
}

impl Amount {
    /// All nodes of a cluster. One of docker has none.
    pub(crate) fn of_cluster(flavor: &Flavor, inst: &ClusterInst) -> Self {
        let nodes = u64::from(inst.num_masters) + u64::from(inst.num_nodes);
        Self::of_machine(flavor).map(|of_one| of_one.saturating_mul(nodes))
    }

    /// One virtual machine.
    pub(crate) fn of_machine(flavor: &Flavor) -> Self {
        Self { ram: flavor.ram, vcores: flavor.vcpus, disk: flavor.disk }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Volumes of an instance.
    pub(crate) fn of_volumes(disk: u64) -> Self {
        Self { disk, ..Self::default() }
    }

    fn used(refs: &CloudletRefs) -> Self {
        Self { ram: refs.used_ram, vcores: refs.used_vcores, disk: refs.used_disk }
    }

    fn map(self, change: impl Fn(u64) -> u64) -> Self {
        Self { ram: change(self.ram), vcores: change(self.vcores), disk: change(self.disk) }
    }

    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            ram: join(self.ram, other.ram),
            vcores: join(self.vcores, other.vcores),
            disk: join(self.disk, other.disk),
        }
    }
}

/// The flavor as it counts for an instance: with the amounts that it was made
/// with, if the flavor was changed since.
pub(crate) fn as_made(flavor: Flavor, size: Option<&FlavorSize>) -> Flavor {
    match size {
        Some(size) => Flavor { ram: size.ram, vcpus: size.vcpus, disk: size.disk, ..flavor },
        None => flavor,
    }
}

pub(crate) fn size_of(flavor: &Flavor) -> FlavorSize {
    FlavorSize { ram: flavor.ram, vcpus: flavor.vcpus, disk: flavor.disk }
}

/// Adds to what is used. With `limits`, what the cloudlet says it has is not
/// exceeded; a limit of 0 is one that it did not tell.
pub(crate) fn take(
    refs: &mut CloudletRefs,
    amount: Amount,
    limits: Option<&CloudletInfo>,
) -> Result<()> {
    change(refs, Amount::default(), amount, limits)
}

pub(crate) fn give_back(refs: &mut CloudletRefs, amount: Amount) {
    record(refs, Amount::used(refs).with(amount, u64::saturating_sub));
}

/// Puts one amount in the place of another. Only what grows is checked, so
/// that a cloudlet that is too full can always be relieved.
pub(crate) fn change(
    refs: &mut CloudletRefs,
    before: Amount,
    after: Amount,
    limits: Option<&CloudletInfo>,
) -> Result<()> {
    let used =
        Amount::used(refs).with(before, u64::saturating_sub).with(after, u64::saturating_add);
    if let Some(limits) = limits {
        let wanted = used.with(OVERHEAD, u64::saturating_add);
        let rows = [
            ("RAM", before.ram, after.ram, wanted.ram, limits.os_max_ram),
            ("Vcores", before.vcores, after.vcores, wanted.vcores, limits.os_max_vcores),
            ("Disk", before.disk, after.disk, wanted.disk, limits.os_max_vol_gb),
        ];
        for (name, before, after, wanted, limit) in rows {
            if after > before && limit > 0 && wanted > limit {
                return Err(Error::exhausted(format!("Not enough {name} available")));
            }
        }
    }
    record(refs, used);
    Ok(())
}

/// Puts one amount of volumes, in GB, in the place of another. They are disk of
/// the cloudlet as it is: nothing is kept free beside them.
pub(crate) fn change_volumes(
    refs: &mut CloudletRefs,
    before: u64,
    after: u64,
    limits: Option<&CloudletInfo>,
) -> Result<()> {
    let used = refs.used_disk.saturating_sub(before).saturating_add(after);
    let limit = limits.map_or(0, |limits| limits.os_max_vol_gb);
    if after > before && limit > 0 && used > limit {
        return Err(Error::exhausted("Not enough Disk available"));
    }
    refs.used_disk = used;
    Ok(())
}

fn record(refs: &mut CloudletRefs, used: Amount) {
    refs.used_ram = used.ram;
    refs.used_vcores = used.vcores;
    refs.used_disk = used.disk;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use selvage_api::Code;

    use super::*;

    fn flavor(ram: u64, vcpus: u64, disk: u64) -> Flavor {
        Flavor { ram, vcpus, disk, ..Flavor::default() }
    }

    fn cluster(num_masters: u32, num_nodes: u32) -> ClusterInst {
        ClusterInst { num_masters, num_nodes, ..ClusterInst::default() }
    }

    fn info(ram: u64, vcores: u64, disk: u64) -> CloudletInfo {
        CloudletInfo {
            os_max_ram: ram,
            os_max_vcores: vcores,
            os_max_vol_gb: disk,
            ..CloudletInfo::default()
        }
    }

    fn used(refs: &CloudletRefs) -> (u64, u64, u64) {
        (refs.used_ram, refs.used_vcores, refs.used_disk)
    }

    #[test]
    fn an_auto_cluster_of_the_smoke_order_takes_two_nodes() {
        let mut refs = CloudletRefs::default();
        let amount = Amount::of_cluster(&flavor(2048, 2, 2), &cluster(1, 1));
        take(&mut refs, amount, None).unwrap();
        assert_eq!(used(&refs), (4096, 4, 4));
        give_back(&mut refs, amount);
        assert_eq!(used(&refs), (0, 0, 0));
    }

    /// Clusters of the golden flavors that add up to the golden sums.
    #[test]
    fn the_golden_sums_come_out() {
        let (tiny, small, medium) = (flavor(1024, 1, 1), flavor(2048, 2, 2), flavor(4096, 4, 4));
        let sum = |clusters: &[(&Flavor, u32)]| {
            let mut refs = CloudletRefs::default();
            for (flavor, nodes) in clusters {
                take(&mut refs, Amount::of_cluster(flavor, &cluster(1, nodes - 1)), None).unwrap();
            }
            used(&refs)
        };
        assert_eq!(sum(&[(&tiny, 3), (&small, 4)]), (11264, 11, 11));
        assert_eq!(sum(&[(&tiny, 3), (&medium, 5)]), (23552, 23, 23));
        assert_eq!(sum(&[(&medium, 4)]), (16384, 16, 16));
        assert_eq!(sum(&[(&tiny, 3), (&small, 4), (&tiny, 2)]), (13312, 13, 13));
        assert_eq!(sum(&[(&tiny, 3), (&medium, 5), (&medium, 2)]), (31744, 31, 31));
    }

    #[test]
    fn docker_takes_nothing_and_a_machine_its_flavor() {
        let large = flavor(8192, 10, 40);
        assert_eq!(Amount::of_cluster(&large, &cluster(0, 0)), Amount::default());
        assert_eq!(Amount::of_machine(&large), Amount { ram: 8192, vcores: 10, disk: 40 });
        let full = info(1, 1, 1);
        take(&mut CloudletRefs::default(), Amount::default(), Some(&full)).unwrap();
    }

    #[test]
    fn limits_hold_with_the_overhead() {
        let one = Amount { ram: 1000, vcores: 10, disk: 100 };
        let cases = [
            (info(1199, 12, 300), "Not enough RAM available"),
            (info(1200, 11, 300), "Not enough Vcores available"),
            (info(1200, 12, 299), "Not enough Disk available"),
        ];
        for (limits, text) in cases {
            let mut refs = CloudletRefs::default();
            let error = take(&mut refs, one, Some(&limits)).unwrap_err();
            assert_eq!((error.code(), error.to_string()), (Code::ResourceExhausted, text.into()));
            assert_eq!(used(&refs), (0, 0, 0), "nothing is taken when refused");
            take(&mut refs, one, None).unwrap();
        }
        take(&mut CloudletRefs::default(), one, Some(&info(1200, 12, 300))).unwrap();
        take(&mut CloudletRefs::default(), one, Some(&info(0, 0, 0))).unwrap();
    }

    #[test]
    fn an_update_moves_the_difference() {
        let small = flavor(2048, 2, 2);
        let of = |nodes| Amount::of_cluster(&small, &cluster(1, nodes));
        let limits = info(2048 * 4 + 200, 10, 300);
        let mut refs = CloudletRefs::default();
        take(&mut refs, of(1), Some(&limits)).unwrap();
        change(&mut refs, of(1), of(3), Some(&limits)).unwrap();
        assert_eq!(used(&refs), (8192, 8, 8));
        assert!(change(&mut refs, of(3), of(4), Some(&limits)).is_err());
        assert_eq!(used(&refs), (8192, 8, 8));
        change(&mut refs, of(3), of(2), Some(&info(1, 1, 1))).unwrap();
        give_back(&mut refs, of(2));
        assert_eq!(used(&refs), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn numbers_never_wrap(ram: u64, taken: u64, returned: u64, nodes: u32) {
            let mut refs = CloudletRefs { used_ram: ram, ..CloudletRefs::default() };
            let amount = Amount::of_cluster(&flavor(taken, taken, taken), &cluster(nodes, nodes));
            take(&mut refs, amount, None).unwrap();
            prop_assert!(refs.used_ram >= ram);
            give_back(&mut refs, Amount { ram: returned, vcores: returned, disk: returned });
            prop_assert!(refs.used_ram <= ram.saturating_add(amount.ram));
        }
    }
}
