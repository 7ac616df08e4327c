//! Room for data, and when there will be none.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use selvage_api::selvage::dashboard::{Capacity, Object};

use crate::{
    facts::{Exporter, Facts, Filesystem, Usage, each, object},
    rules::Thresholds,
    stamp,
};

const DAY: f64 = 86_400.0;
/// A forecast beyond this is none.
const FAR: f64 = 3650.0;

/// File systems that are told of.
const MOST_FILESYSTEMS: usize = 20;

/// Growth of something, by its known past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Growth {
    pub(crate) bytes_per_day: f64,
}

pub(super) fn capacity(
    facts: &Facts,
    growth: &HashMap<String, Growth>,
    now: Timestamp,
    thresholds: &Thresholds,
) -> Vec<Capacity> {
    let mut all = Vec::new();
    if let Some(storage) = &facts.storage
        && let Some(usage) = storage.usage
    {
        let cluster = object("ceph", storage.id.clone());
        all.push(entry("ceph", cluster, usage, growth, now));
    }
    for group in facts.volumes.iter().flat_map(|volumes| &volumes.groups) {
        let used = group.size.saturating_sub(group.free);
        let usage = Usage {
            used,
            available: group.free,
            total: group.size,
            ratio: 0.0,
            near_full: thresholds.near_full,
            full: thresholds.full,
        };
        all.push(entry("volumes", group.object.clone(), usage, growth, now));
    }
    for (host, disk) in fullest(facts) {
        let available = disk.available.unwrap_or_default();
        let usage = Usage {
            used: disk.size.saturating_sub(available),
            available,
            total: disk.size,
            ratio: 0.0,
            near_full: thresholds.near_full,
            full: thresholds.full,
        };
        all.push(entry("file systems", filesystem(host, disk), usage, growth, now));
    }
    all
}

/// The reference to a file system of a machine that Prometheus scrapes.
pub(crate) fn filesystem(host: &Exporter, disk: &Filesystem) -> Object {
    object("filesystem", format!("{} {}", host.instance, disk.mount))
}

/// File systems with the least room, of all machines.
fn fullest(facts: &Facts) -> Vec<(&Exporter, &Filesystem)> {
    let mut all: Vec<_> = each(&facts.exporters)
        .flat_map(|host| host.filesystems.iter().map(move |disk| (host, disk)))
        .collect();
    all.sort_by(|(_, a), (_, b)| b.share().total_cmp(&a.share()));
    all.truncate(MOST_FILESYSTEMS);
    all
}

fn entry(
    name: &str,
    object: Object,
    usage: Usage,
    growth: &HashMap<String, Growth>,
    now: Timestamp,
) -> Capacity {
    let growth = growth.get(&format!("{}/{}", object.kind, object.name));
    let full_at = growth.and_then(|growth| full_at(usage, growth.bytes_per_day, now));
    Capacity {
        name: name.into(),
        object: Some(object),
        used_bytes: usage.used,
        available_bytes: usage.available,
        total_bytes: usage.total,
        near_full: usage.near_full,
        full: usage.full,
        bytes_per_day: growth.map(|growth| growth.bytes_per_day),
        full_at: full_at.map(stamp),
    }
}

fn full_at(usage: Usage, bytes_per_day: f64, now: Timestamp) -> Option<Timestamp> {
    if bytes_per_day <= 0.0 || usage.total == 0 {
        return None;
    }
    let days = usage.total.saturating_sub(usage.used) as f64 / bytes_per_day;
    if !days.is_finite() || days > FAR {
        return None;
    }
    // To the hour, so that it does not change with every sample.
    let hours = (days * DAY / 3600.0).round() as i64;
    let whole = Timestamp::from_second(now.as_second() / 3600 * 3600).ok()?;
    whole.checked_add(SignedDuration::from_hours(hours)).ok()
}
