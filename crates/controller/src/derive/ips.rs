//! Addresses of clusters that have one of their own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use selvage_api::edgeproto::{
    Cloudlet, CloudletKey, CloudletRefs, ClusterInst, IpAccess, IpSupport,
};

use super::{Error, Result, names};

/// Stands in `allocated_ip` for an address that the operator's DHCP chooses.
const DYNAMIC: &str = "dynamic";

/// StoredObject for the root load balancer of a cloudlet with dynamic addresses. A
/// list of static ones names those for clusters only.
const ROOT_BALANCER_IPS: i32 = 1;

/// Most entries in the list of a cloudlet.
const MAX_ENTRIES: usize = 256;

/// Most bits in which one entry's addresses may differ: more than the largest
/// network that an operator is given is a typing mistake.
const MAX_BITS_V4: u32 = 24;
const MAX_BITS_V6: u32 = 96;

/// The ip_access that a cluster gets. Dedicated-if-possible is shared, and
/// where every service has an address nothing is shared.
pub(crate) fn settle_access(cloudlet: &CloudletKey, requested: IpAccess) -> IpAccess {
    match requested {
        _ if names::has_ip_per_service(cloudlet) => IpAccess::Dedicated,
        IpAccess::Dedicated => IpAccess::Dedicated,
        IpAccess::Unknown | IpAccess::DedicatedOrShared | IpAccess::Shared => IpAccess::Shared,
    }
}

/// The address of a new cluster for its `allocated_ip`, recorded in `refs`;
/// empty when it needs none.
pub(crate) fn allocate(
    cloudlet: &Cloudlet,
    access: IpAccess,
    refs: &mut CloudletRefs,
) -> Result<String> {
    let managed = !cloudlet.key.as_ref().is_some_and(names::has_ip_per_service);
    if access != IpAccess::Dedicated || !managed {
        return Ok(String::new());
    }
    match IpSupport::try_from(cloudlet.ip_support) {
        Ok(IpSupport::Dynamic) => {
            let used = refs.used_dynamic_ips.max(0);
            if used.saturating_add(ROOT_BALANCER_IPS) >= cloudlet.num_dynamic_ips {
                return Err(Error::exhausted("No more dynamic IPs left"));
            }
            refs.used_dynamic_ips = used + 1;
            Ok(DYNAMIC.to_owned())
        }
        Ok(IpSupport::Static) => {
            let mut used = parse_used(&refs.used_static_ips);
            let free = Pool::parse(&cloudlet.static_ips)?.lowest_free(&used);
            let address = free.ok_or_else(|| Error::exhausted("No more static IPs left"))?;
            used.insert(address);
            refs.used_static_ips = render_used(&used);
            Ok(address.to_string())
        }
        Ok(IpSupport::Unknown) | Err(_) => Err(Error::invalid("Invalid IpSupport type")),
    }
}

/// Gives back what the cluster holds. Its `allocated_ip` says what that is,
/// whatever has become of the cloudlet since.
pub(crate) fn release(inst: &ClusterInst, refs: &mut CloudletRefs) {
    if inst.allocated_ip == DYNAMIC {
        refs.used_dynamic_ips = refs.used_dynamic_ips.saturating_sub(1).max(0);
    } else if let Ok(address) = inst.allocated_ip.parse() {
        let mut used = parse_used(&refs.used_static_ips);
        used.remove(&address);
        refs.used_static_ips = render_used(&used);
    }
}

/// Checks that `static_ips` of a cloudlet can be read: a comma list of
/// addresses, networks `10.0.0.0/24` and ranges `10.0.0.5-10.0.0.9`.
pub(crate) fn check_static_ips(text: &str) -> Result<()> {
    Pool::parse(text).map(|_| ())
}

fn parse_used(text: &str) -> BTreeSet<IpAddr> {
    text.split(',').filter_map(|address| address.trim().parse().ok()).collect()
}

fn render_used(used: &BTreeSet<IpAddr>) -> String {
    used.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Ranges of addresses, both ends included. Never written out: a network of
/// IPv6 has more addresses than there is memory.
#[derive(Debug, PartialEq, Eq)]
struct Pool(Vec<(IpAddr, IpAddr)>);

impl Pool {
    fn parse(text: &str) -> Result<Self> {
        let mut ranges = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let wrong = |what: &str| Error::invalid(format!("Invalid static IPs: {entry} {what}"));
            let range = parse_entry(entry)
                .ok_or_else(|| wrong("is not an address, a network or a range"))?;
            if is_too_large(range) {
                return Err(wrong("has more addresses than a cloudlet can"));
            }
            if [range.0, range.1].iter().any(is_never_a_host) {
                return Err(wrong("is not an address that a cluster can have"));
            }
            ranges.push(range);
        }
        if ranges.len() > MAX_ENTRIES {
            return Err(Error::invalid(format!(
                "Invalid static IPs: {} entries, at most {MAX_ENTRIES} are possible",
                ranges.len()
            )));
        }
        ranges.sort_unstable();
        Ok(Self(ranges))
    }

    fn lowest_free(&self, used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        self.0.iter().find_map(|(first, last)| {
            let mut candidate = *first;
            for taken in used.range(first..=last) {
                if *taken != candidate {
                    break;
                }
                candidate = next(candidate)?;
            }
            (candidate <= *last).then_some(candidate)
        })
    }
}

