//! A volume group, as its metadata tells of it.

use std::collections::{BTreeMap, HashMap};

use super::text::{Node, Section, parse};
use crate::{Group, Pool, Volume, model::is_temporary};

/// LVM counts in these.
const SECTOR: u64 = 512;

/// A group, and what no client sees of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metadata {
    pub(super) sequence: u64,
    /// Ids, without dashes, of the devices that make it up.
    pub(super) members: Vec<String>,
    pub(super) group: Group,
    /// By volume: what the kernel calls it.
    pub(super) kernel_ids: HashMap<String, String>,
    /// By thin volume: its number in its pool.
    pub(super) thin_ids: HashMap<String, u64>,
}

/// A logical volume of any kind.
struct LogicalVolume<'a> {
    name: &'a str,
    id: String,
    visible: bool,
    read_only: bool,
    created: u64,
    tags: Vec<String>,
    segments: Vec<&'a Section>,
}

impl<'a> LogicalVolume<'a> {
    fn read(name: &'a str, section: &'a Section) -> Self {
        let flags: Vec<&str> = texts(section.get("status"));
        let mut tags: Vec<String> =
            texts(section.get("tags")).into_iter().map(ToOwned::to_owned).collect();
        tags.sort();
        let segments = section.iter().filter(|(key, _)| key.starts_with("segment"));
        Self {
            name,
            id: undashed(text(section, "id")),
            visible: flags.contains(&"VISIBLE"),
            read_only: !flags.contains(&"WRITE"),
            created: number(section, "creation_time"),
            tags,
            segments: segments.filter_map(|(_, node)| node.section()).collect(),
        }
    }

    fn extents(&self) -> u64 {
        self.segments.iter().map(|segment| number(segment, "extent_count")).sum()
    }

    /// The first segment of this type; those with a type of interest have one.
    fn of_type(&self, kind: &str) -> Option<&'a Section> {
        self.segments.iter().find(|segment| text(segment, "type") == kind).copied()
    }
}

fn number(section: &Section, key: &str) -> u64 {
    section.get(key).and_then(Node::number).unwrap_or_default()
}

fn text<'a>(section: &'a Section, key: &str) -> &'a str {
    section.get(key).and_then(Node::text).unwrap_or_default()
}

fn texts(node: Option<&Node>) -> Vec<&str> {
    node.map(Node::list).unwrap_or_default().iter().filter_map(Node::text).collect()
}

fn undashed(id: &str) -> String {
    id.replace('-', "")
}

/// Reads the metadata of one group.
pub(super) fn read(metadata: &str) -> Result<Metadata, String> {
    let all = parse(metadata)?;
    let found = all.iter().find_map(|(name, node)| Some((name, node.section()?)));
    let (name, section) = found.ok_or("no volume group")?;
    let empty = Section::new();
    let inner = |key: &str| section.get(key).and_then(Node::section).unwrap_or(&empty);
    let extent = number(section, "extent_size") * SECTOR;
    if extent == 0 {
        return Err("a volume group without extents".into());
    }
    let physical: Vec<&Section> =
        inner("physical_volumes").values().filter_map(Node::section).collect();
    let devices = inner("physical_volumes");
    let logical: Vec<LogicalVolume<'_>> = inner("logical_volumes")
        .iter()
        .filter_map(|(name, node)| Some(LogicalVolume::read(name, node.section()?)))
        .collect();
    let total: u64 = physical.iter().map(|device| number(device, "pe_count")).sum();
    let used: u64 = logical.iter().map(|volume| taken(volume, devices)).sum();
    let id = undashed(text(section, "id"));
    let (volumes, kernel_ids) = volumes(name, &id, extent, &logical);
    let pools = pools(extent, &logical);
    let thin_ids = logical.iter().filter_map(|volume| {
        Some((volume.name.to_owned(), number(volume.of_type("thin")?, "device_id")))
    });
    Ok(Metadata {
        sequence: number(section, "seqno"),
        members: physical.iter().map(|device| undashed(text(device, "id"))).collect(),
        kernel_ids,
        thin_ids: thin_ids.collect(),
        group: Group {
            name: name.clone(),
            size: total * extent,
            free: total.saturating_sub(used) * extent,
            extent,
            missing: 0,
            volumes,
            pools,
        },
    })
}

/// Extents that a volume takes on devices. What stands on other volumes takes
/// none itself.
fn taken(volume: &LogicalVolume<'_>, devices: &Section) -> u64 {
    let of_segment = |segment: &&Section| {
        let stripes = texts(segment.get("stripes"));
        let on_devices = stripes.iter().filter(|area| devices.contains_key(**area)).count() as u64;
        let each = number(segment, "extent_count") / (stripes.len().max(1) as u64);
        each * on_devices
    };
    volume.segments.iter().map(of_segment).sum()
}