fn parse_entry(entry: &str) -> Option<(IpAddr, IpAddr)> {
    if let Some((address, length)) = entry.split_once('/') {
        return network(address.parse().ok()?, length.parse().ok()?);
    }
    if let Some((first, last)) = entry.split_once('-') {
        let first: IpAddr = first.trim().parse().ok()?;
        let last: IpAddr = last.trim().parse().ok()?;
        return (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last));
    }
    let address = entry.parse().ok()?;
    Some((address, address))
}

fn is_too_large((first, last): (IpAddr, IpAddr)) -> bool {
    let bits = if first.is_ipv4() { MAX_BITS_V4 } else { MAX_BITS_V6 };
    (number(last) - number(first)) >> bits != 0
}

fn is_never_a_host(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    address.is_unspecified() || address.is_multicast() || broadcast
}

/// The addresses of a network that hosts can have: in IPv4 neither the first
/// nor the last, in IPv6 not the first, unless there are only two or one.
fn network(address: IpAddr, length: u32) -> Option<(IpAddr, IpAddr)> {
    let width = if address.is_ipv4() { 32 } else { 128 };
    let host_bits = u32::checked_sub(width, length)?;
    let size = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
    let (first, last) = (number(address) & !size, number(address) | size);
    let (first, last) = match (host_bits, address.is_ipv4()) {
        (0 | 1, _) => (first, last),
        (_, true) => (first + 1, last - 1),
        (_, false) => (first + 1, last),
    };
    Some((from_number(first, address)?, from_number(last, address)?))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Of the same family as `like`, if there is such an address.
fn from_number(number: u128, like: IpAddr) -> Option<IpAddr> {
    match like {
        IpAddr::V4(_) => u32::try_from(number).ok().map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(_) => Some(IpAddr::V6(number.into())),
    }
}

fn next(address: IpAddr) -> Option<IpAddr> {
    from_number(number(address).checked_add(1)?, address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use selvage_api::{Code, edgeproto::OperatorKey};

    use super::*;

    fn cloudlet(operator: &str, support: IpSupport, count: i32, static_ips: &str) -> Cloudlet {
        Cloudlet {
            key: Some(CloudletKey {
                operator_key: Some(OperatorKey { name: operator.into() }),
                name: "c".into(),
            }),
            ip_support: support.into(),
            num_dynamic_ips: count,
            static_ips: static_ips.into(),
            ..Cloudlet::default()
        }
    }

    fn holding(allocated_ip: String) -> ClusterInst {
        ClusterInst { allocated_ip, ..ClusterInst::default() }
    }

    #[test]
    fn one_dynamic_address_stays_for_the_root_balancer() {
        let (place, mut refs) =
            (cloudlet("tmus", IpSupport::Dynamic, 3, ""), CloudletRefs::default());
        for used in 1..=2 {
            assert_eq!(allocate(&place, IpAccess::Dedicated, &mut refs).unwrap(), "dynamic");
            assert_eq!(refs.used_dynamic_ips, used);
        }
        let error = allocate(&place, IpAccess::Dedicated, &mut refs).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string()),
            (Code::ResourceExhausted, "No more dynamic IPs left".into())
        );
        assert_eq!(allocate(&place, IpAccess::Shared, &mut refs).unwrap(), "");
        release(&holding("dynamic".into()), &mut refs);
        allocate(&place, IpAccess::Dedicated, &mut refs).unwrap();
    }

    /// D16: the original counted below zero.
    #[test]
    fn what_takes_no_address_gives_none_back() {
        let (place, mut refs) =
            (cloudlet("gcp", IpSupport::Dynamic, 1, ""), CloudletRefs::default());
        assert_eq!(
            settle_access(place.key.as_ref().unwrap(), IpAccess::Shared),
            IpAccess::Dedicated
        );
        let ip = allocate(&place, IpAccess::Dedicated, &mut refs).unwrap();
        release(&holding(ip), &mut refs);
        release(&holding("dynamic".into()), &mut refs);
        assert_eq!(refs, CloudletRefs::default());
    }

    #[test]
    fn access_is_settled_for_good() {
        let key = cloudlet("tmus", IpSupport::Dynamic, 1, "").key.unwrap();
        for (requested, settled) in [
            (IpAccess::Unknown, IpAccess::Shared),
            (IpAccess::DedicatedOrShared, IpAccess::Shared),
            (IpAccess::Shared, IpAccess::Shared),
            (IpAccess::Dedicated, IpAccess::Dedicated),
        ] {
            assert_eq!(settle_access(&key, requested), settled);
        }
    }

    #[test]
    fn static_addresses_are_given_from_below() {
        let place = cloudlet(
            "tmus",
            IpSupport::Static,
            0,
            "10.0.0.9, 10.0.0.4/30,10.0.0.2-10.0.0.3,2001:db8::/127",
        );
        let mut refs = CloudletRefs::default();
        let mut all = Vec::new();
        while let Ok(ip) = allocate(&place, IpAccess::Dedicated, &mut refs) {
            all.push(ip);
        }
        assert_eq!(
            all,
            [
                "10.0.0.2",
                "10.0.0.3",
                "10.0.0.5",
                "10.0.0.6",
                "10.0.0.9",
                "2001:db8::",
                "2001:db8::1"
            ]
        );
        assert_eq!(
            allocate(&place, IpAccess::Dedicated, &mut refs).unwrap_err().to_string(),
            "No more static IPs left"
        );
        release(&holding("10.0.0.5".into()), &mut refs);
        assert_eq!(
            refs.used_static_ips,
            "10.0.0.2,10.0.0.3,10.0.0.6,10.0.0.9,2001:db8::,2001:db8::1"
        );
        assert_eq!(allocate(&place, IpAccess::Dedicated, &mut refs).unwrap(), "10.0.0.5");
    }

    #[test]
    fn lists_that_cannot_be_read_are_refused() {
        for good in ["10.0.0.1", "10.0.0.1/32", "2001:db8::/64", "::1-::5,10.0.0.1"] {
            check_static_ips(good).unwrap();
        }
        for bad in [
            "x",
            "10.0.0.1/33",
            "::/129",
            "10.0.0.2-10.0.0.1",
            "10.0.0.1-::1",
            "10.0.0",
            "10.0.0.1/",
        ] {
            assert_eq!(
                check_static_ips(bad).unwrap_err().to_string(),
                format!("Invalid static IPs: {bad} is not an address, a network or a range")
            );
        }
        assert!(check_static_ips(&"10.0.0.1,".repeat(257)).is_err());
        let unknown = cloudlet("tmus", IpSupport::Unknown, 9, "");
        assert_eq!(
            allocate(&unknown, IpAccess::Dedicated, &mut CloudletRefs::default())
                .unwrap_err()
                .to_string(),
            "Invalid IpSupport type"
        );
    }

    #[test]
    fn entries_that_nobody_means_are_refused() {
        for good in [
            "10.0.0.0/8",
            "2001:db8::/32",
            "10.0.0.0-10.255.255.255",
            " 192.0.2.1 , 192.0.2.2",
            "2001:db8::1-2001:db8::ffff",
        ] {
            check_static_ips(good).unwrap();
        }
        for (bad, why) in [
            ("::/0", "more addresses"),
            ("0.0.0.0/0", "more addresses"),
            ("10.0.0.0/7", "more addresses"),
            ("2001:db8::/31", "more addresses"),
            ("1.0.0.0-223.0.0.0", "more addresses"),
            ("2001::-2002::", "more addresses"),
            ("", "is not an address"),
            (" ", "is not an address"),
            (",", "is not an address"),
            ("192.0.2.1,", "is not an address"),
            (",192.0.2.1", "is not an address"),
            ("192.0.2.1,,192.0.2.2", "is not an address"),
            ("192.0.2.1, ,192.0.2.2", "is not an address"),
            ("0.0.0.0", "that a cluster can have"),
            ("::", "that a cluster can have"),
            ("255.255.255.255", "that a cluster can have"),
            ("224.0.0.1", "that a cluster can have"),
            ("ff02::1", "that a cluster can have"),
        ] {
            let error = check_static_ips(bad).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            let text = error.to_string();
            assert!(
                text.starts_with("Invalid static IPs: ") && text.contains(why),
                "{bad}: {text}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_address_is_given_twice_and_all_come_back(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..80),
            dynamic: bool,
        ) {
            let support = if dynamic { IpSupport::Dynamic } else { IpSupport::Static };
            let place = cloudlet("tmus", support, 9, "10.0.0.0/29,10.0.0.5-10.0.0.9");
            let mut refs = CloudletRefs::default();
            let mut alive: Vec<ClusterInst> = Vec::new();
            for (create, which) in steps {
                if create || alive.is_empty() {
                    let before = refs.clone();
                    match allocate(&place, IpAccess::Dedicated, &mut refs) {
                        Ok(ip) => {
                            prop_assert!(dynamic || alive.iter().all(|other| other.allocated_ip != ip));
                            alive.push(holding(ip));
                        }
                        Err(_) => {
                            prop_assert_eq!(alive.len(), if dynamic { 8 } else { 9 });
                            prop_assert_eq!(&refs, &before);
                        }
                    }
                } else {
                    let gone = alive.remove(which.index(alive.len()));
                    release(&gone, &mut refs);
                }
                if dynamic {
                    prop_assert_eq!(refs.used_dynamic_ips, i32::try_from(alive.len()).unwrap());
                }
            }
            for gone in alive {
                release(&gone, &mut refs);
            }
            prop_assert_eq!(refs, CloudletRefs::default());
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-f.:/,\\- ]{0,40}", any in ".*") {
            let _ = check_static_ips(&text);
            let _ = check_static_ips(&any);
        }
    }
}