fn pools(extent: u64, logical: &[LogicalVolume<'_>]) -> BTreeMap<String, Pool> {
    let mut pools = BTreeMap::new();
    for volume in logical.iter().filter(|volume| volume.of_type("thin-pool").is_some()) {
        let size = volume.extents() * extent;
        pools.insert(volume.name.to_owned(), Pool { size, ..Pool::default() });
    }
    for volume in logical {
        let home = volume.of_type("thin").map(|segment| text(segment, "thin_pool"));
        if let Some(pool) = home.and_then(|home| pools.get_mut(home))
            && !is_temporary(&volume.tags, volume.read_only)
        {
            pool.promised += volume.extents() * extent;
        }
    }
    pools
}

/// The volumes that clients see, and what the kernel calls each.
fn volumes(
    group: &str,
    group_id: &str,
    extent: u64,
    logical: &[LogicalVolume<'_>],
) -> (BTreeMap<String, Volume>, HashMap<String, String>) {
    // A snapshot is written as a volume of its own that ties two others.
    let ties: HashMap<&str, &str> = logical
        .iter()
        .filter_map(|volume| volume.of_type("snapshot"))
        .map(|tie| (text(tie, "cow_store"), text(tie, "origin")))
        .collect();
    let sizes: HashMap<&str, u64> =
        logical.iter().map(|volume| (volume.name, volume.extents() * extent)).collect();
    let mut volumes = BTreeMap::new();
    let mut kernel_ids = HashMap::new();
    for volume in logical {
        let tie = ties.get(volume.name).copied();
        let hidden = !volume.visible && tie.is_none();
        if hidden || volume.of_type("snapshot").is_some() || volume.of_type("thin-pool").is_some() {
            continue;
        }
        let thin = volume.of_type("thin");
        let own = volume.extents() * extent;
        let name = volume.name.to_owned();
        kernel_ids.insert(name.clone(), format!("LVM-{group_id}{}", volume.id));
        let origin = thin.map(|thin| text(thin, "origin")).filter(|origin| !origin.is_empty());
        let described = Volume {
            name: name.clone(),
            id: volume.id.clone(),
            size: tie.and_then(|origin| sizes.get(origin).copied()).unwrap_or(own),
            tags: volume.tags.clone(),
            path: format!("/dev/{group}/{name}").into(),
            pool: thin.map(|thin| text(thin, "thin_pool").to_owned()),
            origin: tie.or(origin).map(ToOwned::to_owned),
            change_room: tie.map(|_| own),
            read_only: volume.read_only,
            created: volume.created,
            ..Volume::default()
        };
        volumes.insert(name, described);
    }
    (volumes, kernel_ids)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Thick, striped, a thick snapshot, thin with a snapshot, one inactive.
    const SAMPLE: &str = include_str!("sample.vg");

    #[test]
    fn a_group_is_read_as_lvm_tells_of_it() {
        let read = read(SAMPLE).unwrap();
        assert_eq!(read.sequence, 13);
        assert_eq!(read.members.len(), 2);
        let group = &read.group;
        // What `vgs --units b` said when the sample was taken.
        assert_eq!((group.size, group.free), (3_212_836_864, 2_805_989_376));
        let names: Vec<&str> = group.volumes.keys().map(String::as_str).collect();
        assert_eq!(names, ["inact", "lv1", "snap1", "st", "t1", "t1s"]);
        let volume = |name: &str| &group.volumes[name];
        assert_eq!(volume("lv1").size, 100 << 20);
        assert_eq!(volume("lv1").tags, ["a=b", "zz"]);
        assert_eq!(volume("lv1").created, 1_794_804_687);
        assert_eq!(volume("st").size, 40 << 20);
        let snapshot = volume("snap1");
        assert_eq!((snapshot.size, snapshot.change_room), (100 << 20, Some(20 << 20)));
        assert_eq!(snapshot.origin.as_deref(), Some("lv1"));
        let names = |of: Vec<&Volume>| of.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(group.dependants("lv1")), ["snap1"]);
        assert_eq!(names(group.dependants("t1")), Vec::<String>::new());
        assert_eq!(volume("t1").pool.as_deref(), Some("pool"));
        assert_eq!(volume("t1s").origin.as_deref(), Some("t1"));
        assert_eq!(read.thin_ids["t1s"], 2);
        assert_eq!(
            group.pools["pool"],
            Pool { size: 200 << 20, promised: 2 << 30, ..Pool::default() }
        );
        let id = "LVM-JSmAAts92voK2EqbVO186MZ0kTCpPqBruWVqhtBFjCVeGnlMYCFs7LgPmd1zGADJ";
        assert_eq!(read.kernel_ids["lv1"], id);
    }

    #[test]
    fn what_is_no_group_is_refused() {
        for text in ["", "version = 1", "vg { id = \"x\" }"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
